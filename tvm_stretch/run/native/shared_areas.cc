#include "shared_areas.h"

#include <algorithm>

#include "errors.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kHead = 3;  // numbers before the first area

[[noreturn]] void RefuseRegion(const RegionSpec& region) {
  TVM_FFI_THROW(ValueError) << "expected one node with a list of areas in region '" << region.name
                            << "', got others; compile the model again";
  TVM_FFI_UNREACHABLE();
}

// OpenCL has atomics of 32 bits, so both sides use half of a number.
int32_t* Half(int64_t* number) { return reinterpret_cast<int32_t*>(number); }

}  // namespace

SharedAreas::SharedAreas(const GraphSpec& graph, const MemoryMap& memory,
                         const std::vector<std::unique_ptr<Processor>>& devices)
    : graph_(graph) {
  for (const auto& device : devices) device->BeginPlan();
  for (size_t i = graph.planned(); i < graph.regions.size(); ++i) {
    const RegionSpec& region = graph.regions[i];
    const size_t place = region.processor - 1;
    const bool is_here = region.processor != kCpu && place < devices.size();
    if (is_here && devices[place]->SharesMemory()) Add(graph, region, memory, devices[place].get());
  }
}

SharedAreas::~SharedAreas() {
  End();
  while (!shares_.empty()) shares_.pop_back();  // later tasks use earlier ones
}

void SharedAreas::Add(const GraphSpec& graph, const RegionSpec& region, const MemoryMap& memory,
                      Processor* processor) {
  if (region.nodes.size() != 1) RefuseRegion(region);
  const NodeSpec& node = graph.nodes[region.nodes[0]];
  if (node.outputs.size() != 2) RefuseRegion(region);
  const TensorSpec& list = graph.tensors[node.outputs[1]];
  const bool is_list = list.shape.size() == 1 && list.shape[0] >= kHead &&
                       list.dtype.code == kDLInt && list.dtype.bits == 64 &&
                       list.memory == Memory::kArena;
  if (!is_list) RefuseRegion(region);
  if (by_result_.count(node.outputs[0]) != 0) return;  // one other processor is enough
  auto turn = std::make_unique<Turn>();
  auto task = processor->Bind(region, {turn.get()});
  by_result_[node.outputs[0]] = shares_.size();
  shares_.push_back(Share{&region, reinterpret_cast<int64_t*>(AddressOf(memory, list)),
                          static_cast<size_t>(list.shape[0] - kHead) / 4, std::move(turn),
                          std::move(task)});
}

void SharedAreas::Start() {
  started_ = true;
  begun_ = 0;
  for (Share& share : shares_) {
    __atomic_store_n(Half(share.list), 0, __ATOMIC_RELAXED);
    share.list[2] = 0;
    share.turn->Reset(false);
    share.task->Reset(false);
  }
  for (Share& share : shares_) share.task->Start();
}

// Regions run in order, so those of earlier steps begin too; their lists are empty.
void SharedAreas::BeginUntil(size_t end) {
  for (; begun_ < end; ++begun_) shares_[begun_].turn->Begin();
}

bool SharedAreas::Offer(int64_t result, const std::vector<Area>& areas) {
  const auto found = by_result_.find(result);
  if (found == by_result_.end()) return false;
  if (!started_) Start();
  Share& share = shares_[current_ = found->second];
  offered_ = &areas;
  rest_ = listed_ = std::min(share.most, areas.size());
  taken_ = 0;
  int64_t* next = share.list + kHead;
  for (size_t i = 0; i < listed_; ++i, next += 4) {
    next[0] = areas[i].top;
    next[1] = areas[i].bottom;
    next[2] = areas[i].left;
    next[3] = areas[i].right;
  }
  __atomic_store_n(Half(share.list + 1), static_cast<int32_t>(listed_) - 1, __ATOMIC_RELAXED);
  share.list[2] = static_cast<int64_t>(listed_);
  BeginUntil(current_ + 1);
  return true;
}

std::optional<Area> SharedAreas::Take() {
  if (rest_ < offered_->size()) return (*offered_)[rest_++];
  int32_t* const taken = Half(shares_[current_].list);
  const auto before = static_cast<size_t>(__atomic_fetch_add(taken, 1, __ATOMIC_ACQ_REL));
  if (before >= listed_) return std::nullopt;
  return (*offered_)[taken_++];
}

Failure SharedAreas::Join() {
  if (taken_ == listed_) return std::nullopt;
  const Share& share = shares_[current_];
  return share.task->Wait() ? Failed(share) : std::nullopt;
}

Failure SharedAreas::End() {
  if (!started_) return std::nullopt;
  started_ = false;
  BeginUntil(shares_.size());
  Failure failure;
  for (const Share& share : shares_) {
    if (share.task->Wait() && !failure) failure = Failed(share);
  }
  return failure;
}

// The failure with the names of region and processor, and a hint.
Failure SharedAreas::Failed(const Share& share) {
  const ffi::Error& error = *share.task->Wait();
  const std::string& name = graph_.processors[share.region->processor].name;
  std::string advice = "; run it again";
  advice += ", compile with spare=True so that the CPU takes over, or without that processor";
  if (graph_.spare) advice = "";  // the CPU runs it instead
  return ffi::Error(error.kind() == kRunError ? kRunError : kDeviceError,
                    "expected processor '" + name + "' to compute " + share.region->name +
                        ", got: " + error.message() + advice,
                    error.backtrace());
}

}  // namespace tvm_stretch
