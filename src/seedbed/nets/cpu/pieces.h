// A batch in pieces, computed by the threads of a pool.
//
// How a batch is cut does not depend on how many threads there are, or which are busy: neither does what is computed.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

// `count` pieces of `images` images, of which the last one may have fewer.
struct Pieces {
  int64_t images, count, rest;

  // As even as can be: `least` images or more in each, unless there are fewer, and no more than `most` pieces.
  static Pieces of(int64_t total, int64_t least, int64_t most) {
    int64_t count = std::clamp<int64_t>(total / least, 1, most);
    int64_t images = (total + count - 1) / count;
    count = (total + images - 1) / images;
    return {images, count, total - (count - 1) * images};
  }

  int64_t begin(int64_t piece) const { return piece * images; }
  int64_t size_of(int64_t piece) const { return piece + 1 < count ? images : rest; }
};

// Memory of a thread for what is only needed during a call. It grows and is never given back before the thread ends:
// pages that the system has to clear anew for every call cost as much as the arithmetic.
class Arena {
 public:
  ~Arena() { std::free(data_); }

  char* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<char*>(std::aligned_alloc(kAlignment, aligned(bytes)));
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = aligned(bytes);
    }
    return data_;
  }

  // As many places as there are sizes; it ends what reserve() and rooms() gave before.
  template <typename... Sizes>
  std::array<char*, sizeof...(Sizes)> rooms(Sizes... sizes) {
    size_t total = 0;
    std::array<size_t, sizeof...(Sizes)> begins = {std::exchange(total, total + aligned(sizes))...};
    char* data = reserve(total + kAlignment);  // also of nothing there is a place
    std::array<char*, sizeof...(Sizes)> found;
    std::transform(begins.begin(), begins.end(), found.begin(), [data](size_t begin) { return data + begin; });
    return found;
  }

  static size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

 private:
  static constexpr size_t kAlignment = 4096;
  char* data_ = nullptr;
  size_t size_ = 0;
};

namespace internal {

// Pieces of work that several threads take from, one after the other.
class Job {
 public:
  Job(int64_t count, const std::function<void(int64_t)>& work) : count_(count), work_(work) {}

  // A thread that comes when all is taken finds nothing: by then the work, of which this is a reference, may be gone.
  void take_part() {
    for (int64_t piece; (piece = next_.fetch_add(1)) < count_;) {
      try {
        work_(piece);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      if (++done_ == count_) all_done_.notify_all();
    }
  }

  void finish() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [this] { return done_ == count_; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  const int64_t count_;
  const std::function<void(int64_t)>& work_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t done_ = 0;
  std::exception_ptr failure_;
};

}  // namespace internal

// Calls work(0) to work(count - 1) on the pool's threads and on this one. This one takes pieces too and waits for no
// thread that has not begun with one: a pool whose threads are all busy, or wait like this one, delays nobody for ever.
//
// A pool has num_threads() and Schedule(function), as XLA's has.
template <typename Pool>
void in_parallel(Pool& pool, int64_t count, const std::function<void(int64_t)>& work) {
  auto job = std::make_shared<internal::Job>(count, work);
  try {
    for (int64_t helper = std::min<int64_t>(count - 1, pool.num_threads()); helper > 0; --helper) {
      pool.Schedule([job] { job->take_part(); });
    }
  } catch (const std::bad_alloc&) {
    // Those that have been called may have begun, and read what this call holds; the rest is done without more.
  }
  job->take_part();
  job->finish();
}
