#include "ports.h"

#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <vector>

#include "memory.h"
#include "sizes.h"

namespace tvm_stretch {
namespace {

// Large blocks of tensors that were freed, for tensors of the next runs. The system clears new
// pages at their first use: 1.2 ms for 3 MB, which may be more than the network takes. No thread
// waits for another one here: a forked child could wait for a thread that it does not have.
class FreedBlocks {
 public:
  FreedBlocks() { blocks_.reserve(kCount); }

  // Null if there is no block of this size, or another thread looks for one.
  void* Take(size_t bytes) {
    if (bytes < kLeast) return nullptr;
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    for (size_t i = blocks_.size(); i-- > 0;) {
      if (blocks_[i].bytes != bytes) continue;
      void* data = blocks_[i].data;
      Remove(i);
      return data;
    }
    return nullptr;
  }

  void Give(void* data, size_t bytes) {
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (bytes < kLeast || bytes > kMost || !lock.try_lock()) return std::free(data);
    while (blocks_.size() == kCount || kept_ + bytes > kMost) {
      std::free(blocks_.front().data);  // the oldest one
      Remove(0);
    }
    blocks_.push_back({data, bytes});
    kept_ += bytes;
  }

 private:
  static constexpr size_t kLeast = 1 << 16, kMost = 64 << 20, kCount = 8;

  struct Block {
    void* data;
    size_t bytes;
  };

  void Remove(size_t i) {
    kept_ -= blocks_[i].bytes;
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;
  size_t kept_ = 0;
};

FreedBlocks& Freed() {
  static auto* blocks = new FreedBlocks();  // tensors may be freed after static destructors
  return *blocks;
}

struct HostAllocator {
  static size_t Bytes(const DLTensor& tensor) {
    return (ffi::GetDataSize(tensor) + kAlignment) / kAlignment * kAlignment;
  }
  void AllocData(DLTensor* tensor) {
    size_t bytes = Bytes(*tensor);
    tensor->data = Freed().Take(bytes);
    if (tensor->data != nullptr) return;
    // Android has aligned_alloc since API 28 only.
    if (posix_memalign(&tensor->data, kAlignment, bytes) != 0) RefuseMemory(bytes);
  }
  void FreeData(DLTensor* tensor) { Freed().Give(tensor->data, Bytes(*tensor)); }
};

std::string Describe(const ffi::Shape& shape, DLDataType dtype) {
  std::ostringstream text;
  text << dtype << shape;
  return text.str();
}

}  // namespace

size_t InputIndex(const GraphSpec& graph, const ffi::AnyView& key) {
  std::string names;
  auto name = key.try_cast<ffi::String>();
  auto index = key.try_cast<int64_t>();
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (name ? *name == graph.inputs[i].name : index && *index == static_cast<int64_t>(i)) return i;
    names += (names.empty() ? "'" : ", '") + graph.inputs[i].name + "'";
  }
  TVM_FFI_THROW(ValueError) << "expected one of " << names << " (or its position) for the input, "
                            << "got " << (name ? std::string(*name) : "another position")
                            << "; use a name of the model";
  TVM_FFI_UNREACHABLE();
}

bool HasShape(const DLTensor& tensor, const TensorSpec& spec) {
  return spec.shape == std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim);
}

SizedLength FindLength(const GraphSpec& graph, const std::vector<const DLTensor*>& inputs,
                       size_t current, bool padding) {
  if (graph.lengths.size() == 1 && graph.spans.empty()) return {0, {}};  // CheckTensor names faults
  const auto fits = [&](size_t length) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!HasShape(*inputs[i], graph.input(i, length))) return false;
    }
    return true;
  };
  if (fits(current)) return {current, {}};
  for (size_t length = 0; length < graph.lengths.size(); ++length) {
    if (fits(length)) return {length, {}};
  }
  std::optional<SizedLength> best;
  for (size_t length = 0; padding && length < graph.lengths.size(); ++length) {
    if (best && graph.lengths[length].product() >= graph.lengths[best->length].product()) continue;
    if (auto missing = MissingIn(graph, length, inputs)) best = {length, std::move(*missing)};
  }
  if (!best) RefuseLength(graph, inputs);
  return std::move(*best);
}

void RefuseLength(const GraphSpec& graph, const std::vector<const DLTensor*>& inputs) {
  std::string got;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr) continue;
    got += (got.empty() ? "" : ", ") + graph.inputs[i].name + ": " +
           Describe(ffi::Shape(inputs[i]->shape, inputs[i]->shape + inputs[i]->ndim),
                    inputs[i]->dtype);
  }
  for (const SpanSpec& span : graph.spans) {
    got += " (" + span.name + " may be " + std::to_string(span.low) + " to " +
           std::to_string(span.high) + ", the same in all inputs)";
  }
  TVM_FFI_THROW(ValueError) << "expected inputs of one of the lengths " << graph.length_names()
                            << ", got " << got
                            << "; pad the inputs, or compile the model with that length";
  TVM_FFI_UNREACHABLE();
}

size_t ChosenState(const GraphSpec& graph) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < graph.states.size(); ++i) {
    if (graph.states[i].output < graph.results) chosen.push_back(i);
  }
  if (chosen.size() != 1 || graph.output(graph.states[chosen[0]].output).bytes !=
                                graph.input(graph.states[chosen[0]].input).dtype.bits / 8) {
    TVM_FFI_THROW(ValueError) << "expected one state with one value that Greedy or Sample chooses "
                                 "for feed, got "
                              << chosen.size() << " states; set states one by one";
  }
  return chosen[0];
}

size_t OutputIndex(const GraphSpec& graph, const ffi::AnyView& key) {
  auto index = key.try_cast<int64_t>();
  if (!index || *index < 0 || *index >= static_cast<int64_t>(graph.results)) {
    TVM_FFI_THROW(ValueError) << "expected a position below " << graph.results
                              << " for the output, got "
                              << (index ? std::to_string(*index) : "no integer")
                              << "; num_outputs() tells how many there are";
  }
  return static_cast<size_t>(*index);
}

ffi::Tensor NewTensor(const TensorSpec& spec) { return NewTensor(spec.shape, spec.dtype); }

ffi::Tensor NewTensor(const std::vector<int64_t>& shape, DLDataType dtype) {
  DLDevice cpu{kDLCPU, 0};
  return ffi::Tensor::FromNDAlloc(HostAllocator(), ffi::Shape(shape), dtype, cpu);
}

void CheckTensor(const DLTensor& got, const TensorSpec& want, const char* role,
                 const std::string& name) {
  CheckTensor(got, want.shape, want.dtype, role, name);
}

void CheckTensor(const DLTensor& got, const std::vector<int64_t>& shape, DLDataType dtype,
                 const char* role, const std::string& name) {
  ffi::Shape got_shape(got.shape, got.shape + got.ndim);
  bool same_shape = shape == std::vector<int64_t>(got_shape.begin(), got_shape.end());
  if (!same_shape || !(got.dtype == dtype)) {
    TVM_FFI_THROW(ValueError) << "expected " << Describe(ffi::Shape(shape), dtype) << " for "
                              << role << " '" << name << "', got " << Describe(got_shape, got.dtype)
                              << "; convert the tensor before the call";
  }
  if (got.device.device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "expected memory of the CPU for " << role << " '" << name
                              << "', got device type " << got.device.device_type
                              << "; copy the tensor to the CPU";
  }
}

SteppedTensor::SteppedTensor(const DLTensor& tensor, int64_t count)
    : view_(tensor), first_(tensor.byte_offset) {
  if (count == kSame) return;
  if (tensor.ndim < 1 || tensor.shape[0] != count) {
    ffi::Shape got(tensor.shape, tensor.shape + tensor.ndim);
    TVM_FFI_THROW(ValueError) << "expected " << count << " steps in the first dimension of a "
                              << "tensor, got shape " << got << "; give one part for each step";
  }
  --view_.ndim;
  ++view_.shape;
  int64_t stride = Product(view_.shape, view_.shape + view_.ndim);
  if (tensor.strides != nullptr) {
    stride = tensor.strides[0];
    ++view_.strides;
  }
  pitch_ = Times(stride, ItemBytes(tensor));
  Times(pitch_, count);  // `at` does not check
}

void CheckApart(const std::vector<const DLTensor*>& outputs) {
  for (size_t i = 0; i + 1 < outputs.size(); ++i) {
    if (!Overlap(*outputs[i], *outputs.back())) continue;
    TVM_FFI_THROW(ValueError) << "expected memory of its own for each output, got the same for "
                              << "outputs " << i << " and " << outputs.size() - 1
                              << "; pass another tensor";
  }
}

}  // namespace tvm_stretch
