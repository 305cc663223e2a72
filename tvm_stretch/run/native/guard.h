// Checks values that kernels cannot compute with: indices out of range, divisors of zero. Kernels
// clamp such values to stay safe; guards report them.
#pragma once

#include <memory>
#include <vector>

#include "bound_graph.h"
#include "graph.h"

namespace tvm_stretch {

// The check of one tensor.
class Look {
 public:
  virtual ~Look() = default;
  virtual void Check() const = 0;
};

// All checks of an instance, prepared once, because preparing them after every run would take
// longer than small kernels.
class Guards {
 public:
  // The arguments must outlive this.
  Guards(const std::vector<GuardSpec>& guards, BoundTensors* tensors);

  // Throws InputError if a tensor has a value that its guard forbids.
  void Check() const {
    for (const auto& look : looks_) look->Check();
  }

 private:
  std::vector<std::unique_ptr<Look>> looks_;
};

}  // namespace tvm_stretch
