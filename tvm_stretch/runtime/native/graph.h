// The executor's graph: what tvm_stretch/lowering/graph.py writes as JSON, checked.
#ifndef TVM_STRETCH_GRAPH_H_
#define TVM_STRETCH_GRAPH_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <string>
#include <vector>

// What libraries of other processors may use; see processor.h.
#define TVM_STRETCH_API __attribute__((visibility("default")))

namespace tvm_stretch {

namespace ffi = tvm::ffi;

// Kernels read whole vector registers and never check.
inline constexpr size_t kAlignment = 64;
// The largest pages that phones have; parts of memory that devices map start at multiples of it.
inline constexpr size_t kPageBytes = 16384;
inline constexpr const char* kCopyKernel = "tvm_stretch.copy";
inline constexpr const char* kCpuKind = "cpu";
inline constexpr size_t kCpu = 0;  // its place among the processors

enum class Memory { kInput, kOutput, kArena, kConstant, kPrepared };

// A window on one memory, `offset` bytes from its start.
struct TensorSpec {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements; those of rows of a feature map leave gaps
  DLDataType dtype;
  Memory memory;
  int64_t buffer;  // position in the graph's inputs or outputs; 0 for the other memories
  int64_t offset;
  int64_t bytes;  // to behind the last element
};

struct NodeSpec {
  std::string kernel;
  std::string name;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
};

// A processor that runs regions. The first one is the CPU, which runs the prepare nodes too.
struct ProcessorSpec {
  std::string name;
  std::string kind;
};

// Nodes that one processor runs as one unit. Regions stand in an order in which they could run one
// after the other; those of one processor do run in that order.
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

// What the integers of an input or output have to be.
struct GuardSpec {
  int64_t tensor;
  // For each place in the last dimension, or one for all; empty for values that must not be zero.
  std::vector<int64_t> low;
  std::vector<int64_t> high;
  std::string what;  // for messages
};

struct PortSpec {
  std::string name;
  int64_t tensor;
};

// Regions that compute the network, one of several ways to do so. Those of a plan stand together.
struct PlanSpec {
  std::string name;
  size_t first;  // region
  size_t count;
  int64_t expected_ns;  // of a run that nothing disturbs; 0: not known
};

struct GraphSpec {
  std::vector<PortSpec> inputs;
  std::vector<PortSpec> outputs;
  size_t results;  // how many outputs are the caller's; those behind are there for guards
  std::vector<GuardSpec> guards;
  std::vector<TensorSpec> tensors;
  std::vector<NodeSpec> prepare;
  std::vector<NodeSpec> nodes;
  std::vector<ProcessorSpec> processors;
  std::vector<RegionSpec> regions;
  std::vector<PlanSpec> plans;  // one at least
  std::vector<std::string> cpu_features;
  std::string origin;  // who wrote it, and for which CPU
  int64_t arena_bytes;
  int64_t weights_bytes;
  int64_t prepared_bytes;
  int threads;
  bool spare;  // the CPU has the kernels of all nodes, for when a device fails

  const TensorSpec& input(size_t i) const { return tensors[inputs[i].tensor]; }
  const TensorSpec& output(size_t i) const { return tensors[outputs[i].tensor]; }

  // Reads and checks the graph: afterwards every id is valid, every tensor lies within its memory
  // and every node belongs to one region. Throws ValueError.
  static GraphSpec FromJSON(const ffi::String& json);
};

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_GRAPH_H_
