// Convolutions by oneDNN, forward and backward, on the threads of a pool.
//
// Images are [N, H, W, C], float32 or bfloat16, or uint8, which stands for 0 … 1; kernels [kh, kw, in, out] and biases
// [out] are float32 always, and so are their gradients. oneDNN reads and writes images where they are; kernels, which are
// small, it wants in an order of its own, into which they are brought in every call.
//
// A batch is computed in pieces (pieces.h), each by one thread, and what belongs to a convolution (bytes that become
// numbers, a rectifier) is done with a piece while it is in the cache. Of every piece's size there is one plan: oneDNN's
// primitive, which is compiled when it is first needed and then kept.

#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dnnl.h"
#include "numbers.h"
#include "pieces.h"

namespace convolutions {

constexpr int64_t kImagesInAPiece = 8, kPiecesOfAFew = 4;  // a batch of a few images is cut into so many
constexpr int64_t kBytesOfRoom = 1 << 19;  // for a piece's images as numbers, if they are bytes: half of a core's cache
// The gradient of a kernel is a sum over pieces, and takes the memory of a kernel for each.
constexpr int64_t kImagesInASummand = 16, kMostSummands = 32;
constexpr int64_t kBytesOfSummands = int64_t{64} << 20;
constexpr int64_t kNumbersInASum = 4096;

enum Operation : int64_t { kForward, kOfImages, kOfKernel };

struct Padding {
  int64_t top, bottom, left, right;
};

// Sizes of a layer, for `n` images, and in what it is computed.
struct Layer {
  int64_t n, height, width, channels;  // of the images
  int64_t rows, columns, features;     // of the kernel
  int64_t out_height, out_width, stride;
  Padding padding;
  dnnl::DataType type;
  bool of_bytes = false;  // whether the images are uint8

  int64_t numbers() const { return height * width * channels; }
  int64_t out_numbers() const { return out_height * out_width * features; }
  int64_t weights() const { return rows * columns * channels * features; }
  int64_t bytes() const { return type == dnnl::kBFloat16 ? 2 : 4; }
  int64_t image() const { return numbers() * (of_bytes ? 1 : bytes()); }
  int64_t out_image() const { return out_numbers() * bytes(); }

  Layer with(int64_t images) const {
    Layer other = *this;
    other.n = images;
    return other;
  }

  std::vector<int64_t> key(Operation operation) const {
    return {operation,  n,         height, width,       channels,       rows,         columns,       features,
            out_height, out_width, stride, padding.top, padding.bottom, padding.left, padding.right, type};
  }
};

// Whether oneDNN is trusted with a layer: a kernel passes over no pixel, also not at the edges, and is no larger than the
// image. Of others it has code that reads and writes beyond the image (3.2, bfloat16).
inline bool is_usual(const Layer& layer) {
  bool sees_all = (layer.out_height - 1) * layer.stride + layer.rows >= layer.height + layer.padding.top &&
                  (layer.out_width - 1) * layer.stride + layer.columns >= layer.width + layer.padding.left;
  return sees_all && layer.stride <= std::min(layer.rows, layer.columns) && layer.rows <= layer.height &&
         layer.columns <= layer.width;
}

// ---- Plans ---------------------------------------------------------------------------------------------------------

inline dnnl::OwnedMemoryDesc strided(std::vector<int64_t> sizes, std::vector<int64_t> strides, dnnl::DataType type) {
  dnnl::Dims size = {}, stride = {};
  std::copy(sizes.begin(), sizes.end(), size);
  std::copy(strides.begin(), strides.end(), stride);
  dnnl::MemoryDesc* desc = nullptr;
  dnnl::check(dnnl::library.memory_desc_create_with_strides(&desc, static_cast<int>(sizes.size()), size, type, stride),
              "describe an array");
  return dnnl::OwnedMemoryDesc(desc);
}

// [N, H, W, C], in oneDNN's order of axes: N, C, H, W.
inline dnnl::OwnedMemoryDesc images_desc(int64_t n, int64_t h, int64_t w, int64_t c, dnnl::DataType type) {
  return strided({n, c, h, w}, {h * w * c, 1, w * c, c}, type);
}

// [kh, kw, in, out], in oneDNN's order of axes: out, in, kh, kw.
inline dnnl::OwnedMemoryDesc kernel_desc(const Layer& layer) {
  int64_t in = layer.channels, out = layer.features;
  return strided({out, in, layer.rows, layer.columns}, {1, out, layer.columns * in * out, in * out}, dnnl::kFloat32);
}

inline dnnl::OwnedMemoryDesc any_kernel_desc(const Layer& layer, dnnl::DataType type) {
  dnnl::Dims sizes = {layer.features, layer.channels, layer.rows, layer.columns};
  dnnl::MemoryDesc* desc = nullptr;
  dnnl::check(dnnl::library.memory_desc_create_with_tag(&desc, 4, sizes, type, dnnl::kAnyLayout), "describe a kernel");
  return dnnl::OwnedMemoryDesc(desc);
}

inline dnnl::OwnedMemoryDesc copy_of(const dnnl::MemoryDesc* desc) {
  dnnl::MemoryDesc* copy = nullptr;
  dnnl::check(dnnl::library.memory_desc_clone(&copy, desc), "copy a description");
  return dnnl::OwnedMemoryDesc(copy);
}

inline dnnl::OwnedPrimitive primitive_of(const dnnl::PrimitiveDesc* desc) {
  dnnl::Primitive* primitive = nullptr;
  dnnl::check(dnnl::library.primitive_create(&primitive, desc), "compile a layer");
  return dnnl::OwnedPrimitive(primitive);
}

inline dnnl::OwnedPrimitive reorder(const dnnl::MemoryDesc* from, const dnnl::MemoryDesc* to) {
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

inline dnnl::OwnedPrimitiveDesc describe(Operation operation, const Layer& layer, const Plan& plan,
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

inline Plan make_plan(Operation operation, const Layer& layer) {
  const auto& dnn = dnnl::library;
  if (dnn.engine == nullptr) throw std::logic_error("oneDNN has not been opened");
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
inline std::shared_ptr<const Plan> plan_for(Operation operation, const Layer& layer) {
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

// ---- Pieces --------------------------------------------------------------------------------------------------------

// What a thread needs for a piece, and what it needs for the call that the piece belongs to.
inline thread_local Arena piece_memory, call_memory;

inline const char* at(const void* numbers, int64_t bytes) { return static_cast<const char*>(numbers) + bytes; }
inline char* at(void* numbers, int64_t bytes) { return static_cast<char*>(numbers) + bytes; }

// Calls work with a number of the layer's type.
template <typename Work>
void with_type(const Layer& layer, const Work& work) {
  if (layer.type == dnnl::kFloat32) {
    work(float{});
  } else {
    work(uint16_t{});
  }
}

// Images of a piece as oneDNN takes them; uint8 is brought to `room`.
inline const void* as_numbers(const Layer& layer, const void* images, int64_t count, void* room) {
  if (!layer.of_bytes) return images;
  with_type(layer, [&](auto number) {
    using T = decltype(number);
    numbers::scale(static_cast<const uint8_t*>(images), static_cast<T*>(room), count * layer.numbers());
  });
  return room;
}

inline size_t room_for_images(const Layer& layer, int64_t count) {
  return layer.of_bytes ? count * layer.numbers() * layer.bytes() : 0;
}

// A kernel in the orders in which the plans want it.
class OrderedKernel {
 public:
  OrderedKernel(const Plans& plans, const float* kernel) : plans_(plans) {
    auto [even, last] = call_memory.rooms(plans.even->ordered_bytes, plans.alike() ? 0 : plans.last->ordered_bytes);
    even_ = even;
    last_ = plans.alike() ? even : last;
    order(*plans.even, kernel, even_);
    if (!plans.alike()) order(*plans.last, kernel, last_);
  }

  char* of(int64_t piece) const { return piece + 1 < plans_.pieces.count ? even_ : last_; }

 private:
  static void order(const Plan& plan, const float* kernel, char* to) {
    dnnl::OneThread one_thread;
    dnnl::execute(plan.reorder.get(),
                  {{dnnl::kFrom, plan.kernel.get(), kernel}, {dnnl::kTo, plan.ordered_kernel.get(), to}});
  }

  const Plans& plans_;
  char *even_, *last_;
};

inline int64_t images_at_once(const Layer& layer) {
  return std::clamp<int64_t>(kBytesOfRoom / (layer.numbers() * layer.bytes()), 1, kImagesInAPiece);
}

// In pieces of `most` images, or smaller ones if those would be too few for the cores that there may be.
inline int64_t images_in_each(int64_t n, int64_t most) { return std::clamp<int64_t>(n / kPiecesOfAFew, 1, most); }

inline Pieces cut(const Layer& layer) {
  int64_t most = layer.of_bytes ? images_at_once(layer) : kImagesInAPiece;
  return Pieces::of(layer.n, images_in_each(layer.n, most), layer.n);
}

// A piece of a batch: `count` images from `begin` on, and what computes them.
struct Piece {
  const Plan& plan;
  const char* kernel;
  int64_t begin, count;
};

// Computes a batch piece by piece, each in one thread.
template <typename Pool, typename Compute>
void each_piece(Pool& pool, Operation operation, const Layer& layer, const float* kernel, const Compute& compute) {
  Plans plans(operation, layer, cut(layer));
  OrderedKernel ordered(plans, kernel);
  in_parallel(pool, plans.pieces.count, [&](int64_t i) {
    dnnl::OneThread one_thread;
    compute(Piece{plans.of(i), ordered.of(i), plans.pieces.begin(i), plans.pieces.size_of(i)});
  });
}

// ---- What is computed: of one image or more, all of it usual -----------------------------------------------------------

// images * kernel + bias, rectified if so wanted.
template <typename Pool>
void convolve(Pool& pool, const Layer& layer, const void* images, const float* kernel, const float* bias, bool rectified,
              void* out) {
  each_piece(pool, kForward, layer, kernel, [&](const Piece& piece) {
    const Plan& plan = piece.plan;
    auto [scratch, room] = piece_memory.rooms(plan.scratch_bytes, room_for_images(layer, piece.count));
    const void* source = as_numbers(layer, at(images, piece.begin * layer.image()), piece.count, room);
    char* here = at(out, piece.begin * layer.out_image());
    dnnl::execute(plan.primitive.get(), {{dnnl::kSource, plan.images.get(), source},
                                         {dnnl::kWeights, plan.ordered_kernel.get(), piece.kernel},
                                         {dnnl::kBias, plan.bias.get(), bias},
                                         {dnnl::kDestination, plan.out.get(), here},
                                         {dnnl::kScratchpad, plan.scratchpad.get(), scratch}});
    if (!rectified) return;
    with_type(layer, [&](auto number) {
      using T = decltype(number);
      numbers::rectify(reinterpret_cast<T*>(here), piece.count * layer.out_numbers());
    });
  });
}

// The gradient of the images, which are numbers.
template <typename Pool>
void differentiate_by_images(Pool& pool, const Layer& layer, const void* gradient, const float* kernel,
                             void* of_images) {
  each_piece(pool, kOfImages, layer, kernel, [&](const Piece& piece) {
    const Plan& plan = piece.plan;
    auto [scratch] = piece_memory.rooms(plan.scratch_bytes);
    dnnl::execute(plan.primitive.get(),
                  {{dnnl::kDiffDestination, plan.out.get(), at(gradient, piece.begin * layer.out_image())},
                   {dnnl::kWeights, plan.ordered_kernel.get(), piece.kernel},
                   {dnnl::kDiffSource, plan.images.get(), at(of_images, piece.begin * layer.image())},
                   {dnnl::kScratchpad, plan.scratchpad.get(), scratch}});
  });
}

inline void add(const float* numbers, int64_t count, float* sum) {
  for (int64_t i = 0; i < count; ++i) sum[i] += numbers[i];
}

// The sum of `count` rows of `size` numbers, always in the same order.
template <typename Pool>
void add_up(Pool& pool, const float* rows, int64_t count, int64_t size, int64_t distance, float* sum) {
  in_parallel(pool, (size + kNumbersInASum - 1) / kNumbersInASum, [&](int64_t part) {
    int64_t begin = part * kNumbersInASum, end = std::min(begin + kNumbersInASum, size);
    std::copy(rows + begin, rows + end, sum + begin);
    for (int64_t row = 1; row < count; ++row) add(rows + row * distance + begin, end - begin, sum + begin);
  });
}

// The gradients of the kernel and the bias out of `count` images, computed in this thread.
inline void differentiate_piece_by_kernel(const Layer& layer, const void* images, const void* gradient, int64_t count,
                                          float* of_kernel, float* of_bias) {
  dnnl::OneThread one_thread;
  auto plan = plan_for(kOfKernel, layer.with(count));
  auto [scratch, ordered, room] =
      piece_memory.rooms(plan->scratch_bytes, plan->ordered_bytes, room_for_images(layer, count));
  dnnl::execute(plan->primitive.get(),
                {{dnnl::kSource, plan->images.get(), as_numbers(layer, images, count, room)},
                 {dnnl::kDiffDestination, plan->out.get(), gradient},
                 {dnnl::kDiffWeights, plan->ordered_kernel.get(), ordered},
                 {dnnl::kDiffBias, plan->bias.get(), of_bias},
                 {dnnl::kScratchpad, plan->scratchpad.get(), scratch}});
  dnnl::execute(plan->reorder.get(),
                {{dnnl::kFrom, plan->ordered_kernel.get(), ordered}, {dnnl::kTo, plan->kernel.get(), of_kernel}});
}

// The gradients of the kernel and the bias: a sum over pieces, each of which is one over as many images as are numbers at
// once.
template <typename Pool>
void differentiate_by_kernel(Pool& pool, const Layer& layer, const void* images, const void* gradient, float* of_kernel,
                             float* of_bias) {
  size_t weights = Arena::aligned(layer.weights() * sizeof(float));
  size_t summand = weights + Arena::aligned(layer.features * sizeof(float));
  int64_t affordable = std::max<int64_t>(1, kBytesOfSummands / static_cast<int64_t>(2 * summand));
  Pieces pieces = Pieces::of(layer.n, images_in_each(layer.n, kImagesInASummand), std::min(kMostSummands, affordable));
  int64_t at_once = layer.of_bytes ? images_at_once(layer) : pieces.images;
  char* summands = call_memory.reserve(2 * pieces.count * summand);
  in_parallel(pool, pieces.count, [&](int64_t piece) {
    auto* sum = reinterpret_cast<float*>(summands + 2 * piece * summand);
    auto* next = reinterpret_cast<float*>(summands + (2 * piece + 1) * summand);
    int64_t begin = pieces.begin(piece), end = begin + pieces.size_of(piece);
    for (int64_t image = begin; image < end; image += at_once) {
      float* to = image == begin ? sum : next;
      differentiate_piece_by_kernel(layer, at(images, image * layer.image()), at(gradient, image * layer.out_image()),
                                    std::min(at_once, end - image), to, to + weights / sizeof(float));
      if (to == next) add(next, summand / sizeof(float), sum);
    }
  });
  auto* kernels = reinterpret_cast<const float*>(summands);
  auto* biases = reinterpret_cast<const float*>(summands + weights);
  int64_t distance = static_cast<int64_t>(2 * summand / sizeof(float)), count = pieces.count;
  add_up(pool, kernels, count, layer.weights(), distance, of_kernel);
  add_up(pool, biases, count, layer.features, distance, of_bias);
}

}  // namespace convolutions
