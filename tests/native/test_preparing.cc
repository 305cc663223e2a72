// Nodes of several cores: each waits for those whose memory it uses; weights are checked beside.
#include <gtest/gtest.h>
#include <tvm/ffi/extra/module.h>

#include <atomic>
#include <vector>

#include "graph.h"
#include "processor.h"
#include "program.h"

namespace tvm_stretch {
namespace {

// Each kernel writes one more than the largest of what it reads.
class CountingKernels : public ffi::ModuleObj {
 public:
  const char* kind() const final { return "library"; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable; }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    if (name == "fail") {
      return ffi::Function::FromPacked([](ffi::PackedArgs, ffi::Any*) {
        TVM_FFI_THROW(ValueError) << "expected a kernel that works, got this one; see the test";
      });
    }
    return ffi::Function::FromPacked([](ffi::PackedArgs args, ffi::Any*) {
      float most = 0;
      const auto data = [&](int i) { return static_cast<float*>(args[i].cast<DLTensor*>()->data); };
      for (int i = 0; i + 1 < args.size(); ++i) most = std::max(most, *data(i));
      for (int i = 0; i < 16; ++i) data(args.size() - 1)[i] = most + 1;
    });
  }
};

// Tensor 0 is a constant; tensors 1.. are prepared, each at its own place of 64 bytes.
GraphSpec GraphOf(const std::vector<NodeSpec>& nodes, size_t places, int threads) {
  GraphSpec graph{};
  graph.threads = threads;
  for (size_t i = 0; i <= places; ++i) {
    TensorSpec tensor{};
    tensor.shape = {16};
    tensor.strides = {1};
    tensor.dtype = DLDataType{kDLFloat, 32, 1};
    tensor.memory = i == 0 ? Memory::kConstant : Memory::kPrepared;
    tensor.offset = i == 0 ? 0 : 64 * (static_cast<int64_t>(i) - 1);
    tensor.bytes = 64;
    graph.tensors.push_back(std::move(tensor));
  }
  graph.prepare = nodes;
  graph.prepared_bytes = 64 * static_cast<int64_t>(places);
  return graph;
}

NodeSpec Node(const char* kernel, std::vector<int64_t> inputs, int64_t output) {
  NodeSpec node{};
  node.kernel = node.name = kernel;
  node.inputs = std::move(inputs);
  node.outputs = {output};
  return node;
}

struct Prepared {
  explicit Prepared(GraphSpec spec)
      : graph(std::move(spec)), memory(static_cast<size_t>(graph.prepared_bytes) / 4), weights(16) {
    map.constant = reinterpret_cast<char*>(weights.data());
    map.prepared = reinterpret_cast<char*>(memory.data());
  }

  Failure Run(const std::function<void()>& check) {
    const KernelTable kernels(ffi::Module(ffi::make_object<CountingKernels>()), graph,
                              tvm_stretch::kCpu);
    BoundTensors tensors(graph, map);
    return Attempt([&] { Preparation(graph, kernels, &tensors, check).Run(); });
  }

  GraphSpec graph{};
  std::vector<float> memory, weights;
  MemoryMap map;
};

TEST(Preparation, NodesWaitForWhatTheyReadAndOverwrite) {
  // 1 <- 0, 2 <- 1, .. in a chain, while others read places that are then written again.
  std::vector<NodeSpec> nodes;
  for (int64_t i = 0; i < 20; ++i) {
    nodes.push_back(Node("count", {i}, i + 1));
    nodes.push_back(Node("count", {i + 1}, 21 + i));
  }
  nodes.push_back(Node("count", {40}, 1));  // 22 + 1
  nodes.push_back(Node("count", {1}, 2));
  for (int round = 0; round < 20; ++round) {
    for (const int threads : {1, 2}) {
      Prepared prepared(GraphOf(nodes, 40, threads));
      std::atomic<int> checks{0};
      const Failure failure = prepared.Run([&] { ++checks; });
      ASSERT_FALSE(failure) << failure->message();
      EXPECT_EQ(checks, 1);
      EXPECT_EQ(prepared.memory[0], 22);
      EXPECT_EQ(prepared.memory[16], 23);
      for (int64_t i = 2; i < 20; ++i) EXPECT_EQ(prepared.memory[16 * i], i + 1);
      for (int64_t i = 20; i < 40; ++i) EXPECT_EQ(prepared.memory[16 * i], i - 18);
    }
  }
}

TEST(Preparation, TheFirstFailureIsThrown) {
  const std::vector<NodeSpec> nodes{Node("count", {0}, 1), Node("fail", {1}, 2),
                                    Node("count", {2}, 3)};
  Prepared prepared(GraphOf(nodes, 3, 1));
  EXPECT_EQ(prepared.Run([] {})->kind(), "ValueError");
  EXPECT_EQ(prepared.memory[32], 0);  // its operand is not there
}

TEST(Preparation, DamagedWeightsAreRefused) {
  for (const bool any : {true, false}) {
    const std::vector<NodeSpec> nodes{Node("count", {0}, 1)};
    Prepared prepared(GraphOf(any ? nodes : std::vector<NodeSpec>{}, 1, 1));
    const Failure failure =
        prepared.Run([] { TVM_FFI_THROW(ValueError) << "expected weights, got others; export"; });
    ASSERT_TRUE(failure);
    EXPECT_NE(failure->message().find("got others"), std::string::npos);
  }
}

}  // namespace
}  // namespace tvm_stretch
