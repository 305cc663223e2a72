// Tensors that callers pass for the inputs and outputs of a graph.
#pragma once

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>

#include <string>
#include <vector>

#include "graph.h"
#include "padding.h"

namespace tvm_stretch {

// The input that a name or a position means, or the output at a position; throws ValueError if
// there is none.
size_t InputIndex(const GraphSpec& graph, const ffi::AnyView& key);
size_t OutputIndex(const GraphSpec& graph, const ffi::AnyView& key);

// The length whose inputs have the shapes of these tensors; with several such lengths, `current` if
// it is one of them, otherwise the first; without one, the smallest to which they are padded if
// `padding` allows that. Throws ValueError if there is none.
SizedLength FindLength(const GraphSpec& graph, const std::vector<const DLTensor*>& inputs,
                       size_t current, bool padding);

// The one state whose next value is chosen from scores; throws ValueError unless that is one value.
size_t ChosenState(const GraphSpec& graph);

// Throws ValueError because no length has inputs like these tensors, some of which may be null.
[[noreturn]] void RefuseLength(const GraphSpec& graph, const std::vector<const DLTensor*>& inputs);

// Whether a tensor has this shape.
bool HasShape(const DLTensor& tensor, const TensorSpec& spec);

// A new tensor, for an output without memory of the caller.
ffi::Tensor NewTensor(const TensorSpec& spec);
ffi::Tensor NewTensor(const std::vector<int64_t>& shape, DLDataType dtype);

// Throws ValueError unless the tensor has the graph's shape and type, in memory of the CPU.
void CheckTensor(const DLTensor& got, const TensorSpec& want, const char* role,
                 const std::string& name);
void CheckTensor(const DLTensor& got, const std::vector<int64_t>& shape, DLDataType dtype,
                 const char* role, const std::string& name);

// Throws ValueError if the last tensor overlaps another one.
void CheckApart(const std::vector<const DLTensor*>& outputs);

// A tensor whose first dimension counts the steps of a loop, or that is the same in each step.
class SteppedTensor {
 public:
  static constexpr int64_t kSame = -1;  // for `count`

  // Throws ValueError unless there are `count` steps. `tensor` must outlive this.
  SteppedTensor(const DLTensor& tensor, int64_t count);

  // The tensor of one step, until the next call.
  const DLTensor& at(int64_t step) {
    view_.byte_offset = first_ + static_cast<uint64_t>(step * pitch_);
    return view_;
  }

 private:
  DLTensor view_;
  uint64_t first_;     // the byte offset of the first step
  int64_t pitch_ = 0;  // bytes from step to step
};

}  // namespace tvm_stretch
