// Arithmetic on rows of numbers, float32, bfloat16 (as its 16 bits) or uint8, some of them at a time.
//
// Vectors are written as such, with what GCC and Clang have for that on every processor: whether a compiler sees one in a
// loop depends on what stands around it. The extension is compiled for the processor that it is compiled on.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace numbers {

#define SEEDBED_ALWAYS __attribute__((always_inline))
#define SEEDBED_INLINE inline SEEDBED_ALWAYS

// float32 in a register; GCC compares longer vectors number by number.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

template <typename T, int N>
struct VectorOf {
  typedef T Type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T, int N>
using Vector = typename VectorOf<T, N>::Type;

template <int N, typename T>
SEEDBED_INLINE Vector<T, N> read(const T* from) {
  Vector<T, N> numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return numbers;
}

template <typename To, typename From>
SEEDBED_INLINE To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <int N>
SEEDBED_INLINE Vector<float, N> load(const float* from) {
  return read<N>(from);
}
template <int N>
SEEDBED_INLINE Vector<float, N> load(const uint16_t* from) {
  return bits_of<Vector<float, N>>(__builtin_convertvector(read<N>(from), Vector<uint32_t, N>) << 16);
}
template <int N>
SEEDBED_INLINE Vector<float, N> load(const uint8_t* from) {
  return __builtin_convertvector(__builtin_convertvector(read<N>(from), Vector<int32_t, N>), Vector<float, N>);
}

template <int N>
SEEDBED_INLINE void store(const Vector<float, N>& x, float* to) {
  std::memcpy(to, &x, sizeof x);
}
template <int N>
SEEDBED_INLINE void store(const Vector<float, N>& x, uint16_t* to) {  // to the nearest, and of two the even one
  auto bits = bits_of<Vector<uint32_t, N>>(x);
  auto rounded = bits + 0x7fff + ((bits >> 16) & 1);
  auto narrow = __builtin_convertvector((x == x ? rounded : bits | 0x400000) >> 16, Vector<uint16_t, N>);
  std::memcpy(to, &narrow, sizeof narrow);
}

// Calls work(first, how many) for all of `count` numbers; how many is a constant.
template <typename Work>
SEEDBED_INLINE void each_block(int64_t count, const Work& work) {
  constexpr std::integral_constant<int, kWidth> all;
  constexpr std::integral_constant<int, 4> some;
  constexpr std::integral_constant<int, 1> one;
  int64_t i = 0;
  for (; i + all <= count; i += all) work(i, all);
  for (; i + some <= count; i += some) work(i, some);
  for (; i < count; ++i) work(i, one);
}

// What is negative becomes 0. NaN stays, so that what has diverged is seen to have.
template <typename T>
void rectify(T* numbers, int64_t count) {
  each_block(count, [=](int64_t i, auto n) SEEDBED_ALWAYS {
    auto x = load<n>(numbers + i);
    store<n>(x < 0 ? Vector<float, n>{} : x, numbers + i);
  });
}

// uint8 as 0 … 1.
template <typename T>
void scale(const uint8_t* from, T* to, int64_t count) {
  each_block(count, [=](int64_t i, auto n) SEEDBED_ALWAYS { store<n>(load<n>(from + i) * (1.0F / 255), to + i); });
}

}  // namespace numbers
