// Tensors that callers pass for the inputs and outputs of a graph.
#ifndef TVM_STRETCH_PORTS_H_
#define TVM_STRETCH_PORTS_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/tensor.h>

#include <string>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

// The input that a name or a position means, or the output at a position; throws ValueError if
// there is none.
size_t InputIndex(const GraphSpec& graph, const ffi::AnyView& key);
size_t OutputIndex(const GraphSpec& graph, const ffi::AnyView& key);

// A new tensor, for an output without memory of the caller.
ffi::Tensor NewTensor(const TensorSpec& spec);

// Throws ValueError unless the tensor has the graph's shape and type, in memory of the CPU.
void CheckTensor(const DLTensor& got, const TensorSpec& want, const char* role,
                 const std::string& name);

// Throws ValueError if the last tensor overlaps another one.
void CheckApart(const std::vector<const DLTensor*>& outputs);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_PORTS_H_
