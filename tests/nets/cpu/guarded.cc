// Random layers between pages that nobody may touch, against sums written out: guarded LIBRARY SEED LAYERS [bfloat16]
//
// Every array ends where such a page begins, or begins where one ends: what reads or writes one number too many, oneDNN's
// machine code too, which no sanitizer sees, ends the process. Prints what differs, and ends with 1 if anything does.

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "convolutions.h"
#include "pools.h"

namespace {

using convolutions::Layer;

// Threads as XLA's pool has them, one for every task.
class Threads {
 public:
  ~Threads() {
    for (auto& thread : threads_) thread.join();
  }
  int64_t num_threads() const { return 2; }
  void Schedule(std::function<void()> task) { threads_.emplace_back(std::move(task)); }

 private:
  std::vector<std::thread> threads_;
};

// Some bytes with a forbidden page right before them or right after them.
class Guarded {
 public:
  Guarded(size_t bytes, bool at_end) {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), inner = (bytes + page - 1) / page * page;
    mapped_ = inner + 2 * page;
    all_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (all_ == MAP_FAILED || mprotect(all_ + page, inner, PROT_READ | PROT_WRITE) != 0) std::abort();
    data_ = all_ + page + (at_end ? inner - bytes : 0);
    std::memset(data_, 0xff, bytes);  // NaN, so that what is read before it is written shows
  }
  ~Guarded() { munmap(all_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  void forbid_writing() const { mprotect(all_ + sysconf(_SC_PAGESIZE), mapped_ - 2 * sysconf(_SC_PAGESIZE), PROT_READ); }

 private:
  size_t mapped_;
  char *all_, *data_;
};

std::mt19937 random_bits;
int64_t between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_bits); }
float number() { return std::normal_distribution<float>()(random_bits); }

float rounded(float x, dnnl::DataType type) {
  if (type == dnnl::kFloat32) return x;
  uint16_t narrow;
  numbers::store<1>(numbers::Vector<float, 1>{x}, &narrow);
  return numbers::load<1>(&narrow)[0];
}

// An array of the layer's type, or of float32 or uint8, filled by `make`.
struct Filled {
  Guarded guarded;
  std::vector<double> numbers;

  Filled(int64_t count, int bytes, bool at_end, const std::function<float()>& make) : guarded(count * bytes, at_end) {
    for (int64_t i = 0; i < count; ++i) {
      float x = make();
      if (bytes == 4) guarded.as<float>()[i] = x;
      if (bytes == 2) numbers::store<1>(numbers::Vector<float, 1>{x}, guarded.as<uint16_t>() + i);
      if (bytes == 1) guarded.as<uint8_t>()[i] = static_cast<uint8_t>(x);
      numbers.push_back(x);
    }
    guarded.forbid_writing();
  }
};

double read(const Guarded& from, int bytes, int64_t i) {
  return bytes == 4 ? from.as<float>()[i] : numbers::load<1>(from.as<uint16_t>() + i)[0];
}

int failures = 0;

void compare(const char* what, const Layer& l, const Guarded& found, int bytes, const std::vector<double>& wanted) {
  double largest = 1, off = 0;
  for (double x : wanted) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < wanted.size(); ++i) {
    double difference = std::abs(read(found, bytes, static_cast<int64_t>(i)) - wanted[i]);
    off = std::isnan(difference) ? INFINITY : std::max(off, difference);  // NaN is what nobody has written
  }
  if (off <= (bytes == 4 ? 1e-4 : 1e-2) * largest) return;
  ++failures;
  std::printf("%s: off by %g of %g: images %ldx%ldx%ldx%ld, kernel %ldx%ld, %ld features, stride %ld, padding %ld %ld %ld %ld"
              ", %s%s\n",
              what, off, largest, l.n, l.height, l.width, l.channels, l.rows, l.columns, l.features, l.stride,
              l.padding.top, l.padding.bottom, l.padding.left, l.padding.right,
              l.type == dnnl::kFloat32 ? "float32" : "bfloat16", l.of_bytes ? " of uint8" : "");
}

Layer random_layer(bool bfloat16) {
  while (true) {
    Layer l{};
    bool long_batch = between(0, 3) == 0;
    l.n = long_batch ? between(1, 70) : between(1, 20);
    l.height = between(1, 14);
    l.width = between(1, 14);
    l.channels = between(0, 3) == 0 ? 16 * between(1, 2) : between(1, 9);
    l.features = between(0, 3) == 0 ? 16 * between(1, 3) : between(1, 9);
    l.rows = between(1, 5);
    l.columns = between(1, 5);
    l.stride = between(1, 4);
    l.padding = {between(0, l.rows - 1), between(0, l.rows - 1), between(0, l.columns - 1), between(0, l.columns - 1)};
    int64_t down = l.height + l.padding.top + l.padding.bottom - l.rows;
    int64_t across = l.width + l.padding.left + l.padding.right - l.columns;
    if (down < 0 || across < 0) continue;
    l.out_height = down / l.stride + 1;
    l.out_width = across / l.stride + 1;
    if (!convolutions::is_usual(l)) continue;
    l.type = bfloat16 && between(0, 1) == 0 ? dnnl::kBFloat16 : dnnl::kFloat32;
    l.of_bytes = between(0, 3) == 0;
    return l;
  }
}

// A layer with padding SAME or VALID.
Layer layer_of(int64_t n, int64_t side, int64_t channels, int64_t kernel, int64_t features, int64_t stride, bool same) {
  int64_t out = same ? (side + stride - 1) / stride : (side - kernel) / stride + 1;
  int64_t missing = same ? std::max<int64_t>((out - 1) * stride + kernel - side, 0) : 0;
  int64_t before = missing / 2, after = missing - before;
  return {n, side, side, channels, kernel, kernel, features, out, out, stride, {before, after, before, after},
          dnnl::kFloat32};
}

// Of the networks that Seedbed has, for pictures of 84x84 with four channels.
std::vector<Layer> layers_of_networks(int64_t n) {
  std::vector<Layer> layers = {
      layer_of(n, 84, 4, 8, 32, 4, false), layer_of(n, 20, 32, 4, 64, 2, false), layer_of(n, 9, 64, 3, 64, 1, false),
      layer_of(n, 84, 4, 8, 16, 4, false), layer_of(n, 20, 16, 4, 32, 2, false), layer_of(n, 84, 4, 8, 16, 4, true),
      layer_of(n, 21, 16, 4, 32, 2, true), layer_of(n, 42, 4, 4, 16, 2, false),  layer_of(n, 20, 16, 4, 16, 2, false),
      layer_of(n, 84, 4, 3, 16, 1, true),  layer_of(n, 42, 16, 3, 16, 1, true),  layer_of(n, 42, 16, 3, 32, 1, true),
      layer_of(n, 21, 32, 3, 32, 1, true), layer_of(n, 11, 32, 3, 32, 1, true),  layer_of(n, 10, 4, 3, 16, 1, false),
  };
  for (Layer& layer : layers) layer.of_bytes = layer.channels == 4;
  layers.push_back(layer_of(600 + n, 5, 3, 2, 5, 1, false));  // more summands than a gradient of a kernel has
  return layers;
}

// Calls visit(image, out, kernel) for every product of the layer: the index of each of the three.
template <typename Visit>
void each_product(const Layer& l, const Visit& visit) {
  for (int64_t n = 0; n < l.n; ++n)
    for (int64_t oy = 0; oy < l.out_height; ++oy)
      for (int64_t ox = 0; ox < l.out_width; ++ox)
        for (int64_t ky = 0; ky < l.rows; ++ky)
          for (int64_t kx = 0; kx < l.columns; ++kx) {
            int64_t y = oy * l.stride - l.padding.top + ky, x = ox * l.stride - l.padding.left + kx;
            if (y < 0 || x < 0 || y >= l.height || x >= l.width) continue;
            int64_t image = ((n * l.height + y) * l.width + x) * l.channels;
            int64_t out = ((n * l.out_height + oy) * l.out_width + ox) * l.features;
            int64_t kernel = (ky * l.columns + kx) * l.channels * l.features;
            for (int64_t c = 0; c < l.channels; ++c)
              for (int64_t f = 0; f < l.features; ++f) visit(image + c, out + f, kernel + c * l.features + f);
          }
}

void check_convolution(const Layer& l, bool at_end) {
  int bytes = static_cast<int>(l.bytes());
  auto own = [&] { return rounded(number(), l.type); };
  Filled images(l.n * l.numbers(), l.of_bytes ? 1 : bytes, at_end,
                l.of_bytes ? std::function<float()>([] { return float(between(0, 255)); }) : own);
  if (l.of_bytes) {
    for (double& x : images.numbers) x = rounded(float(x) * (1.0F / 255), l.type);
  }
  Filled kernel(l.weights(), 4, at_end, number), bias(l.features, 4, at_end, number);
  Filled towards(l.n * l.out_numbers(), bytes, at_end, own);
  for (double& x : kernel.numbers) x = rounded(float(x), l.type);
  Guarded out(l.n * l.out_image(), at_end), of_images(l.n * l.numbers() * bytes, at_end);
  Guarded of_kernel(l.weights() * 4, at_end), of_bias(l.features * 4, at_end);
  bool rectified = between(0, 1) == 0;

  {
    Threads pool;
    convolutions::convolve(pool, l, images.guarded.as<void>(), kernel.guarded.as<float>(), bias.guarded.as<float>(),
                           rectified, out.as<void>());
    convolutions::differentiate_by_kernel(pool, l, images.guarded.as<void>(), towards.guarded.as<void>(),
                                          of_kernel.as<float>(), of_bias.as<float>());
    if (!l.of_bytes) {
      convolutions::differentiate_by_images(pool, l, towards.guarded.as<void>(), kernel.guarded.as<float>(),
                                            of_images.as<void>());
    }
  }

  std::vector<double> wanted(l.n * l.out_numbers()), image(l.n * l.numbers()), weights(l.weights()), shift(l.features);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = bias.numbers[i % l.features];
  for (size_t i = 0; i < wanted.size(); ++i) shift[i % l.features] += towards.numbers[i];
  each_product(l, [&](int64_t i, int64_t o, int64_t k) {
    wanted[o] += images.numbers[i] * kernel.numbers[k];
    image[i] += towards.numbers[o] * kernel.numbers[k];
    weights[k] += towards.numbers[o] * images.numbers[i];
  });
  if (rectified) {
    for (double& x : wanted) x = std::max(x, 0.0);
  }
  compare("convolution", l, out, bytes, wanted);
  compare("gradient of the kernel", l, of_kernel, 4, weights);
  compare("gradient of the bias", l, of_bias, 4, shift);
  if (!l.of_bytes) compare("gradient of the images", l, of_images, bytes, image);
}

pools::Window window_of(const Layer& l) {
  return {l.height, l.width, l.channels, l.out_height, l.out_width, l.rows, l.stride, l.padding.top, l.padding.left};
}

template <typename T>
void check_pool(const Layer& l, bool at_end) {
  pools::Window w = window_of(l);
  auto own = [&] { return rounded(number(), l.type); };
  Filled image(w.image(), sizeof(T), at_end, own), towards(w.out_image(), sizeof(T), at_end, own);
  Guarded out(w.out_image() * sizeof(T), at_end), places(w.out_image(), at_end), of_image(w.image() * sizeof(T), at_end);
  Arena memory;
  pools::pool(w, image.guarded.as<const T>(), out.as<T>(), places.as<uint8_t>());
  pools::differentiate(w, towards.guarded.as<const T>(), places.as<const uint8_t>(), of_image.as<T>(), memory);

  Layer one = l.with(1);
  one.features = 1;
  std::vector<double> wanted(w.out_image(), -INFINITY), back(w.image());
  std::vector<int64_t> from(w.out_image());
  each_product(one, [&](int64_t i, int64_t o, int64_t) {
    int64_t to = o * l.channels + i % l.channels;
    if (image.numbers[i] > wanted[to]) wanted[to] = image.numbers[i], from[to] = i;
  });
  for (size_t i = 0; i < from.size(); ++i) back[from[i]] += towards.numbers[i];
  compare("max-pool", l, out, sizeof(T), wanted);
  compare("gradient of a max-pool", l, of_image, sizeof(T), back);
}

void check_pool_of_bytes(const Layer& l, bool at_end) {
  pools::Window w = window_of(l);
  Filled image(w.image(), 1, at_end, [] { return static_cast<double>(between(0, 255)); });
  Guarded out(w.out_image(), at_end);
  Arena memory;
  pools::pool_bytes(w, image.guarded.as<const uint8_t>(), out.as<uint8_t>(), memory);
  for (int64_t row = 0, at = 0; row < w.out_height; ++row) {
    for (int64_t column = 0; column < w.out_width; ++column) {
      for (int64_t c = 0; c < w.channels; ++c, ++at) {
        double wanted = -1;
        pools::each_pixel(w, row, column, [&](int64_t pixel, int32_t) { wanted = std::max(wanted, image.numbers[pixel + c]); });
        if (out.as<uint8_t>()[at] == wanted) continue;
        ++failures;
        std::printf("a max-pool of bytes gave %d for %g\n", out.as<uint8_t>()[at], wanted);
      }
    }
  }
}

// Several threads that meet a layer for the first time at once get the bits that one alone gets.
void check_threads(const Layer& l) {
  int bytes = static_cast<int>(l.bytes());
  Filled images(l.n * l.numbers(), bytes, true, number), kernel(l.weights(), 4, true, number);
  Filled bias(l.features, 4, true, number);
  constexpr int kThreads = 4;
  std::vector<std::vector<char>> results(kThreads);
  auto compute = [&](int thread) {
    std::vector<char> out(l.n * l.out_image()), sums((l.weights() + l.features) * sizeof(float));
    auto* of_kernel = reinterpret_cast<float*>(sums.data());
    Threads pool;
    convolutions::convolve(pool, l, images.guarded.as<void>(), kernel.guarded.as<float>(), bias.guarded.as<float>(), true,
                           out.data());
    convolutions::differentiate_by_kernel(pool, l, images.guarded.as<void>(), out.data(), of_kernel,
                                          of_kernel + l.weights());
    out.insert(out.end(), sums.begin(), sums.end());
    results[thread] = out;
  };
  {
    Threads callers;
    for (int thread = 0; thread < kThreads; ++thread) callers.Schedule([=] { compute(thread); });
  }
  for (const auto& result : results) {
    if (result == results[0]) continue;
    ++failures;
    std::printf("threads got other bits than one another\n");
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) return std::fputs("guarded LIBRARY SEED LAYERS [bfloat16]\n", stderr), 2;
  dnnl::open(arguments[1]);
  random_bits.seed(static_cast<unsigned>(std::atoi(arguments[2])));
  std::vector<Layer> layers = layers_of_networks(between(1, 9));
  bool has_bfloat16 = count > 4;
  if (has_bfloat16) {
    for (Layer layer : std::vector<Layer>(layers)) {
      layer.type = dnnl::kBFloat16;
      layers.push_back(layer);
    }
  }
  for (int layer = std::atoi(arguments[3]); layer > 0; --layer) layers.push_back(random_layer(has_bfloat16));
  for (Layer& layer : layers) {
    bool at_end = between(0, 1) == 0;
    check_convolution(layer, at_end);
    layer.columns = layer.rows;
    layer.padding.left = layer.padding.right = 0;
    if (layer.width < layer.columns) continue;
    layer.out_width = (layer.width - layer.columns) / layer.stride + 1;
    if (layer.type == dnnl::kFloat32) {
      check_pool<float>(layer, at_end);
    } else {
      check_pool<uint16_t>(layer, at_end);
    }
    check_pool_of_bytes(layer, at_end);
  }
  check_threads(layer_of(37, 23, 5, 3, 7, 2, true));
  std::printf("%d differ\n", failures);
  return failures ? 1 : 0;
}
