// Convolutions by oneDNN and max-pools on a CPU, forward and backward: handlers for XLA's foreign function interface.
//
// Images are [N, H, W, C], float32 or bfloat16; kernels [kh, kw, in, out] and biases [out] are float32 always, and so
// are their gradients. oneDNN reads and writes images where they are; kernels, which are small, it wants in an order of
// its own, into which they are brought in every call.
//
// A batch is computed in pieces (pieces.h), each by one thread. Of every piece's size there is one plan: oneDNN's
// primitive, which is compiled when it is first needed and then kept. Whatever does not fit is refused with a message,
// and no exception leaves a handler.

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dnnl.h"
#include "pieces.h"
#include "pools.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Shape = ffi::Span<const int64_t>;

constexpr int64_t kImagesInAPiece = 8;
// The gradient of a kernel is a sum over pieces, and takes the memory of a kernel for each.
constexpr int64_t kImagesInASummand = 16, kMostSummands = 32;
constexpr int64_t kBytesOfSummands = int64_t{64} << 20;
constexpr int64_t kNumbersInASum = 4096;
constexpr int64_t kLargestWindow = 15;

struct Misfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool fits, const char* what) {
  if (!fits) throw Misfit(what);
}

// ---- What is computed ----------------------------------------------------------------------------------------------

enum Operation : int64_t { kForward, kOfImages, kOfKernel };

struct Padding {
  int64_t top, bottom, left, right;
};

// Sizes of a layer, for `n` images.
struct Layer {
  int64_t n, height, width, channels;      // of the images
  int64_t rows, columns, features;         // of the kernel or the window; a window leaves channels as they are
  int64_t out_height, out_width, stride;
  Padding padding;
  dnnl::DataType type;

  int64_t image() const { return height * width * channels * bytes(); }
  int64_t out_image() const { return out_height * out_width * features * bytes(); }
  int64_t out_numbers() const { return out_height * out_width * features; }
  int64_t weights() const { return rows * columns * channels * features; }
  int64_t bytes() const { return type == dnnl::kBFloat16 ? 2 : 4; }
  bool empty() const { return n == 0; }

  Layer with(int64_t images) const {
    Layer other = *this;
    other.n = images;
    return other;
  }

  std::vector<int64_t> key(Operation operation) const {
    return {operation, n,         height, width,       channels,       rows,         columns,       features,
            out_height, out_width, stride, padding.top, padding.bottom, padding.left, padding.right, type};
  }
};

dnnl::DataType type_of(ffi::DataType type) {
  require(type == ffi::F32 || type == ffi::BF16, "images have to be float32 or bfloat16");
  return type == ffi::F32 ? dnnl::kFloat32 : dnnl::kBFloat16;
}

bool fits_along(int64_t size, int64_t window, int64_t before, int64_t after, int64_t stride, int64_t out) {
  constexpr int64_t most = int64_t{1} << 30;
  if (size > most || window > most || window < 1 || stride > most || stride < 1) return false;
  if (before < 0 || before >= window || after < 0 || after >= window) return false;  // a window holds some of the image
  int64_t padded = size + before + after;
  return padded >= window && out == (padded - window) / stride + 1;
}

// The layer between images and what comes out of them; throws Misfit if there is none.
Layer layer_of(const ffi::AnyBuffer& images, const ffi::AnyBuffer& out, Shape kernel, int64_t stride, Padding padding) {
  Shape in_shape = images.dimensions(), out_shape = out.dimensions();
  require(in_shape.size() == 4 && out_shape.size() == 4 && kernel.size() == 4, "images and kernels have four axes");
  require(images.element_type() == out.element_type(), "images and what comes out of them have one type");
  Layer layer{in_shape[0], in_shape[1], in_shape[2], in_shape[3],  kernel[0], kernel[1],
              kernel[3],   out_shape[1], out_shape[2], stride, padding, type_of(images.element_type())};
  require(layer.height > 0 && layer.width > 0 && layer.channels > 0 && layer.features > 0, "images have to hold numbers");
  require(in_shape[0] == out_shape[0], "as many images have to come out as go in");
  require(in_shape[3] == kernel[2] && out_shape[3] == kernel[3], "channels and filters have to be those of the kernel");
  require(fits_along(layer.height, layer.rows, padding.top, padding.bottom, stride, layer.out_height) &&
              fits_along(layer.width, layer.columns, padding.left, padding.right, stride, layer.out_width),
          "heights and widths do not follow from kernel, stride and padding");
  return layer;
}

void require_floats(const ffi::AnyBuffer& buffer, int64_t numbers, const char* what) {
  require(buffer.element_type() == ffi::F32 && static_cast<int64_t>(buffer.element_count()) == numbers, what);
}

// ---- Plans ---------------------------------------------------------------------------------------------------------

dnnl::OwnedMemoryDesc strided(std::vector<int64_t> sizes, std::vector<int64_t> strides, dnnl::DataType type) {
  dnnl::Dims size = {}, stride = {};
  std::copy(sizes.begin(), sizes.end(), size);
  std::copy(strides.begin(), strides.end(), stride);
  dnnl::MemoryDesc* desc = nullptr;
  dnnl::check(dnnl::library.memory_desc_create_with_strides(&desc, static_cast<int>(sizes.size()), size, type, stride),
              "describe an array");
  return dnnl::OwnedMemoryDesc(desc);
}

// [N, H, W, C], in oneDNN's order of axes: N, C, H, W.
dnnl::OwnedMemoryDesc images_desc(int64_t n, int64_t h, int64_t w, int64_t c, dnnl::DataType type) {
  return strided({n, c, h, w}, {h * w * c, 1, w * c, c}, type);
}

// [kh, kw, in, out], in oneDNN's order of axes: out, in, kh, kw.
dnnl::OwnedMemoryDesc kernel_desc(const Layer& layer) {
  int64_t in = layer.channels, out = layer.features;
  return strided({out, in, layer.rows, layer.columns}, {1, out, layer.columns * in * out, in * out}, dnnl::kFloat32);
}

dnnl::OwnedMemoryDesc any_kernel_desc(const Layer& layer, dnnl::DataType type) {
  dnnl::Dims sizes = {layer.features, layer.channels, layer.rows, layer.columns};
  dnnl::MemoryDesc* desc = nullptr;
  dnnl::check(dnnl::library.memory_desc_create_with_tag(&desc, 4, sizes, type, dnnl::kAnyLayout), "describe a kernel");
  return dnnl::OwnedMemoryDesc(desc);
}

dnnl::OwnedMemoryDesc copy_of(const dnnl::MemoryDesc* desc) {
  dnnl::MemoryDesc* copy = nullptr;
  dnnl::check(dnnl::library.memory_desc_clone(&copy, desc), "copy a description");
  return dnnl::OwnedMemoryDesc(copy);
}

dnnl::OwnedPrimitive primitive_of(const dnnl::PrimitiveDesc* desc) {
  dnnl::Primitive* primitive = nullptr;
  dnnl::check(dnnl::library.primitive_create(&primitive, desc), "compile a layer");
  return dnnl::OwnedPrimitive(primitive);
}

dnnl::OwnedPrimitive reorder(const dnnl::MemoryDesc* from, const dnnl::MemoryDesc* to) {
  dnnl::PrimitiveDesc* desc = nullptr;
  dnnl::check(dnnl::library.reorder_primitive_desc_create(&desc, from, dnnl::library.engine, to, dnnl::library.engine,
                                                          nullptr),
              "bring a kernel into its order");
  return primitive_of(dnnl::OwnedPrimitiveDesc(desc).get());
}

// How one operation is computed for so many images; it never changes, and any number of threads may use it at once.
struct Plan {
  dnnl::OwnedMemoryDesc images, out, kernel, bias, ordered_kernel, scratchpad;
  dnnl::OwnedPrimitive primitive, reorder;
  size_t ordered_bytes = 0, scratch_bytes = 0;
};

struct Sizes {
  dnnl::Dims stride, dilation = {}, before, after;
  explicit Sizes(const Layer& layer)
      : stride{layer.stride, layer.stride},
        before{layer.padding.top, layer.padding.left},
        after{layer.padding.bottom, layer.padding.right} {}
};

dnnl::OwnedPrimitiveDesc describe(Operation operation, const Layer& layer, const Plan& plan,
                                              const dnnl::Attributes* attributes) {
  const auto& dnn = dnnl::library;
  Sizes sizes(layer);
  auto weights = any_kernel_desc(layer, layer.type);
  dnnl::PrimitiveDesc* desc = nullptr;
  dnnl::check(dnn.convolution_forward_primitive_desc_create(
                  &desc, dnn.engine, dnnl::kForwardTraining, dnnl::kConvolutionDirect, plan.images.get(), weights.get(),
                  operation == kOfImages ? nullptr : plan.bias.get(), plan.out.get(), sizes.stride, sizes.dilation,
                  sizes.before, sizes.after, attributes),
              "convolve such images");
  dnnl::OwnedPrimitiveDesc forward(desc);
  if (operation == kForward) return forward;
  if (operation == kOfImages) {
    dnnl::check(dnn.convolution_backward_data_primitive_desc_create(
                    &desc, dnn.engine, dnnl::kConvolutionDirect, plan.images.get(), weights.get(), plan.out.get(),
                    sizes.stride, sizes.dilation, sizes.before, sizes.after, forward.get(), attributes),
                "differentiate a convolution by such images");
  } else {
    weights = any_kernel_desc(layer, dnnl::kFloat32);
    dnnl::check(dnn.convolution_backward_weights_primitive_desc_create(
                    &desc, dnn.engine, dnnl::kConvolutionDirect, plan.images.get(), weights.get(), plan.bias.get(),
                    plan.out.get(), sizes.stride, sizes.dilation, sizes.before, sizes.after, forward.get(), attributes),
                "differentiate a convolution by such a kernel");
  }
  return dnnl::OwnedPrimitiveDesc(desc);
}

Plan make_plan(Operation operation, const Layer& layer) {
  const auto& dnn = dnnl::library;
  require(dnn.engine != nullptr, "oneDNN has not been opened");
  dnnl::OneThread one_thread;
  dnnl::Attributes* made = nullptr;
  dnnl::check(dnn.primitive_attr_create(&made), "make attributes");
  dnnl::OwnedAttributes attributes(made);
  dnnl::check(dnn.primitive_attr_set_scratchpad_mode(made, dnnl::kUserScratchpad), "set an attribute");
  Plan plan;
  plan.images = images_desc(layer.n, layer.height, layer.width, layer.channels, layer.type);
  plan.out = images_desc(layer.n, layer.out_height, layer.out_width, layer.features, layer.type);
  plan.kernel = kernel_desc(layer);
  plan.bias = strided({layer.features}, {1}, dnnl::kFloat32);
  auto desc = describe(operation, layer, plan, made);
  bool of_kernel = operation == kOfKernel;
  int query = of_kernel ? dnnl::kQueryDiffWeights : dnnl::kQueryWeights;
  plan.ordered_kernel = copy_of(dnn.primitive_desc_query_md(desc.get(), query, 0));
  plan.ordered_bytes = dnn.memory_desc_get_size(plan.ordered_kernel.get());
  auto *from = plan.kernel.get(), *to = plan.ordered_kernel.get();
  plan.reorder = of_kernel ? reorder(to, from) : reorder(from, to);
  plan.scratchpad = copy_of(dnn.primitive_desc_query_md(desc.get(), dnnl::kQueryScratchpad, 0));
  plan.scratch_bytes = dnn.memory_desc_get_size(plan.scratchpad.get());
  plan.primitive = primitive_of(desc.get());
  return plan;
}

// The plan, made when it is first asked for. As many are kept as a process has shapes of layers.
std::shared_ptr<const Plan> plan_for(Operation operation, const Layer& layer) {
  static auto& mutex = *new std::mutex;
  static auto& plans = *new std::map<std::vector<int64_t>, std::shared_ptr<const Plan>>;
  std::lock_guard lock(mutex);
  auto& plan = plans[layer.key(operation)];
  if (!plan) plan = std::make_shared<const Plan>(make_plan(operation, layer));
  return plan;
}

// The plans of a batch's pieces: of all but the last one, and of that.
struct Plans {
  Pieces pieces;
  std::shared_ptr<const Plan> even, last;

  // Throws Failure where oneDNN has no way to compute the layer.
  Plans(Operation operation, const Layer& layer, Pieces cut)
      : pieces(cut),
        even(plan_for(operation, layer.with(cut.images))),
        last(cut.rest == cut.images ? even : plan_for(operation, layer.with(cut.rest))) {}

  bool alike() const { return even == last; }
  const Plan& of(int64_t piece) const { return piece + 1 < pieces.count ? *even : *last; }
};

Pieces cut(const Layer& layer) { return Pieces::of(layer.n, kImagesInAPiece, layer.n); }

// ---- Execution -----------------------------------------------------------------------------------------------------

// What a thread needs for a piece, and what it needs for the call that the piece belongs to.
thread_local Arena piece_memory, call_memory;

char* at(const ffi::AnyBuffer& buffer, int64_t bytes) { return static_cast<char*>(buffer.untyped_data()) + bytes; }

void execute_piece(const Plan& plan, dnnl::Operand a, dnnl::Operand b, dnnl::Operand c = {}, dnnl::Operand d = {}) {
  char* scratch = piece_memory.reserve(plan.scratch_bytes + 1);
  dnnl::execute(plan.primitive.get(), {a, b, c, d, {dnnl::kScratchpad, plan.scratchpad.get(), scratch}});
}

// A kernel in the orders in which the plans want it.
class OrderedKernel {
 public:
  OrderedKernel(const Plans& plans, const ffi::AnyBuffer& kernel) : plans_(plans) {
    size_t first = Arena::aligned(plans.even->ordered_bytes);
    even_ = call_memory.reserve(first + (plans.alike() ? 0 : plans.last->ordered_bytes));
    last_ = plans.alike() ? even_ : even_ + first;
    order(*plans.even, kernel, even_);
    if (!plans.alike()) order(*plans.last, kernel, last_);
  }

  char* of(int64_t piece) const { return piece + 1 < plans_.pieces.count ? even_ : last_; }

 private:
  static void order(const Plan& plan, const ffi::AnyBuffer& kernel, char* to) {
    dnnl::OneThread one_thread;
    dnnl::execute(plan.reorder.get(), {{dnnl::kFrom, plan.kernel.get(), kernel.untyped_data()},
                                       {dnnl::kTo, plan.ordered_kernel.get(), to}});
  }

  const Plans& plans_;
  char *even_, *last_;
};

void convolve(ffi::ThreadPool& pool, const ffi::AnyBuffer& images, const ffi::AnyBuffer& kernel,
              const ffi::AnyBuffer& bias, const ffi::AnyBuffer& out, const Layer& layer) {
  Plans plans(kForward, layer, cut(layer));
  OrderedKernel ordered(plans, kernel);
  in_parallel(pool, plans.pieces.count, [&](int64_t piece) {
    dnnl::OneThread one_thread;
    const Plan& plan = plans.of(piece);
    int64_t begin = piece * plans.pieces.images;
    execute_piece(plan, {dnnl::kSource, plan.images.get(), at(images, begin * layer.image())},
                  {dnnl::kWeights, plan.ordered_kernel.get(), ordered.of(piece)},
                  {dnnl::kBias, plan.bias.get(), bias.untyped_data()},
                  {dnnl::kDestination, plan.out.get(), at(out, begin * layer.out_image())});
  });
}

void differentiate_by_images(ffi::ThreadPool& pool, const ffi::AnyBuffer& gradient, const ffi::AnyBuffer& kernel,
                             const ffi::AnyBuffer& of_images, const Layer& layer) {
  Plans plans(kOfImages, layer, cut(layer));
  OrderedKernel ordered(plans, kernel);
  in_parallel(pool, plans.pieces.count, [&](int64_t piece) {
    dnnl::OneThread one_thread;
    const Plan& plan = plans.of(piece);
    int64_t begin = piece * plans.pieces.images;
    execute_piece(plan, {dnnl::kDiffDestination, plan.out.get(), at(gradient, begin * layer.out_image())},
                  {dnnl::kWeights, plan.ordered_kernel.get(), ordered.of(piece)},
                  {dnnl::kDiffSource, plan.images.get(), at(of_images, begin * layer.image())});
  });
}

// The sum of `count` rows of `size` numbers, always in the same order.
void add_up(ffi::ThreadPool& pool, const float* rows, int64_t count, int64_t size, int64_t distance, float* sum) {
  in_parallel(pool, (size + kNumbersInASum - 1) / kNumbersInASum, [&](int64_t part) {
    int64_t begin = part * kNumbersInASum, end = std::min(begin + kNumbersInASum, size);
    std::copy(rows + begin, rows + end, sum + begin);
    for (int64_t row = 1; row < count; ++row) {
      const float* summand = rows + row * distance;
      for (int64_t i = begin; i < end; ++i) sum[i] += summand[i];
    }
  });
}

void differentiate_by_kernel(ffi::ThreadPool& pool, const ffi::AnyBuffer& images, const ffi::AnyBuffer& gradient,
                             const ffi::AnyBuffer& of_kernel, const ffi::AnyBuffer& of_bias, const Layer& layer) {
  size_t weights = Arena::aligned(layer.weights() * sizeof(float));
  size_t summand = weights + Arena::aligned(layer.features * sizeof(float));
  int64_t affordable = std::max<int64_t>(1, kBytesOfSummands / static_cast<int64_t>(summand));
  Plans plans(kOfKernel, layer, Pieces::of(layer.n, kImagesInASummand, std::min(kMostSummands, affordable)));
  char* summands = call_memory.reserve(plans.pieces.count * summand);
  in_parallel(pool, plans.pieces.count, [&](int64_t piece) {
    dnnl::OneThread one_thread;
    const Plan& plan = plans.of(piece);
    int64_t begin = piece * plans.pieces.images;
    char* scratch = piece_memory.reserve(Arena::aligned(plan.ordered_bytes) + plan.scratch_bytes + 1);
    char *ordered = scratch, *rest = scratch + Arena::aligned(plan.ordered_bytes), *here = summands + piece * summand;
    dnnl::execute(plan.primitive.get(),
                  {{dnnl::kSource, plan.images.get(), at(images, begin * layer.image())},
                   {dnnl::kDiffDestination, plan.out.get(), at(gradient, begin * layer.out_image())},
                   {dnnl::kDiffWeights, plan.ordered_kernel.get(), ordered},
                   {dnnl::kDiffBias, plan.bias.get(), here + weights},
                   {dnnl::kScratchpad, plan.scratchpad.get(), rest}});
    dnnl::execute(plan.reorder.get(), {{dnnl::kFrom, plan.ordered_kernel.get(), ordered},
                                       {dnnl::kTo, plan.kernel.get(), here}});
  });
  auto* kernels = reinterpret_cast<const float*>(summands);
  auto* biases = reinterpret_cast<const float*>(summands + weights);
  int64_t distance = static_cast<int64_t>(summand / sizeof(float)), count = plans.pieces.count;
  add_up(pool, kernels, count, layer.weights(), distance, static_cast<float*>(of_kernel.untyped_data()));
  add_up(pool, biases, count, layer.features, distance, static_cast<float*>(of_bias.untyped_data()));
}

// Calls compute(image) for each of them, with the type of their numbers.
template <typename Compute>
void each_image(ffi::ThreadPool& pool, const Layer& layer, Compute compute) {
  Pieces pieces = cut(layer);
  in_parallel(pool, pieces.count, [&](int64_t piece) {
    int64_t begin = piece * pieces.images, end = std::min(begin + pieces.images, layer.n);
    for (int64_t image = begin; image < end; ++image) {
      if (layer.type == dnnl::kFloat32) {
        compute(image, float{});
      } else {
        compute(image, uint16_t{});
      }
    }
  });
}

pools::Window window_of(const Layer& layer) {
  return {layer.height,    layer.width, layer.channels, layer.out_height,  layer.out_width,
          layer.rows, layer.stride, layer.padding.top, layer.padding.left};
}

template <typename T>
T* image_at(const ffi::AnyBuffer& images, int64_t image, int64_t bytes) {
  return reinterpret_cast<T*>(at(images, image * bytes));
}

// `places` may be null: then they are not kept.
void pool_images(ffi::ThreadPool& pool, const ffi::AnyBuffer& images, const ffi::AnyBuffer& out, uint8_t* places,
                 const Layer& layer) {
  pools::Window window = window_of(layer);
  each_image(pool, layer, [&](int64_t image, auto number) {
    using T = decltype(number);
    pools::pool(window, image_at<const T>(images, image, layer.image()), image_at<T>(out, image, layer.out_image()),
                places == nullptr ? nullptr : places + image * layer.out_numbers(), piece_memory);
  });
}

void differentiate_pool(ffi::ThreadPool& pool, const ffi::AnyBuffer& gradient, const uint8_t* places,
                        const ffi::AnyBuffer& of_images, const Layer& layer) {
  pools::Window window = window_of(layer);
  each_image(pool, layer, [&](int64_t image, auto number) {
    using T = decltype(number);
    pools::differentiate(window, image_at<const T>(gradient, image, layer.out_image()),
                         places + image * layer.out_numbers(), image_at<T>(of_images, image, layer.image()),
                         piece_memory);
  });
}

// ---- Handlers ------------------------------------------------------------------------------------------------------

template <typename Compute>
ffi::Error guarded(Compute compute) {
  try {
    compute();
    return ffi::Error::Success();
  } catch (const Misfit& misfit) {
    return ffi::Error::InvalidArgument(std::string("orchard: ") + misfit.what());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("orchard: ") + error.what());
  }
}

void clear(const ffi::AnyBuffer& buffer) {
  if (buffer.size_bytes() > 0) std::memset(buffer.untyped_data(), 0, buffer.size_bytes());
}

ffi::Error Convolve(ffi::ThreadPool pool, ffi::AnyBuffer images, ffi::AnyBuffer kernel, ffi::AnyBuffer bias,
                    ffi::Result<ffi::AnyBuffer> out, int64_t stride, int64_t top, int64_t bottom, int64_t left,
                    int64_t right) {
  return guarded([&] {
    Layer layer = layer_of(images, *out, kernel.dimensions(), stride, {top, bottom, left, right});
    require_floats(kernel, layer.weights(), "a kernel has to be float32");
    require_floats(bias, layer.features, "a bias has to be float32, one number for each filter");
    if (!layer.empty()) convolve(pool, images, kernel, bias, *out, layer);
  });
}

ffi::Error DifferentiateByImages(ffi::ThreadPool pool, ffi::AnyBuffer gradient, ffi::AnyBuffer kernel,
                                 ffi::Result<ffi::AnyBuffer> of_images, int64_t stride, int64_t top, int64_t bottom,
                                 int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = layer_of(*of_images, gradient, kernel.dimensions(), stride, {top, bottom, left, right});
    require_floats(kernel, layer.weights(), "a kernel has to be float32");
    if (layer.empty()) return clear(*of_images);
    differentiate_by_images(pool, gradient, kernel, *of_images, layer);
  });
}

ffi::Error DifferentiateByKernel(ffi::ThreadPool pool, ffi::AnyBuffer images, ffi::AnyBuffer gradient,
                                 ffi::Result<ffi::AnyBuffer> of_kernel, ffi::Result<ffi::AnyBuffer> of_bias,
                                 int64_t stride, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = layer_of(images, gradient, of_kernel->dimensions(), stride, {top, bottom, left, right});
    require_floats(*of_kernel, layer.weights(), "the gradient of a kernel has to be float32");
    require_floats(*of_bias, layer.features, "the gradient of a bias has to be float32, one number for each filter");
    if (layer.empty()) {
      clear(*of_kernel);
      return clear(*of_bias);
    }
    differentiate_by_kernel(pool, images, gradient, *of_kernel, *of_bias, layer);
  });
}

Layer pool_of(const ffi::AnyBuffer& images, const ffi::AnyBuffer& out, int64_t window, int64_t stride,
              Padding padding) {
  require(images.dimensions().size() == 4, "images have four axes");
  int64_t channels = images.dimensions()[3];
  require(window <= kLargestWindow, "a window's numbers have to be countable in a uint8");
  const int64_t kernel[4] = {window, window, channels, channels};
  return layer_of(images, out, Shape(kernel, 4), stride, padding);
}

void require_places(const ffi::AnyBuffer& places, const Layer& layer) {
  require(places.element_type() == ffi::U8 &&
              static_cast<int64_t>(places.element_count()) == layer.n * layer.out_numbers(),
          "the places of maxima have to be uint8, one for each");
}

ffi::Error MaxPool(ffi::ThreadPool pool, ffi::AnyBuffer images, ffi::Result<ffi::AnyBuffer> out, int64_t window,
                   int64_t stride, int64_t top, int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = pool_of(images, *out, window, stride, {top, bottom, left, right});
    if (!layer.empty()) pool_images(pool, images, *out, nullptr, layer);
  });
}

ffi::Error MaxPoolKeeping(ffi::ThreadPool pool, ffi::AnyBuffer images, ffi::Result<ffi::AnyBuffer> out,
                          ffi::Result<ffi::AnyBuffer> places, int64_t window, int64_t stride, int64_t top,
                          int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = pool_of(images, *out, window, stride, {top, bottom, left, right});
    require_places(*places, layer);
    if (!layer.empty()) pool_images(pool, images, *out, places->typed_data<uint8_t>(), layer);
  });
}

ffi::Error DifferentiateMaxPool(ffi::ThreadPool pool, ffi::AnyBuffer gradient, ffi::AnyBuffer places,
                                ffi::Result<ffi::AnyBuffer> of_images, int64_t window, int64_t stride, int64_t top,
                                int64_t bottom, int64_t left, int64_t right) {
  return guarded([&] {
    Layer layer = pool_of(*of_images, gradient, window, stride, {top, bottom, left, right});
    require_places(places, layer);
    if (layer.empty()) return clear(*of_images);
    differentiate_pool(pool, gradient, places.typed_data<uint8_t>(), *of_images, layer);
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

using Array = ffi::AnyBuffer;

XLA_FFI_DEFINE_HANDLER_SYMBOL(orchard_convolve, Convolve,
                              padded(pooled().Arg<Array>().Arg<Array>().Arg<Array>().Ret<Array>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(orchard_convolution_by_images, DifferentiateByImages,
                              padded(pooled().Arg<Array>().Arg<Array>().Ret<Array>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(orchard_convolution_by_kernel, DifferentiateByKernel,
                              padded(pooled().Arg<Array>().Arg<Array>().Ret<Array>().Ret<Array>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(orchard_max_pool, MaxPool,
                              padded(pooled().Arg<Array>().Ret<Array>().Attr<int64_t>("window")));
XLA_FFI_DEFINE_HANDLER_SYMBOL(orchard_max_pool_keeping, MaxPoolKeeping,
                              padded(pooled().Arg<Array>().Ret<Array>().Ret<Array>().Attr<int64_t>("window")));
XLA_FFI_DEFINE_HANDLER_SYMBOL(orchard_max_pool_by_images, DifferentiateMaxPool,
                              padded(pooled().Arg<Array>().Arg<Array>().Ret<Array>().Attr<int64_t>("window")));

// Opens oneDNN; returns null, or why it could not. What is returned lives until the next call.
extern "C" const char* orchard_open(const char* path) {
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
extern "C" int orchard_version() {
  const dnnl::Version* version = dnnl::library.version();
  return version->major * 10000 + version->minor * 100 + version->patch;
}

// Whether the processor, and the library on it, multiplies bfloat16 as such.
extern "C" int orchard_has_bfloat16() {
  return (dnnl::library.get_effective_cpu_isa() & dnnl::kIsaWithBFloat16) != 0;
}
