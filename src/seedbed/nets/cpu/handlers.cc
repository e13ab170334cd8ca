// Convolutions and max-pools on a CPU: handlers for XLA's foreign function interface.
//
// A handler checks what it is handed and calls convolutions.h or pools.h. Whatever does not fit is refused with a message,
// and no exception leaves it.

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "convolutions.h"
#include "dnnl.h"
#include "pools.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Array = ffi::AnyBuffer;
using Result = ffi::Result<ffi::AnyBuffer>;
using Shape = ffi::Span<const int64_t>;
using convolutions::Layer;
using convolutions::Padding;

struct Misfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool fits, const char* what) {
  if (!fits) throw Misfit(what);
}

bool fits_along(int64_t size, int64_t window, int64_t before, int64_t after, int64_t stride, int64_t out) {
  constexpr int64_t most = int64_t{1} << 30;
  if (size > most || window > most || window < 1 || stride > most || stride < 1) return false;
  if (before < 0 || before >= window || after < 0 || after >= window) return false;  // a window holds some of the image
  int64_t padded = size + before + after;
  return padded >= window && out == (padded - window) / stride + 1;
}

// The layer between images and what comes out of them, whose type is the one in which it is computed.
Layer layer_of(const Array& images, const Array& out, Shape kernel, int64_t stride, Padding padding) {
  Shape in_shape = images.dimensions(), out_shape = out.dimensions();
  require(in_shape.size() == 4 && out_shape.size() == 4 && kernel.size() == 4, "images and kernels have four axes");
  require(out.element_type() == ffi::F32 || out.element_type() == ffi::BF16,
          "what comes out has to be float32 or bfloat16");
  bool of_bytes = images.element_type() == ffi::U8;
  require(of_bytes || images.element_type() == out.element_type(),
          "images have to be uint8, or of the type of what comes out");
  Layer layer{in_shape[0],
              in_shape[1],
              in_shape[2],
              in_shape[3],
              kernel[0],
              kernel[1],
              kernel[3],
              out_shape[1],
              out_shape[2],
              stride,
              padding,
              out.element_type() == ffi::F32 ? dnnl::kFloat32 : dnnl::kBFloat16,
              of_bytes};
  require(layer.height > 0 && layer.width > 0 && layer.channels > 0 && layer.features > 0, "images have to hold numbers");
  require(in_shape[0] == out_shape[0], "as many images have to come out as go in");
  require(in_shape[3] == kernel[2] && out_shape[3] == kernel[3], "channels and filters have to be those of the kernel");
  require(fits_along(layer.height, layer.rows, padding.top, padding.bottom, stride, layer.out_height) &&
              fits_along(layer.width, layer.columns, padding.left, padding.right, stride, layer.out_width),
          "heights and widths do not follow from kernel, stride and padding");
  return layer;
}

Layer convolution_of(const Array& images, const Array& out, Shape kernel, int64_t stride, Padding padding) {
  Layer layer = layer_of(images, out, kernel, stride, padding);
  require(convolutions::is_usual(layer), "a kernel has to see every pixel, and be no larger than the image");
  return layer;
}

void require_floats(const Array& buffer, int64_t numbers, const char* what) {
  require(buffer.element_type() == ffi::F32 && static_cast<int64_t>(buffer.element_count()) == numbers, what);
}

float* floats(const Array& buffer) { return static_cast<float*>(buffer.untyped_data()); }

void clear(const Array& buffer) {
  if (buffer.size_bytes() > 0) std::memset(buffer.untyped_data(), 0, buffer.size_bytes());
}

template <typename Compute>
ffi::Error guarded(const Compute& compute) {
  try {
    compute();
    return ffi::Error::Success();
  } catch (const Misfit& misfit) {
    return ffi::Error::InvalidArgument(std::string("seedbed: ") + misfit.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("seedbed: ") + error.what());
  }
}

// ---- Convolutions --------------------------------------------------------------------------------------------------

ffi::Error Convolve(ffi::ThreadPool pool, Array images, Array kernel, Array bias, Result out, int64_t rectified,
                    int64_t stride, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = convolution_of(images, *out, kernel.dimensions(), stride, {top, bottom, left, right});
    require_floats(kernel, layer.weights(), "a kernel has to be float32");
    require_floats(bias, layer.features, "a bias has to be float32, one number for each filter");
    if (layer.n == 0) return;
    convolutions::convolve(pool, layer, images.untyped_data(), floats(kernel), floats(bias), rectified != 0,
                           out->untyped_data());
  });
}

ffi::Error DifferentiateByImages(ffi::ThreadPool pool, Array gradient, Array kernel, Result of_images,
                                 int64_t stride, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = convolution_of(*of_images, gradient, kernel.dimensions(), stride, {top, bottom, left, right});
    require(!layer.of_bytes, "uint8 has no gradient");
    require_floats(kernel, layer.weights(), "a kernel has to be float32");
    if (layer.n == 0) return;
    convolutions::differentiate_by_images(pool, layer, gradient.untyped_data(), floats(kernel),
                                          of_images->untyped_data());
  });
}

ffi::Error DifferentiateByKernel(ffi::ThreadPool pool, Array images, Array gradient, Result of_kernel,
                                 Result of_bias, int64_t stride, int64_t top, int64_t bottom, int64_t left,
                                 int64_t right) {
  return guarded([&] {
    Layer layer = convolution_of(images, gradient, of_kernel->dimensions(), stride, {top, bottom, left, right});
    require_floats(*of_kernel, layer.weights(), "the gradient of a kernel has to be float32");
    require_floats(*of_bias, layer.features, "the gradient of a bias has to be float32, one number for each filter");
    if (layer.n == 0) {
      clear(*of_kernel);
      return clear(*of_bias);
    }
    convolutions::differentiate_by_kernel(pool, layer, images.untyped_data(), gradient.untyped_data(),
                                          floats(*of_kernel), floats(*of_bias));
  });
}

// ---- Max-pools -----------------------------------------------------------------------------------------------------

struct Pooling {
  pools::Window window;
  int64_t n;
  ffi::DataType type;
};

Pooling pooling_of(const Array& images, const Array& out, int64_t side, int64_t stride, Padding padding) {
  Shape shape = images.dimensions(), out_shape = out.dimensions();
  require(shape.size() == 4 && out_shape.size() == 4, "images have four axes");
  require(images.element_type() == out.element_type(), "images and what comes out of them have one type");
  require(side <= pools::kLargestSide, "a window's numbers have to be countable in a uint8");
  require(shape[0] == out_shape[0] && shape[3] == out_shape[3], "as many images and channels have to come out as go in");
  require(shape[1] > 0 && shape[2] > 0 && shape[3] > 0, "images have to hold numbers");
  require(fits_along(shape[1], side, padding.top, padding.bottom, stride, out_shape[1]) &&
              fits_along(shape[2], side, padding.left, padding.right, stride, out_shape[2]),
          "heights and widths do not follow from window, stride and padding");
  return {{shape[1], shape[2], shape[3], out_shape[1], out_shape[2], side, stride, padding.top, padding.left},
          shape[0],
          images.element_type()};
}

// Calls work(image, number), with a number of the images' type, for each of them.
template <typename Work>
void each_image(ffi::ThreadPool& pool, const Pooling& pooling, const Work& work) {
  if (pooling.n == 0) return;
  int64_t least = convolutions::images_in_each(pooling.n, convolutions::kImagesInAPiece);
  Pieces pieces = Pieces::of(pooling.n, least, pooling.n);
  in_parallel(pool, pieces.count, [&](int64_t piece) {
    int64_t begin = pieces.begin(piece), end = begin + pieces.size_of(piece);
    for (int64_t image = begin; image < end; ++image) {
      if (pooling.type == ffi::F32) {
        work(image, float{});
      } else if (pooling.type == ffi::BF16) {
        work(image, uint16_t{});
      } else {
        work(image, uint8_t{});
      }
    }
  });
}

// `places` may be null: then they are not kept. Those of bytes are never.
void max_pool(ffi::ThreadPool& pool, const Pooling& pooling, const Array& images, const Array& out, uint8_t* places) {
  require(pooling.type == ffi::F32 || pooling.type == ffi::BF16 || pooling.type == ffi::U8,
          "images have to be float32, bfloat16 or uint8");
  const pools::Window& window = pooling.window;
  each_image(pool, pooling, [&](int64_t image, auto number) {
    using T = decltype(number);
    const T* from = static_cast<const T*>(images.untyped_data()) + image * window.image();
    T* to = static_cast<T*>(out.untyped_data()) + image * window.out_image();
    if constexpr (sizeof(T) == 1) {
      pools::pool_bytes(window, from, to, convolutions::piece_memory);
    } else {
      pools::pool(window, from, to, places == nullptr ? nullptr : places + image * window.out_image());
    }
  });
}

uint8_t* places_of(const Array& places, const Pooling& pooling) {
  require(places.element_type() == ffi::U8 &&
              static_cast<int64_t>(places.element_count()) == pooling.n * pooling.window.out_image(),
          "the places of maxima have to be uint8, one for each");
  return static_cast<uint8_t*>(places.untyped_data());
}

ffi::Error MaxPool(ffi::ThreadPool pool, Array images, Result out, int64_t window, int64_t stride, int64_t top,
                   int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Pooling pooling = pooling_of(images, *out, window, stride, {top, bottom, left, right});
    max_pool(pool, pooling, images, *out, nullptr);
  });
}

ffi::Error MaxPoolKeeping(ffi::ThreadPool pool, Array images, Result out, Result places, int64_t window, int64_t stride,
                          int64_t top, int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Pooling pooling = pooling_of(images, *out, window, stride, {top, bottom, left, right});
    require(pooling.type != ffi::U8, "uint8 has no gradient");
    max_pool(pool, pooling, images, *out, places_of(*places, pooling));
  });
}

ffi::Error DifferentiateMaxPool(ffi::ThreadPool pool, Array gradient, Array places, Result of_images, int64_t window,
                                int64_t stride, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Pooling pooling = pooling_of(*of_images, gradient, window, stride, {top, bottom, left, right});
    require(pooling.type == ffi::F32 || pooling.type == ffi::BF16, "gradients have to be float32 or bfloat16");
    const uint8_t* kept = places_of(places, pooling);
    const pools::Window& sizes = pooling.window;
    each_image(pool, pooling, [&](int64_t image, auto number) {
      using T = decltype(number);
      if constexpr (sizeof(T) > 1) {
        pools::differentiate(sizes, static_cast<const T*>(gradient.untyped_data()) + image * sizes.out_image(),
                             kept + image * sizes.out_image(),
                             static_cast<T*>(of_images->untyped_data()) + image * sizes.image(),
                             convolutions::piece_memory);
      }
    });
  });
}

template <typename Binding>
auto padded(Binding binding) {
  return std::move(binding)
      .template Attr<int64_t>("stride")
      .template Attr<int64_t>("top")
      .template Attr<int64_t>("bottom")
      .template Attr<int64_t>("left")
      .template Attr<int64_t>("right");
}

auto pooled() { return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>(); }

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    seedbed_convolve, Convolve,
    padded(pooled().Arg<Array>().Arg<Array>().Arg<Array>().Ret<Array>().Attr<int64_t>("rectified")));
XLA_FFI_DEFINE_HANDLER_SYMBOL(seedbed_convolution_by_images, DifferentiateByImages,
                              padded(pooled().Arg<Array>().Arg<Array>().Ret<Array>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(seedbed_convolution_by_kernel, DifferentiateByKernel,
                              padded(pooled().Arg<Array>().Arg<Array>().Ret<Array>().Ret<Array>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(seedbed_max_pool, MaxPool,
                              padded(pooled().Arg<Array>().Ret<Array>().Attr<int64_t>("window")));
XLA_FFI_DEFINE_HANDLER_SYMBOL(seedbed_max_pool_keeping, MaxPoolKeeping,
                              padded(pooled().Arg<Array>().Ret<Array>().Ret<Array>().Attr<int64_t>("window")));
XLA_FFI_DEFINE_HANDLER_SYMBOL(seedbed_max_pool_by_images, DifferentiateMaxPool,
                              padded(pooled().Arg<Array>().Arg<Array>().Ret<Array>().Attr<int64_t>("window")));

// Opens oneDNN; returns null, or why it could not. What is returned lives until the next call.
extern "C" const char* seedbed_open(const char* path) {
  static std::string why;
  try {
    dnnl::open(path);
    return nullptr;
  } catch (const std::exception& error) {
    why = error.what();
    return why.c_str();
  }
}

// Of the library that was opened: major * 10000 + minor * 100 + patch.
extern "C" int seedbed_version() {
  const dnnl::Version* version = dnnl::library.version();
  return version->major * 10000 + version->minor * 100 + version->patch;
}

// Whether the processor, and the library on it, multiplies bfloat16 as such.
extern "C" int seedbed_has_bfloat16() {
  return (dnnl::library.get_effective_cpu_isa() & dnnl::kIsaWithBFloat16) != 0;
}
