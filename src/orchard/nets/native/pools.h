// Max-pools over images [N, H, W, C], and their gradients.
//
// oneDNN has them too, but its maximum of NaN is the lowest number that there is, and what follows would never learn that
// a network has diverged. Here NaN is larger than all. The gradient goes to the first of equal maxima, and is added up
// in float32.

#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "pieces.h"

namespace pools {

// Of one image and its windows, with the padding that is above and left of it.
struct Window {
  int64_t height, width, channels, out_height, out_width, side, stride, top, left;
};

// The part of a window that begins at `begin` which is inside of 0 … size.
struct Span {
  int64_t first, last;
  Span(int64_t begin, int64_t side, int64_t size)
      : first(begin < 0 ? -begin : 0), last(begin + side > size ? size - begin : side) {}
};

#define ORCHARD_INLINE inline __attribute__((always_inline))

ORCHARD_INLINE float to_float(float x) { return x; }
ORCHARD_INLINE float to_float(uint16_t bits) {  // bfloat16
  uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

ORCHARD_INLINE void store(float x, float* to) { *to = x; }
ORCHARD_INLINE void store(float x, uint16_t* to) {  // to the nearest, and of two the even one
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof x);
  uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *to = static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40 : rounded);
}

// One image. `places` has, for each maximum, which number of its window it was; none are kept if it is null. `best` and
// `place` have room for a number of each channel.
template <typename T>
ORCHARD_INLINE void pool_image(const Window& w, const T* image, T* out, uint8_t* places, float* __restrict best,
                               int32_t* __restrict place) {
  for (int64_t row = 0; row < w.out_height; ++row) {
    for (int64_t column = 0; column < w.out_width; ++column) {
      int64_t y0 = row * w.stride - w.top, x0 = column * w.stride - w.left;
      Span rows(y0, w.side, w.height), columns(x0, w.side, w.width);
      bool begun = false;
      for (int64_t y = rows.first; y < rows.last; ++y) {
        for (int64_t x = columns.first; x < columns.last; ++x) {
          const T* __restrict pixel = image + ((y0 + y) * w.width + x0 + x) * w.channels;
          int32_t here = static_cast<int32_t>(y * w.side + x);
          if (!begun) {
            for (int64_t c = 0; c < w.channels; ++c) best[c] = to_float(pixel[c]), place[c] = here;
            begun = true;
            continue;
          }
          for (int64_t c = 0; c < w.channels; ++c) {
            float number = to_float(pixel[c]);
            bool larger = (number > best[c]) | (number != number);
            best[c] = larger ? number : best[c];
            place[c] = larger ? here : place[c];
          }
        }
      }
      int64_t at = (row * w.out_width + column) * w.channels;
      for (int64_t c = 0; c < w.channels; ++c) store(best[c], out + at + c);
      if (places == nullptr) continue;
      for (int64_t c = 0; c < w.channels; ++c) places[at + c] = static_cast<uint8_t>(place[c]);
    }
  }
}

// The gradient of one image: what goes to each pixel, out of all windows that hold it.
template <typename T>
ORCHARD_INLINE void differentiate_image(const Window& w, const T* gradient, const uint8_t* places, T* of_image,
                                        float* __restrict sum) {
  for (int64_t y = 0; y < w.height; ++y) {
    for (int64_t x = 0; x < w.width; ++x) {
      for (int64_t c = 0; c < w.channels; ++c) sum[c] = 0;
      int64_t below = y + w.top, right = x + w.left;
      int64_t row = below < w.side ? 0 : (below - w.side) / w.stride + 1;
      for (; row < w.out_height && row * w.stride <= below; ++row) {
        int64_t column = right < w.side ? 0 : (right - w.side) / w.stride + 1;
        for (; column < w.out_width && column * w.stride <= right; ++column) {
          int64_t at = (row * w.out_width + column) * w.channels;
          const T* __restrict towards = gradient + at;
          const uint8_t* __restrict place = places + at;
          int32_t here = static_cast<int32_t>((below - row * w.stride) * w.side + right - column * w.stride);
          for (int64_t c = 0; c < w.channels; ++c) sum[c] += place[c] == here ? to_float(towards[c]) : 0.0F;
        }
      }
      T* to = of_image + (y * w.width + x) * w.channels;
      for (int64_t c = 0; c < w.channels; ++c) store(sum[c], to + c);
    }
  }
}

// Both for wider registers than every processor has, where it has them.
#if defined(__x86_64__)
template <typename T>
__attribute__((target("avx2"))) void pool_image_wide(const Window& w, const T* image, T* out, uint8_t* places,
                                                     float* best, int32_t* place) {
  pool_image(w, image, out, places, best, place);
}
template <typename T>
__attribute__((target("avx2"))) void differentiate_image_wide(const Window& w, const T* gradient,
                                                              const uint8_t* places, T* of_image, float* sum) {
  differentiate_image(w, gradient, places, of_image, sum);
}
inline bool wide() { return __builtin_cpu_supports("avx2"); }
#else
template <typename T>
void pool_image_wide(const Window& w, const T* image, T* out, uint8_t* places, float* best, int32_t* place) {
  pool_image(w, image, out, places, best, place);
}
template <typename T>
void differentiate_image_wide(const Window& w, const T* gradient, const uint8_t* places, T* of_image, float* sum) {
  differentiate_image(w, gradient, places, of_image, sum);
}
inline bool wide() { return false; }
#endif

template <typename T>
void pool(const Window& w, const T* image, T* out, uint8_t* places, Arena& memory) {
  auto* best = reinterpret_cast<float*>(memory.reserve(w.channels * (sizeof(float) + sizeof(int32_t))));
  auto* place = reinterpret_cast<int32_t*>(best + w.channels);
  if (wide()) return pool_image_wide(w, image, out, places, best, place);
  pool_image(w, image, out, places, best, place);
}

template <typename T>
void differentiate(const Window& w, const T* gradient, const uint8_t* places, T* of_image, Arena& memory) {
  auto* sum = reinterpret_cast<float*>(memory.reserve(w.channels * sizeof(float)));
  if (wide()) return differentiate_image_wide(w, gradient, places, of_image, sum);
  differentiate_image(w, gradient, places, of_image, sum);
}

}  // namespace pools
