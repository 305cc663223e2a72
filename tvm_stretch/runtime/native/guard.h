// Values that kernels cannot compute with: indices out of range, divisors of zero. Kernels bring
// them into range, so that nothing breaks; here is who notices.
#ifndef TVM_STRETCH_GUARD_H_
#define TVM_STRETCH_GUARD_H_

#include <memory>
#include <vector>

#include "bound_graph.h"
#include "graph.h"

namespace tvm_stretch {

// A look at one tensor.
class Look {
 public:
  virtual ~Look() = default;
  virtual void Check() const = 0;
};

// All looks at the tensors of an instance, prepared once: after a small run they would take longer
// than the kernels that make them necessary.
class Guards {
 public:
  // The arguments must outlive this.
  Guards(const GraphSpec& graph, BoundTensors* tensors);

  // Throws InputError if a tensor holds what its guard forbids.
  void Check() const {
    for (const auto& look : looks_) look->Check();
  }

 private:
  std::vector<std::unique_ptr<Look>> looks_;
};

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_GUARD_H_
