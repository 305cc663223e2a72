// The executor's graph: the JSON that make/lowering/executor_graph.py writes, parsed and checked.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Exported for libraries of other processors; see processor.h.
#define TVM_STRETCH_API __attribute__((visibility("default")))

namespace tvm_stretch {

namespace ffi = tvm::ffi;

// Kernels load whole vector registers and do not check alignment.
inline constexpr size_t kAlignment = 64;
// The largest page size of phones; memory that devices map starts at multiples of it.
inline constexpr size_t kPageBytes = 16384;
inline constexpr const char* kCopyKernel = "tvm_stretch.copy";
// Writes rows (input 1) at places (input 0) of a tensor, and where they begin; see bound_graph.h.
inline constexpr const char* kWriteKernel = "tvm_stretch.write";
inline constexpr const char* kCpuKind = "cpu";
inline constexpr size_t kCpu = 0;  // its position among the processors

enum class Memory { kInput, kOutput, kArena, kConstant, kPrepared };

// A view of one memory, `offset` bytes from its start.
struct TensorSpec {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements; rows of a feature map may have gaps
  DLDataType dtype;
  Memory memory;
  int64_t buffer;  // position in the graph's inputs or outputs; 0 for the other memories
  int64_t offset;
  int64_t bytes;  // to the end of the last element
};

struct NodeSpec {
  std::string kernel;
  std::string name;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  // For streams, if it can compute a rectangle, which its last output names: the position of the
  // input that it reads in windows; for rows and for columns the step of windows, the padding and
  // the size of a window; the rows and columns of areas for which it is called; the side of tiles
  // in which each pixel's rounding depends on all inputs.
  std::vector<int64_t> reach;
  // A tensor of one byte and whether it has to be true, if nothing reads the outputs otherwise: the
  // CPU then skips the node. Empty if it always runs.
  std::vector<int64_t> when;
};

// A processor that runs regions. The first one is the CPU, which runs the prepare nodes too.
struct ProcessorSpec {
  std::string name;
  std::string kind;
  double max_share = 1;  // of the time in which it may be busy
};

// Nodes that one processor runs as one unit. Regions are in a topological order; regions of one
// processor run in this order.
struct RegionSpec {
  std::string name;
  int64_t processor;
  std::vector<int64_t> nodes;  // in the order they run
  // Regions of other processors that must be complete before this one begins.
  std::vector<int64_t> after;
  // Tensors to copy into (out of) a processor's own memory before (after) the nodes run.
  std::vector<int64_t> receives;
  std::vector<int64_t> sends;
};

// The values that the integers of an input or output must have.
struct GuardSpec {
  int64_t tensor;
  // For each index of the last dimension, or one for all; empty if values must not be zero.
  std::vector<int64_t> low;
  std::vector<int64_t> high;
  std::string what;  // for messages
};

struct PortSpec {
  std::string name;
  int64_t tensor;  // of the first length
  int64_t bytes;   // of its memory: those of the largest length
};

inline constexpr double kMaxTemperature = 1e6;

// How an index is drawn from scores; see sampler.h. A temperature of 0: not at all.
struct SamplingSpec {
  double temperature = 0;
  int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  int64_t seed = 0;
};

// An input that holds what an output had after the last run that succeeded.
struct StateSpec {
  size_t input;
  size_t output;
  // Bytes from the input to the output, which is the next input: of several lengths, the most of
  // them. 0: apart.
  int64_t slide;
  // The output that has the first bytes of the rows that a run writes, and the bytes of a row, if
  // the rest of the next input is a copy of this one; otherwise -1.
  int64_t starts;
  int64_t row;
  int64_t initial;  // where its first value begins in the weights; -1: zeros
  // The output from whose rows the next value may be drawn; -1: it is as the network computes it.
  int64_t scores = -1;
  SamplingSpec sampling;
  // By how much its next value falls for each value of the chosen state that is taken back, as if
  // the run had not read it; -1: it cannot be taken back.
  int64_t rewind = -1;
  // Whether some lengths read more values than the output has: the caller sets them before a run.
  bool is_fed = false;
};

// The ports of the networks whose inputs have one of the lengths for which a graph was compiled.
struct LengthSpec {
  std::string name;              // "n=64"; empty if the graph has one length only
  std::vector<int64_t> inputs;   // their tensors, in the order of the graph's inputs
  std::vector<int64_t> outputs;  // their tensors, in the order of the graph's outputs
  std::vector<GuardSpec> guards;
  std::vector<int64_t> slides;  // of the states; 0 for those that are apart
  std::vector<std::pair<std::string, int64_t>> sizes_by_name;  // of the dimensions with names
  std::vector<int64_t> sizes;                                  // of the graph's spans

  // How many elements a tensor with these dimensions has: the order of lengths.
  double product() const {
    double all = 1;
    for (const auto& [name, size] : sizes_by_name) all *= static_cast<double>(size);
    return all;
  }
};

// How an input grows with a span: for each axis by how many elements a position.
struct SpanInput {
  std::vector<int64_t> growth;
  std::optional<int64_t> fill;  // the value of its padding, which hides it; otherwise any value
  bool hides;                   // it has to show a position in each row
};

// A dimension whose sizes between those of the lengths are padded to the next one.
struct SpanSpec {
  std::string name;
  int64_t low;
  int64_t high;
  std::vector<SpanInput> inputs;              // the caller's
  std::vector<std::vector<int64_t>> outputs;  // the growth of the caller's
};

// The regions of one plan, each of which computes the whole network. They are consecutive.
struct PlanSpec {
  std::string name;
  size_t first;  // region
  size_t count;
  int64_t expected_ns;           // of an undisturbed run; 0: not known
  std::vector<int64_t> work_ns;  // of each region in such a run, without waits; empty: not known
  int64_t milliwatts = 0;        // of such a run, if plans are chosen by energy
};

struct GraphSpec {
  std::vector<PortSpec> inputs;
  std::vector<PortSpec> outputs;
  size_t arguments;  // the caller's inputs; the following ones are states
  size_t results;    // the caller's outputs; the following ones become states or are read by guards
  std::vector<StateSpec> states;
  std::vector<LengthSpec> lengths;  // at least one; if there are several, one for each plan
  std::vector<SpanSpec> spans;
  std::vector<TensorSpec> tensors;
  std::vector<NodeSpec> prepare;
  std::vector<NodeSpec> nodes;
  std::vector<ProcessorSpec> processors;
  std::vector<RegionSpec> regions;
  std::vector<PlanSpec> plans;  // at least one
  std::vector<std::string> cpu_features;
  std::string origin;  // its compiler and CPU, for messages
  int64_t arena_bytes;
  int64_t weights_bytes;
  int64_t prepared_bytes;
  int64_t within_ns = 0;  // how long a run may take if plans are chosen by energy; 0: any time
  int threads;
  bool spare;    // the CPU has kernels of all nodes, in case a device fails
  bool streams;  // every tensor keeps its bytes after a run

  const TensorSpec& input(size_t i, size_t length = 0) const {
    return tensors[lengths[length].inputs[i]];
  }
  const TensorSpec& output(size_t i, size_t length = 0) const {
    return tensors[lengths[length].outputs[i]];
  }
  // The names of all lengths, for messages.
  std::string length_names() const {
    std::string names;
    for (const LengthSpec& length : lengths) names += (names.empty() ? "" : "; ") + length.name;
    return names;
  }
  size_t LengthOf(size_t plan) const { return lengths.size() == 1 ? 0 : plan; }
  // The number of regions of plans. In a graph for streams, others follow, in which processors
  // compute areas of the CPU's nodes (shared_areas.h).
  size_t planned() const { return plans.back().first + plans.back().count; }

  // Reads and checks the graph: afterwards every id is valid, every tensor lies within its memory
  // and every node belongs to one region. Throws ValueError.
  static GraphSpec FromJSON(const ffi::String& json);
};

// Calls visit(id) for every tensor that a region reads or writes.
template <typename Visit>
void ForEachTensor(const GraphSpec& spec, const RegionSpec& region, const Visit& visit) {
  std::for_each(region.receives.begin(), region.receives.end(), visit);
  std::for_each(region.sends.begin(), region.sends.end(), visit);
  for (int64_t node : region.nodes) {
    const NodeSpec& spec_of_node = spec.nodes[node];
    std::for_each(spec_of_node.inputs.begin(), spec_of_node.inputs.end(), visit);
    std::for_each(spec_of_node.outputs.begin(), spec_of_node.outputs.end(), visit);
  }
}

}  // namespace tvm_stretch
