// Tensors that callers pass for the inputs and outputs of a graph.
#ifndef TVM_STRETCH_PORTS_H_
#define TVM_STRETCH_PORTS_H_

#include <tvm/ffi/container/tensor.h>

#include <string>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

// A tensor in memory of its own, for an output that the caller brings no memory for.
ffi::Tensor NewTensor(const TensorSpec& spec);

// Throws ValueError unless the tensor is what the graph says, in memory that the CPU can read.
void CheckTensor(const DLTensor& got, const TensorSpec& want, const char* role,
                 const std::string& name);

// Throws ValueError if the last tensor lies in the memory of another one.
void CheckApart(const std::vector<const DLTensor*>& outputs);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_PORTS_H_
