// The part of oneDNN's public C interface (version 3) that the layers use.
//
// The library is opened while the program runs, so its headers are not needed to build and a machine without it
// needs nothing: types are opaque, and functions are found by name in whatever file open() is given.

#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace dnnl {

constexpr int kMajorVersion = 3;
constexpr unsigned kSequential = 1, kOpenMp = 2;
constexpr int kMaxAxes = 12;

using Status = int;
using Dims = int64_t[kMaxAxes];

struct Engine;
struct Stream;
struct MemoryDesc;
struct Memory;
struct Primitive;
struct PrimitiveDesc;
struct Attributes;
struct Version {
  int major, minor, patch;
  const char* hash;
  unsigned cpu_runtime;  // more follows
};
struct Argument {
  int name;
  Memory* memory;
};

enum DataType : int { kBFloat16 = 2, kFloat32 = 3 };
enum Query : int { kQueryWeights = 131, kQueryDiffWeights = 132, kQueryScratchpad = 136 };
enum ArgumentName : int {
  kSource = 1,
  kDestination = 17,
  kWeights = 33,
  kBias = 41,
  kScratchpad = 80,
  kDiffSource = 129,
  kDiffDestination = 145,
  kDiffWeights = 161,
  kDiffBias = 169,
};
constexpr int kFrom = 1, kTo = 17;  // arguments of a reorder
constexpr int kForwardTraining = 64, kConvolutionDirect = 1;
constexpr int kCpu = 1, kAnyLayout = 1, kUserScratchpad = 1, kInOrder = 1;
constexpr int kIsaWithBFloat16 = 0x80;  // the bit of AVX-512's bfloat16 instructions in an instruction set

// Functions of the library, without their prefix dnnl_, and their types.
#define SEEDBED_DNNL_FUNCTIONS(F)                                                                                \
  F(version, const Version*())                                                                                   \
  F(get_effective_cpu_isa, int())                                                                                \
  F(engine_create, Status(Engine**, int kind, size_t index))                                                     \
  F(stream_create, Status(Stream**, Engine*, unsigned flags))                                                    \
  F(stream_wait, Status(Stream*))                                                                                \
  F(stream_destroy, Status(Stream*))                                                                             \
  F(memory_desc_create_with_strides, Status(MemoryDesc**, int axes, const Dims, int type, const Dims strides))   \
  F(memory_desc_create_with_tag, Status(MemoryDesc**, int axes, const Dims, int type, int tag))                  \
  F(memory_desc_clone, Status(MemoryDesc**, const MemoryDesc*))                                                  \
  F(memory_desc_get_size, size_t(const MemoryDesc*))                                                             \
  F(memory_desc_destroy, Status(MemoryDesc*))                                                                    \
  F(memory_create, Status(Memory**, const MemoryDesc*, Engine*, void*))                                          \
  F(memory_destroy, Status(Memory*))                                                                             \
  F(primitive_attr_create, Status(Attributes**))                                                                 \
  F(primitive_attr_set_scratchpad_mode, Status(Attributes*, int mode))                                           \
  F(primitive_attr_destroy, Status(Attributes*))                                                                 \
  F(primitive_desc_query_md, const MemoryDesc*(const PrimitiveDesc*, int query, int index))                      \
  F(primitive_desc_destroy, Status(PrimitiveDesc*))                                                              \
  F(primitive_create, Status(Primitive**, const PrimitiveDesc*))                                                 \
  F(primitive_execute, Status(const Primitive*, Stream*, int count, const Argument*))                            \
  F(primitive_destroy, Status(Primitive*))                                                                       \
  F(reorder_primitive_desc_create, Status(PrimitiveDesc**, const MemoryDesc* from, Engine*, const MemoryDesc* to, \
                                          Engine*, const Attributes*))                                           \
  F(convolution_forward_primitive_desc_create,                                                                   \
    Status(PrimitiveDesc**, Engine*, int propagation, int algorithm, const MemoryDesc* source,                   \
           const MemoryDesc* weights, const MemoryDesc* bias, const MemoryDesc* destination, const Dims strides, \
           const Dims dilation, const Dims before, const Dims after, const Attributes*))                         \
  F(convolution_backward_data_primitive_desc_create,                                                             \
    Status(PrimitiveDesc**, Engine*, int algorithm, const MemoryDesc* source, const MemoryDesc* weights,         \
           const MemoryDesc* destination, const Dims strides, const Dims dilation, const Dims before,            \
           const Dims after, const PrimitiveDesc* forward, const Attributes*))                                   \
  F(convolution_backward_weights_primitive_desc_create,                                                          \
    Status(PrimitiveDesc**, Engine*, int algorithm, const MemoryDesc* source, const MemoryDesc* weights,         \
           const MemoryDesc* bias, const MemoryDesc* destination, const Dims strides, const Dims dilation,       \
           const Dims before, const Dims after, const PrimitiveDesc* forward, const Attributes*))

struct Library {
#define SEEDBED_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
  SEEDBED_DNNL_FUNCTIONS(SEEDBED_MEMBER)
#undef SEEDBED_MEMBER
  // Of OpenMP, in a library that is built on it; null elsewhere.
  void (*set_threads)(int) = nullptr;
  int (*get_threads)() = nullptr;
  Engine* engine = nullptr;
  std::string path;
};

// The one that was opened. What is computed with it belongs to its engine, so there is no other until the process ends.
inline Library library;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check(Status status, const char* what) {
  if (status != 0) throw Failure(std::string("oneDNN cannot ") + what + ": status " + std::to_string(status));
}

// Keeps what is computed in this thread in it: oneDNN neither starts threads nor plans for several.
class OneThread {
 public:
  OneThread() : before_(library.get_threads ? library.get_threads() : 0) { set(1); }
  ~OneThread() { set(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static void set(int threads) {
    if (library.set_threads && threads > 0) library.set_threads(threads);
  }
  int before_;
};

// Opens a library, if that has not been done; throws Failure if the file is none, lacks a function, or has another version,
// or if another one is open.
inline void open(const char* path) {
  if (library.path == path) return;
  if (library.engine != nullptr) throw Failure(library.path + " is open, and stays so until the process ends");
  void* file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) throw Failure(dlerror());
  Library found;
#define SEEDBED_FIND(name, type)                                                              \
  found.name = reinterpret_cast<std::add_pointer_t<type>>(dlsym(file, "dnnl_" #name));        \
  if (found.name == nullptr) throw Failure(std::string(path) + " has no function dnnl_" #name);
  SEEDBED_DNNL_FUNCTIONS(SEEDBED_FIND)
#undef SEEDBED_FIND
  found.set_threads = reinterpret_cast<void (*)(int)>(dlsym(file, "omp_set_num_threads"));
  found.get_threads = reinterpret_cast<int (*)()>(dlsym(file, "omp_get_max_threads"));
  if (found.version()->major != kMajorVersion) {
    throw Failure(std::string(path) + " has version " + std::to_string(found.version()->major) + ", needed is 3");
  }
  unsigned runtime = found.version()->cpu_runtime;
  bool has_openmp = found.set_threads != nullptr && found.get_threads != nullptr;
  if (runtime != kSequential && !(runtime == kOpenMp && has_openmp)) {
    throw Failure(std::string(path) + " is built on other threads than OpenMP's, which cannot be kept to one");
  }
  check(found.engine_create(&found.engine, kCpu, 0), "make an engine");
  found.path = path;
  library = found;
}

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    (library.*Destroy)(object);
  }
};
template <typename T, auto Destroy>
using Owned = std::unique_ptr<T, Destroyer<Destroy>>;

using OwnedStream = Owned<Stream, &Library::stream_destroy>;
using OwnedMemory = Owned<Memory, &Library::memory_destroy>;
using OwnedMemoryDesc = Owned<MemoryDesc, &Library::memory_desc_destroy>;
using OwnedAttributes = Owned<Attributes, &Library::primitive_attr_destroy>;
using OwnedPrimitiveDesc = Owned<PrimitiveDesc, &Library::primitive_desc_destroy>;
using OwnedPrimitive = Owned<Primitive, &Library::primitive_destroy>;

// An argument of a primitive: its name, how it is laid out, and where.
struct Operand {
  int name;
  const MemoryDesc* desc;
  const void* data;
};

inline void execute(const Primitive* primitive, std::initializer_list<Operand> operands) {
  std::vector<OwnedMemory> memories;
  std::vector<Argument> arguments;
  for (const Operand& operand : operands) {
    Memory* memory = nullptr;
    check(library.memory_create(&memory, operand.desc, library.engine, const_cast<void*>(operand.data)), "take an argument");
    memories.emplace_back(memory);
    arguments.push_back({operand.name, memory});
  }
  Stream* stream = nullptr;
  check(library.stream_create(&stream, library.engine, kInOrder), "make a stream");
  OwnedStream owned(stream);
  check(library.primitive_execute(primitive, stream, static_cast<int>(arguments.size()), arguments.data()), "compute");
  check(library.stream_wait(stream), "finish");
}

}  // namespace dnnl
