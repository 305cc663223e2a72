#include "spare.h"

namespace tvm_stretch {

Spare::Spare(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors)
    : spans_(graph.regions.size()) {
  for (const RegionSpec& region : graph.regions) {
    regions_.emplace_back(graph.nodes, region.nodes, kernels, tensors);
  }
}

void Spare::Run(const PlanSpec& plan, bool traced) {
  for (size_t i = plan.first; i < plan.first + plan.count; ++i) {
    spans_[i].clear();
    regions_[i].Run(cancelled_, traced ? &spans_[i] : nullptr);
  }
}

}  // namespace tvm_stretch
