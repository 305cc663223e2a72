#include "instance.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "announced_runs.h"

namespace tvm_stretch {
namespace {

// Bytes of each input: with room for states that slide and their outputs.
std::vector<int64_t> InputBytes(const GraphSpec& spec) {
  std::vector<int64_t> bytes;
  for (const PortSpec& port : spec.inputs) bytes.push_back(port.bytes);
  for (const StateSpec& state : spec.states) {
    if (state.slide > 0) bytes[state.input] += BytesToSlide(spec, state);
  }
  return bytes;
}

// Bytes of each output's own memory.
std::vector<int64_t> OutputBytes(const GraphSpec& spec) {
  std::vector<int64_t> bytes;
  for (const PortSpec& port : spec.outputs) bytes.push_back(port.bytes);
  for (const StateSpec& state : spec.states) {
    if (state.slide > 0) bytes[state.output] = 0;
  }
  return bytes;
}

// Bytes of arena, inputs and outputs, each at the start of a page.
size_t BlockBytes(const GraphSpec& spec) {
  size_t bytes = RoundUp(spec.arena_bytes, kPageBytes);
  for (int64_t own : InputBytes(spec)) bytes += RoundUp(own, kPageBytes);
  for (int64_t own : OutputBytes(spec)) bytes += RoundUp(own, kPageBytes);
  return bytes;
}

// If the device lacks the memory, its program uses copies of ours, or reports missing room itself.
SharedBlock AllocateOnDevice(const Program& program) {
  const auto& devices = program.devices();
  SharedBlock block;
  for (const auto& device : devices) {
    if (block.data != nullptr) break;
    (void)Attempt(
        [&] { block = device->AllocateBlock(BlockBytes(program.spec()), devices.size() > 1); });
  }
  return block;
}

// A kernel of a stream computes everything unless it is asked for less.
void AskForAll(const GraphSpec& spec, const MemoryMap& memory, const NodeSpec& node) {
  if (node.reach.empty()) return;
  auto* rectangle =
      reinterpret_cast<int64_t*>(AddressOf(memory, spec.tensors[node.outputs.back()]));
  const std::vector<int64_t>& shape = spec.tensors[node.outputs[0]].shape;
  rectangle[0] = rectangle[2] = 0;
  rectangle[1] = shape[PixelGrid::kRowAxis];
  rectangle[3] = shape[PixelGrid::kRowAxis + 1];
}

std::vector<int64_t> ExpectedTimes(const GraphSpec& spec) {
  std::vector<int64_t> times;
  for (const PlanSpec& plan : spec.plans) times.push_back(plan.expected_ns);
  return times;
}

Energies EnergiesOf(const GraphSpec& spec) {
  Energies energies{{}, static_cast<double>(spec.within_ns)};
  for (const PlanSpec& plan : spec.plans) {
    if (plan.milliwatts == 0) return {};
    energies.watts.push_back(static_cast<double>(plan.milliwatts) / 1e3);
  }
  return energies;
}

std::vector<double> SharesOf(const GraphSpec& spec) {
  std::vector<double> shares;
  for (const ProcessorSpec& processor : spec.processors) shares.push_back(processor.max_share);
  return shares;
}

Paces PacesOf(const GraphSpec& spec) {
  std::vector<std::vector<RegionWork>> plans;
  for (const PlanSpec& plan : spec.plans) {
    plans.emplace_back();
    for (size_t i = 0; i < plan.work_ns.size(); ++i) {
      const RegionSpec& region = spec.regions[plan.first + i];
      RegionWork work{
          static_cast<size_t>(region.processor), {}, static_cast<double>(plan.work_ns[i])};
      for (int64_t other : region.after) work.after.push_back(other - plan.first);
      plans.back().push_back(std::move(work));
    }
  }
  return Paces(spec.processors.size(), std::move(plans));
}

}  // namespace

Instance::Instance(std::shared_ptr<const Program> program)
    : program_(std::move(program)),
      spec_(program_->spec()),
      device_block_(AllocateOnDevice(*program_)),
      block_(device_block_.data != nullptr ? 0 : BlockBytes(spec_),
             spec_.processors.size() > 1 ? Sharing::kShared : Sharing::kPrivate),
      memory_(PlaceMemory()),
      inputs_(memory_.inputs),
      outputs_(memory_.outputs),
      written_(spec_),
      takes_inputs_(spec_.inputs.size(), true),
      takes_outputs_(spec_.outputs.size(), true),
      readers_(spec_.inputs.size()),
      is_imported_(spec_.inputs.size()),
      chooser_(ExpectedTimes(spec_), PacesOf(spec_), EnergiesOf(spec_)),
      cpu_(spec_, program_->kernels(), memory_),
      pauses_(SharesOf(spec_)) {
  for (const LengthSpec& own : spec_.lengths) guards_.emplace_back(own.guards, &cpu_.tensors());
  UseLength(0);
  lost_on_.resize(spec_.processors.size());
  DescribePlans();
  for (const StateSpec& state : spec_.states) {
    if (state.output < spec_.results) takes_outputs_[state.output] = false;
    held_.push_back(spec_.output(state.output).bytes);
    samplers_.emplace_back(state.sampling);
  }
  for (const NodeSpec& node : spec_.nodes) AskForAll(spec_, memory_, node);
  if (spec_.spare) spare_.emplace(spec_, program_->kernels(), &cpu_.tensors());
  lost_ = program_->lost();
  if (!lost_) lost_ = Attempt([this] { CreateDevices(); });
  if (lost_) {
    DropTasks();
    devices_.clear();
    taken_.clear();
    if (!spare_) throw *lost_;
  }
  const auto begins = [](const StateSpec& state) { return state.initial >= 0; };
  if (std::any_of(spec_.states.begin(), spec_.states.end(), begins)) ResetStates();
  AddInstance(this);
}

Instance::~Instance() {
  RemoveInstance(this);
  DropTasks();
}

void Instance::DropTasks() {
  for (BoundPlan& plan : plans_) {
    plan.tasks.clear();
    plan.on_cpu.clear();
    plan.on_devices.clear();
    plan.pauses.clear();
  }
  while (!tasks_.empty()) tasks_.pop_back();  // later tasks use earlier ones
}

MemoryMap Instance::PlaceMemory() {
  MemoryMap memory;
  memory.block = SharedBlock{block_.data(), block_.bytes(), block_.fd(), nullptr};
  if (device_block_.data != nullptr) memory.block = device_block_;
  memory.constant = program_->constant();
  memory.prepared = program_->prepared();
  char* next = memory.block.data;
  auto take = [&next](int64_t bytes) {
    char* start = next;
    next += RoundUp(bytes, kPageBytes);
    return start;
  };
  memory.arena = take(spec_.arena_bytes);
  for (int64_t bytes : InputBytes(spec_)) memory.inputs.push_back(take(bytes));
  for (int64_t bytes : OutputBytes(spec_)) memory.outputs.push_back(take(bytes));
  for (const StateSpec& state : spec_.states) {
    if (state.slide > 0) memory.outputs[state.output] = memory.inputs[state.input] + state.slide;
  }
  return memory;
}

void Instance::DescribePlans() {
  for (const PlanSpec& spec : spec_.plans) {
    BoundPlan plan;
    plan.spec = &spec;
    plan.uses.resize(spec_.processors.size());
    for (size_t i = spec.first; i < spec.first + spec.count; ++i) {
      const RegionSpec& region = spec_.regions[i];
      plan.uses[region.processor] = true;
      if (region.processor == kCpu) continue;
      ForEachTensor(spec_, region, [&](int64_t id) {
        const TensorSpec& tensor = spec_.tensors[id];
        if (tensor.memory == Memory::kInput) {
          takes_inputs_[tensor.buffer] = false;
          readers_[tensor.buffer].insert(region.processor);
        }
        if (tensor.memory == Memory::kOutput) takes_outputs_[tensor.buffer] = false;
      });
    }
    plans_.push_back(std::move(plan));
  }
}

bool Instance::ImportsInput(size_t i, const DLTensor& tensor) {
  if (devices_.empty() || readers_[i].empty()) return false;
  const auto memory = FindMemory(DataOf(tensor), ffi::GetDataSize(tensor));
  bool all = memory.has_value();
  for (int64_t reader : readers_[i]) {
    if (!all) break;
    is_imported_[i] = true;
    const Failure failure = Attempt([&] { all = devices_[reader - 1]->BindInput(i, &*memory); });
    all = all && !failure;
  }
  return all;
}

void Instance::BindInput(size_t i, char* data) {
  cpu_.tensors().BindInput(i, data);
  if (!is_imported_[i] || data != inputs_[i]) return;
  is_imported_[i] = false;
  for (int64_t reader : readers_[i]) devices_[reader - 1]->BindInput(i, nullptr);
}

void Instance::CreateDevices() {
  for (const auto& device : program_->devices()) {
    devices_.push_back(device->CreateInstance(memory_));
    const Cores cores = device->cores();
    taken_.insert(taken_.end(), cores.begin(), cores.end());
  }
  for (BoundPlan& plan : plans_) BindRegions(&plan);
}

void Instance::BindRegions(BoundPlan* plan) {
  cpu_.BeginPlan();
  for (const auto& device : devices_) device->BeginPlan();
  pauses_.BeginPlan();
  for (size_t i = plan->spec->first; i < plan->spec->first + plan->spec->count; ++i) {
    const RegionSpec& region = spec_.regions[i];
    std::vector<Task*> after;
    for (int64_t id : region.after) after.push_back(tasks_[id].get());
    const bool on_cpu = region.processor == kCpu;
    Processor& processor = on_cpu ? cpu_ : *devices_[region.processor - 1];
    const bool is_limited = pauses_.AreNeeded(region.processor);
    if (is_limited) {
      after.push_back(pauses_.Before(region.processor, after));
      plan->pauses.push_back(after.back());
    }
    tasks_.push_back(processor.Bind(region, after));
    if (is_limited) pauses_.Bound(region.processor, tasks_.back().get());
    plan->tasks.push_back(tasks_.back().get());
    (on_cpu ? plan->on_cpu : plan->on_devices).push_back(tasks_.back().get());
  }
}

}  // namespace tvm_stretch
