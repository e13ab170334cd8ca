// Max-pools over images [N, H, W, C], and their gradients.
//
// oneDNN has them too, but its maximum of NaN is the lowest number that there is, and what follows would never learn that
// a network has diverged. Here NaN is larger than all. The gradient goes to the first of equal maxima, and is added up
// in float32.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "numbers.h"
#include "pieces.h"

namespace pools {

using numbers::each_block;
using numbers::load;
using numbers::read;
using numbers::store;
using numbers::Vector;

constexpr int64_t kLargestSide = 15;  // a window's numbers are counted in a uint8

// Of one image and its windows, with the padding that is above and left of it.
struct Window {
  int64_t height, width, channels, out_height, out_width, side, stride, top, left;

  int64_t image() const { return height * width * channels; }
  int64_t out_image() const { return out_height * out_width * channels; }
};

// The part of a window that begins at `begin` which is inside of 0 … size.
struct Span {
  int64_t first, last;
  Span(int64_t begin, int64_t side, int64_t size)
      : first(begin < 0 ? -begin : 0), last(begin + side > size ? size - begin : side) {}
};

// Calls visit(y, x) for every row and column of the window at (row, column) that is inside of the image.
template <typename Visit>
SEEDBED_INLINE void each_pixel(const Window& w, int64_t row, int64_t column, const Visit& visit) {
  int64_t y0 = row * w.stride - w.top, x0 = column * w.stride - w.left;
  Span rows(y0, w.side, w.height), columns(x0, w.side, w.width);
  for (int64_t y = rows.first; y < rows.last; ++y) {
    for (int64_t x = columns.first; x < columns.last; ++x) {
      visit(((y0 + y) * w.width + x0 + x) * w.channels, static_cast<int32_t>(y * w.side + x));
    }
  }
}

// One image. `places` has, for each maximum, which number of its window it was; none are kept if it is null.
template <typename T>
void pool(const Window& w, const T* image, T* out, uint8_t* places) {
  auto pool_window = [=](int64_t row, int64_t column) SEEDBED_ALWAYS {
    int64_t at = (row * w.out_width + column) * w.channels;
    each_block(w.channels, [=](int64_t c, auto n) SEEDBED_ALWAYS {
      auto best = Vector<float, n>{} - std::numeric_limits<float>::infinity();
      auto place = Vector<int32_t, n>{} - 1;
      each_pixel(w, row, column, [&](int64_t pixel, int32_t here) SEEDBED_ALWAYS {
        auto number = load<n>(image + pixel + c);
        auto larger = (number > best) | (number != number) | (place < 0);
        best = larger ? number : best;
        place = larger ? here - Vector<int32_t, n>{} : place;
      });
      store<n>(best, out + at + c);
      if (places == nullptr) return;
      auto narrow = __builtin_convertvector(place, Vector<uint8_t, n>);
      std::memcpy(places + at + c, &narrow, sizeof narrow);
    });
  };
  for (int64_t row = 0; row < w.out_height; ++row) {
    for (int64_t column = 0; column < w.out_width; ++column) pool_window(row, column);
  }
}

// One image of bytes, which have no gradient: all windows of a row are as tall, so that rows come first and fill registers.
inline void pool_bytes(const Window& w, const uint8_t* image, uint8_t* out, Arena& memory) {
  int64_t numbers = w.width * w.channels;
  auto* tallest = reinterpret_cast<uint8_t*>(memory.reserve(numbers));
  auto take_larger = [](const uint8_t* from, uint8_t* best, int64_t count) SEEDBED_ALWAYS {
    each_block(count, [=](int64_t i, auto n) SEEDBED_ALWAYS {
      auto number = read<n>(from + i), so_far = read<n>(best + i);
      auto larger = number > so_far ? number : so_far;
      std::memcpy(best + i, &larger, sizeof larger);
    });
  };
  for (int64_t row = 0; row < w.out_height; ++row) {
    Span rows(row * w.stride - w.top, w.side, w.height);
    const uint8_t* first = image + (row * w.stride - w.top) * numbers;
    std::copy_n(first + rows.first * numbers, numbers, tallest);
    for (int64_t y = rows.first + 1; y < rows.last; ++y) take_larger(first + y * numbers, tallest, numbers);
    for (int64_t column = 0; column < w.out_width; ++column, out += w.channels) {
      Span columns(column * w.stride - w.left, w.side, w.width);
      const uint8_t* leftmost = tallest + (column * w.stride - w.left) * w.channels;
      std::copy_n(leftmost + columns.first * w.channels, w.channels, out);
      for (int64_t x = columns.first + 1; x < columns.last; ++x) take_larger(leftmost + x * w.channels, out, w.channels);
    }
  }
}

// The gradient of one image: what goes to each pixel, out of all windows that hold it.
template <typename T>
void differentiate(const Window& w, const T* gradient, const uint8_t* places, T* of_image, Arena& memory) {
  auto* sums = reinterpret_cast<float*>(memory.reserve(w.image() * sizeof(float)));
  std::fill_n(sums, w.image(), 0.0F);
  auto give_back = [=](int64_t row, int64_t column) SEEDBED_ALWAYS {
    int64_t at = (row * w.out_width + column) * w.channels;
    each_block(w.channels, [=](int64_t c, auto n) SEEDBED_ALWAYS {
      auto towards = load<n>(gradient + at + c);
      auto place = __builtin_convertvector(read<n>(places + at + c), Vector<int32_t, n>);
      each_pixel(w, row, column, [=](int64_t pixel, int32_t here) SEEDBED_ALWAYS {
        float* sum = sums + pixel + c;
        store<n>(load<n>(sum) + (place == here ? towards : Vector<float, n>{}), sum);
      });
    });
  };
  for (int64_t row = 0; row < w.out_height; ++row) {
    for (int64_t column = 0; column < w.out_width; ++column) give_back(row, column);
  }
  each_block(w.image(), [=](int64_t i, auto n) SEEDBED_ALWAYS { store<n>(load<n>(sums + i), of_image + i); });
}

}  // namespace pools
