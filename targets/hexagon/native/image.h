// A graph's regions in the DSP's format (targets/hexagon/dsp/protocol.h), and the weights they
// need.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "code.h"
#include "graph.h"
#include "processor.h"

namespace tvm_stretch::dsp {

// Weights that one processor reads, aligned to a DSP's longest vectors.
class Weights {
 public:
  // Throws RunError if memory is missing, DeviceError if the DSP cannot address the weights.
  Weights(const GraphSpec& graph, size_t processor, const CodeSpec& code, const MemoryMap& memory);

  const SharedBlock& block() const { return block_; }
  int64_t OffsetOf(int64_t tensor) const { return offsets_.at(tensor); }
  int64_t bytes() const { return bytes_; }

 private:
  std::map<int64_t, int64_t> offsets_;  // of tensors
  int64_t bytes_ = 0;
  SharedBlock block_;
};

// The program of an instance: its regions, in the order of the graph's.
struct Image {
  std::string bytes;                    // with the header, without the spans
  std::map<int64_t, uint32_t> regions;  // ids of the graph's regions that are the processor's
  std::vector<int64_t> nodes;           // the graph's node of each of its nodes
  std::vector<std::pair<uint32_t, uint32_t>> bounds;  // of each region: first node, count

  // Throws ValueError if the graph needs a kernel that the code lacks.
  static Image Make(const GraphSpec& graph, size_t processor, const CodeSpec& code,
                    const Weights& weights, const MemoryMap& memory);
};

}  // namespace tvm_stretch::dsp
