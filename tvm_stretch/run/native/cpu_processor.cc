#include "cpu_processor.h"

#include <atomic>
#include <utility>

namespace tvm_stretch {
namespace {

class CpuTask final : public Task {
 public:
  CpuTask(const RegionSpec& region, std::vector<Task*> after, BoundNodes nodes)
      : region_(region), after_(std::move(after)), nodes_(std::move(nodes)) {}

  void Reset(bool traced) final {
    Task::Reset(traced);
    traced_ = traced;
    spans_.clear();
    cancelled_.store(false, std::memory_order_relaxed);
  }
  void Start() final {
    Failure failure = AwaitOthers();
    if (!failure)
      failure = Attempt([this] { nodes_.Run(cancelled_, traced_ ? &spans_ : nullptr); });
    Complete(std::move(failure));
  }
  void Cancel() final { cancelled_.store(true, std::memory_order_relaxed); }
  std::vector<Span> Spans() const final { return spans_; }

 private:
  Failure AwaitOthers() {
    for (size_t i = 0; i < after_.size(); ++i) {
      const int64_t start = traced_ ? Now() : 0;
      if (const Failure& failure = after_[i]->Wait()) return failure;
      if (!traced_ || i >= region_.after.size()) continue;
      spans_.push_back(Span{Span::Kind::kWait, region_.after[i], region_.name, start, Now()});
    }
    return std::nullopt;
  }

  const RegionSpec& region_;
  const std::vector<Task*> after_;
  const BoundNodes nodes_;
  std::atomic<bool> cancelled_{false};
  bool traced_ = false;
  std::vector<Span> spans_;
};

}  // namespace

Spare::Spare(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors)
    : spans_(graph.planned()) {
  for (size_t i = 0; i < graph.planned(); ++i) {
    regions_.emplace_back(graph.nodes, graph.regions[i].nodes, kernels, tensors);
  }
}

void Spare::Run(const PlanSpec& plan, bool traced) {
  for (size_t i = plan.first; i < plan.first + plan.count; ++i) {
    spans_[i].clear();
    regions_[i].Run(cancelled_, traced ? &spans_[i] : nullptr);
  }
}

std::unique_ptr<Task> CpuProcessor::Bind(const RegionSpec& region,
                                         const std::vector<Task*>& after) {
  std::vector<Task*> all = after;
  if (last_ != nullptr) all.push_back(last_);  // for its failure; it is complete by then
  auto task = std::make_unique<CpuTask>(
      region, std::move(all), BoundNodes(graph_.nodes, region.nodes, kernels_, &tensors_));
  last_ = task.get();
  return task;
}

}  // namespace tvm_stretch
