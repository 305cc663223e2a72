// Values that kernels cannot compute with: indices out of range, divisors of zero. Kernels bring
// them into range, so that nothing breaks; here is who notices.
#ifndef TVM_STRETCH_GUARD_H_
#define TVM_STRETCH_GUARD_H_

#include "bound_graph.h"
#include "graph.h"

namespace tvm_stretch {

// Throws InputError if a tensor holds what its guard forbids.
void CheckGuards(const GraphSpec& graph, BoundTensors* tensors);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_GUARD_H_
