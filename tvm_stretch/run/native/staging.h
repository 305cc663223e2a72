// Where a run reads its inputs and writes its outputs: in the caller's memory where that is
// possible, otherwise in the instance's, with copies.
#pragma once

#include <vector>

#include "graph.h"
#include "instance.h"
#include "padding.h"

namespace tvm_stretch {

class Staging {
 public:
  explicit Staging(const GraphSpec& spec) : spec_(spec), set_(spec.arguments, kNotSet) {}

  // The length that an input with the shape of this tensor asks for: of those that have such an
  // input, the one that fits most of the other inputs that were set; `current` if that is one.
  // Throws ValueError if several lengths have other shapes.
  size_t LengthWith(size_t i, const DLTensor& tensor, size_t current) const;

  // Copies an input into the instance's memory, for all runs until the next copy.
  void Set(Instance* instance, size_t i, const DLTensor& tensor);

  // The next run uses the instance's memory alone. Throws ValueError if an input was never set.
  void BindOwn(Instance* instance) const;

  // Runs once with the instance's memory alone. Draws the next values of states, and keeps all
  // states' next values, if that is asked for.
  void RunOwn(Instance* instance, bool choose, bool advance) const;

  // Runs once with the caller's tensors, which have the right shapes and types, and the states.
  void Run(Instance* instance, const SizedLength& sized, const std::vector<const DLTensor*>& inputs,
           const std::vector<const DLTensor*>& outputs);

 private:
  static constexpr int64_t kNotSet = -1;

  void RunPadded(Instance* instance, const SizedLength& sized,
                 const std::vector<const DLTensor*>& inputs,
                 const std::vector<const DLTensor*>& outputs);

  const GraphSpec& spec_;
  std::vector<int64_t> set_;  // the port's tensor when each input was set
};

}  // namespace tvm_stretch
