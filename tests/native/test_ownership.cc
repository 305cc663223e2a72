// When memory changes hands between the host and a GPU (opencl/ownership.h).
#include <gtest/gtest.h>

#include <vector>

#include "random_graph.h"
#include "targets/opencl/native/ownership.h"

namespace tvm_stretch {
namespace {

using opencl::Cell;
using opencl::Ownership;
using opencl::PlanOwnership;
using testing::RandomGraph;

constexpr int64_t kDevice = 1;

// A graph of one arena; tensors are (offset, rows, elements of a row, elements between rows).
class Built {
 public:
  int64_t Tensor(int64_t offset, int64_t rows, int64_t row, int64_t step) {
    const int64_t bytes = 4 * ((rows - 1) * step + row);
    graph_.tensors.push_back(
        {{rows, row}, {step, 1}, DLDataType{kDLFloat, 32, 1}, Memory::kArena, 0, offset, bytes});
    return static_cast<int64_t>(graph_.tensors.size()) - 1;
  }
  int64_t Tensor(int64_t offset, int64_t floats) { return Tensor(offset, 1, floats, floats); }
  void Region(int64_t processor, std::vector<int64_t> inputs, std::vector<int64_t> outputs) {
    const auto node = static_cast<int64_t>(graph_.nodes.size());
    graph_.nodes.push_back({"kernel", "node", std::move(inputs), std::move(outputs)});
    graph_.regions.push_back({"region", processor, {node}, {}, {}, {}});
  }
  // Regions that follow are another plan's.
  void NextPlan() {
    const size_t first = graph_.plans.empty() ? 0 : graph_.planned();
    graph_.plans.push_back({"plan", first, graph_.regions.size() - first, 0, {}});
  }
  Ownership Plan() {
    NextPlan();
    graph_.lengths.resize(1);
    memory_.block = {arena_, sizeof(arena_), -1, nullptr};
    memory_.arena = arena_;
    return PlanOwnership(graph_, kDevice, memory_);
  }

 private:
  GraphSpec graph_{};
  MemoryMap memory_;
  char arena_[4096];
};

void ExpectCell(const Cell& cell, size_t offset, size_t bytes, std::vector<size_t> unmaps,
                std::vector<size_t> maps, bool rests_mapped) {
  EXPECT_EQ(cell.offset, offset);
  EXPECT_EQ(cell.bytes, bytes);
  EXPECT_EQ(cell.unmaps, unmaps);
  EXPECT_EQ(cell.maps, maps);
  EXPECT_EQ(cell.rests_mapped, rests_mapped);
}

TEST(Ownership, ThereAndBack) {
  Built graph;
  const int64_t there = graph.Tensor(0, 32), back = graph.Tensor(128, 32);
  graph.Region(kCpu, {}, {there});
  graph.Region(kDevice, {there}, {back});
  graph.Region(kCpu, {back}, {});
  const Ownership plan = graph.Plan();
  ASSERT_EQ(plan.cells.size(), 2);
  EXPECT_TRUE(plan.is_sound);
  ExpectCell(plan.cells[0], 0, 128, {0}, {0}, true);
  ExpectCell(plan.cells[1], 128, 128, {0}, {0}, true);
  EXPECT_TRUE(plan.cells[0].host_writes);
  EXPECT_FALSE(plan.cells[1].host_writes);
}

// What the host reads while the device still reads it is the host's as soon as it is written.
TEST(Ownership, BothRead) {
  Built graph;
  const int64_t a = graph.Tensor(0, 16), b = graph.Tensor(64, 16), c = graph.Tensor(128, 16);
  graph.Region(kDevice, {}, {a});
  graph.Region(kDevice, {a}, {b});
  graph.Region(kCpu, {a}, {c});
  graph.Region(kCpu, {b, c}, {});
  const Ownership plan = graph.Plan();
  ASSERT_EQ(plan.cells.size(), 3);
  ExpectCell(plan.cells[0], 0, 64, {0}, {0}, true);
  ExpectCell(plan.cells[1], 64, 64, {1}, {1}, true);
  ExpectCell(plan.cells[2], 128, 64, {}, {}, true);
}

// The device's own tensor lies where the host's did: it must not find the host's bytes in a cache.
TEST(Ownership, TheSameBytesAnotherTensor) {
  Built graph;
  const int64_t hosts = graph.Tensor(0, 16), crosses = graph.Tensor(64, 16);
  const int64_t own = graph.Tensor(0, 16), back = graph.Tensor(128, 16);
  graph.Region(kCpu, {}, {hosts});
  graph.Region(kCpu, {hosts}, {crosses});
  graph.Region(kDevice, {crosses}, {own});
  graph.Region(kDevice, {own}, {back});
  graph.Region(kCpu, {back}, {});
  const Ownership plan = graph.Plan();
  ASSERT_EQ(plan.cells.size(), 3);
  ExpectCell(plan.cells[0], 0, 64, {0}, {1}, true);
  ExpectCell(plan.cells[1], 64, 64, {0}, {0}, true);
}

TEST(Ownership, WhatOnlyTheDeviceUsesIsNeverMapped) {
  Built graph;
  const int64_t own = graph.Tensor(0, 16), back = graph.Tensor(64, 16);
  graph.Region(kDevice, {}, {own});
  graph.Region(kDevice, {own}, {back});
  graph.Region(kCpu, {back}, {});
  const Ownership plan = graph.Plan();
  ASSERT_EQ(plan.cells.size(), 1);
  ExpectCell(plan.cells[0], 64, 64, {1}, {1}, true);
}

// The device keeps a tensor in the first plan; in the second one the host computes everything.
TEST(Ownership, AnyPlanMayRunNext) {
  Built graph;
  const int64_t own = graph.Tensor(0, 16), back = graph.Tensor(64, 16),
                never = graph.Tensor(128, 16);
  graph.Region(kDevice, {}, {own, never});
  graph.Region(kDevice, {own, never}, {back});
  graph.Region(kCpu, {back}, {});
  graph.NextPlan();
  graph.Region(kCpu, {}, {own});
  graph.Region(kCpu, {own}, {back});
  const Ownership plan = graph.Plan();
  ASSERT_EQ(plan.cells.size(), 2);
  ExpectCell(plan.cells[0], 0, 64, {0}, {1}, true);
  ExpectCell(plan.cells[1], 64, 64, {1}, {1}, true);
  EXPECT_TRUE(plan.cells[0].host_writes);
}

// Rows of a tensor that each side writes a part of: pieces of 64 bytes are sound, others are not.
TEST(Ownership, PartsOfOneTensor) {
  for (int64_t row : {16, 12}) {
    Built graph;
    const int64_t upper = graph.Tensor(0, 2, row, 2 * row);
    const int64_t lower = graph.Tensor(4 * row, 2, row, 2 * row);
    const int64_t whole = graph.Tensor(0, 4 * row);
    graph.Region(kCpu, {}, {upper});
    graph.Region(kDevice, {}, {lower});
    graph.Region(kCpu, {whole}, {});
    const Ownership plan = graph.Plan();
    EXPECT_EQ(plan.is_sound, row == 16);
    ASSERT_EQ(plan.cells.size(), 4);
    EXPECT_TRUE(plan.cells[0].unmaps.empty());
    EXPECT_EQ(plan.cells[1].unmaps, std::vector<size_t>{0});
    EXPECT_EQ(plan.cells[1].maps, std::vector<size_t>{0});
  }
}

// Of random graphs that reuse memory; test_opencl_mock.cc runs such graphs.
TEST(Ownership, RandomGraphs) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    RandomGraph random(seed, 2, "opencl");
    random.reuses = true;
    const GraphSpec graph = GraphSpec::FromJSON(ffi::String(random.JSON()));
    std::vector<char> block(graph.arena_bytes + 64 * 5);
    MemoryMap memory;
    memory.block = {block.data(), block.size(), -1, nullptr};
    memory.arena = block.data();
    for (int i = 0; i < 5; ++i) {
      (i < 2 ? memory.inputs : memory.outputs).push_back(&block[graph.arena_bytes + 64 * i]);
    }
    const Ownership plan = PlanOwnership(graph, kDevice, memory);
    EXPECT_TRUE(plan.is_sound);
    size_t last = 0;
    for (const Cell& cell : plan.cells) {
      EXPECT_GE(cell.offset, last);
      last = cell.offset + cell.bytes;
      EXPECT_LE(last, block.size());
      EXPECT_LE(cell.maps.empty(), cell.unmaps.empty()) << "what is taken is given back";
    }
  }
}

}  // namespace
}  // namespace tvm_stretch
