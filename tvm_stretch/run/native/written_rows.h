// States of which a run writes some rows: the memory of the next state gets the others before.
#pragma once

#include <tvm/ffi/function.h>

#include <cstdint>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

// The kernel `kWriteKernel`: (places, rows, tensor, starts). It writes row i at the place i, and
// the first byte of that place to starts[i]. Guards report places that are clamped here.
ffi::Function MakeWriteKernel();

// What the memory of each next state lacks of the state. Both memories change places after a run,
// so they differ in the rows that it wrote; after anything else they may differ in every byte.
class WrittenRows {
 public:
  explicit WrittenRows(const GraphSpec& spec) : spec_(spec), lacks_(spec.states.size()) {}

  // A state has changed, or a run may have written anything.
  void Forget();

  // Before a run: copies what the next states lack. From then on the run may write anything.
  void CatchUp(const std::vector<char*>& inputs, const std::vector<char*>& outputs);

  // After a run of this length that succeeded.
  void Remember(const std::vector<char*>& outputs, size_t length);

 private:
  struct Lack {
    bool all = true;
    std::vector<int64_t> starts;  // of rows
  };

  const GraphSpec& spec_;
  std::vector<Lack> lacks_;  // for each state
};

}  // namespace tvm_stretch
