#include "instance.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "announced_runs.h"
#include "errors.h"

namespace tvm_stretch {
namespace {

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Bytes of arena, inputs and outputs, each at the start of a page.
size_t BlockBytes(const GraphSpec& spec) {
  size_t bytes = RoundUp(spec.arena_bytes, kPageBytes);
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    bytes += RoundUp(spec.inputs[i].bytes, kPageBytes);
  }
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    bytes += RoundUp(spec.outputs[i].bytes, kPageBytes);
  }
  return bytes;
}

// If the device lacks the memory, its program uses copies of ours, or reports missing room itself.
std::shared_ptr<char> AllocateOnDevice(const Program& program) {
  const auto& devices = program.devices();
  if (devices.size() != 1) return nullptr;
  std::shared_ptr<char> block;
  (void)Attempt([&] { block = devices[0]->AllocateBlock(BlockBytes(program.spec())); });
  return block;
}

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
      block_(device_block_ ? 0 : BlockBytes(spec_),
             spec_.processors.size() > 1 ? Sharing::kShared : Sharing::kPrivate),
      memory_(PlaceMemory()),
      inputs_(memory_.inputs),
      outputs_(memory_.outputs),
      takes_inputs_(spec_.inputs.size(), true),
      takes_outputs_(spec_.outputs.size(), true),
      chooser_(ExpectedTimes(spec_), PacesOf(spec_)),
      cpu_(spec_, program_->kernels(), memory_) {
  for (const LengthSpec& own : spec_.lengths) guards_.emplace_back(own.guards, &cpu_.tensors());
  UseLength(0);
  lost_on_.resize(spec_.processors.size());
  DescribePlans();
  for (const StateSpec& state : spec_.states) {
    if (state.output < spec_.results) takes_outputs_[state.output] = false;
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
  }
  while (!tasks_.empty()) tasks_.pop_back();  // later tasks use earlier ones
}

MemoryMap Instance::PlaceMemory() {
  MemoryMap memory;
  memory.block = SharedBlock{block_.data(), block_.bytes(), block_.fd(), nullptr};
  if (device_block_) memory.block = {device_block_.get(), BlockBytes(spec_), -1, device_block_};
  memory.constant = program_->constant();
  memory.prepared = program_->prepared();
  char* next = memory.block.data;
  auto take = [&next](int64_t bytes) {
    char* start = next;
    next += RoundUp(bytes, kPageBytes);
    return start;
  };
  memory.arena = take(spec_.arena_bytes);
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    memory.inputs.push_back(take(spec_.inputs[i].bytes));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    memory.outputs.push_back(take(spec_.outputs[i].bytes));
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
        if (tensor.memory == Memory::kInput) takes_inputs_[tensor.buffer] = false;
        if (tensor.memory == Memory::kOutput) takes_outputs_[tensor.buffer] = false;
      });
    }
    plans_.push_back(std::move(plan));
  }
}

void Instance::Advance() {
  for (const StateSpec& state : spec_.states) {
    char*& input = inputs_[state.input];
    char*& output = outputs_[state.output];
    if (takes_inputs_[state.input] && takes_outputs_[state.output]) {
      std::swap(input, output);
      BindInput(state.input, input);
      BindOutput(state.output, output);
    } else {
      std::memcpy(input, output, spec_.input(state.input).bytes);
    }
  }
}

void Instance::ResetStates() {
  for (const StateSpec& state : spec_.states) {
    std::memset(inputs_[state.input], 0, spec_.input(state.input).bytes);
  }
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
  for (size_t i = plan->spec->first; i < plan->spec->first + plan->spec->count; ++i) {
    const RegionSpec& region = spec_.regions[i];
    std::vector<Task*> after;
    for (int64_t id : region.after) after.push_back(tasks_[id].get());
    const bool on_cpu = region.processor == kCpu;
    Processor& processor = on_cpu ? cpu_ : *devices_[region.processor - 1];
    tasks_.push_back(processor.Bind(region, after));
    plan->tasks.push_back(tasks_.back().get());
    (on_cpu ? plan->on_cpu : plan->on_devices).push_back(tasks_.back().get());
  }
}

void Instance::Run(bool traced) {
  if (stream_) stream_->Forget();
  TryAgain();
  {
    std::lock_guard<std::mutex> lock(run_mutex_);
    is_cancelled_ = false;
    if (spare_) spare_->Reset();
  }
  const int64_t number = TakeNumber(this);
  Failure failure = IsLost() ? std::nullopt : RunPlans(traced);
  ran_spare_ = IsLost();
  if (ran_spare_) {
    Begin(traced);
    failure = Attempt([this, traced] { RunSpare(traced); });
  }
  {
    std::lock_guard<std::mutex> lock(run_mutex_);
    running_ = nullptr;
  }
  ForgetNumber(number);
  if (failure) throw *failure;
}

StreamResult Instance::RunFrame(const std::vector<const char*>& frame,
                                const StreamOptions& options) {
  if (!stream_) stream_.emplace(spec_, program_->kernels(), memory_);
  stops_stream_ = false;
  const CoresScope scope(CoresForRun());
  UseThreads(spec_.threads);
  const int64_t number = TakeNumber(this);
  StreamResult result{};
  const Failure failure = Attempt([&] { result = stream_->Run(frame, options, stops_stream_); });
  ForgetNumber(number);
  if (failure) throw *failure;
  return result;
}

// From now on the current plan can be cancelled; a cancellation from before is applied again.
void Instance::Begin(bool traced) {
  std::lock_guard<std::mutex> lock(run_mutex_);
  running_ = last_run_ = &plan();
  for (Task* task : running_->tasks) task->Reset(traced);
  if (is_cancelled_) CancelTasks();
  began_ = Now();  // after tracing processors have calibrated their clocks
}

// Runs the current plan and, after a processor failed, plans without that processor.
Failure Instance::RunPlans(bool traced) {
  std::vector<bool> without = lost_on_;  // processors that failed
  for (;;) {
    const bool is_sample = !traced && chooser_.WantsSample();
    Begin(traced || is_sample);
    RunTasks(plan());
    Failure failure;
    const RegionSpec* failed = FirstFailed(plan(), &failure);
    for (const auto& device : devices_) {
      if (failure) device->AfterFailure();
    }
    if (!failure && is_sample) {
      chooser_.Sampled(WorkOf(plan()));
    } else if (!failure && !traced) {
      chooser_.Ran(Now() - began_);
    }
    if (failed == nullptr || failed->processor == kCpu) return failure;
    without[failed->processor] = true;
    if (TakeAnother(without)) {
      replaced_ = failure;
      continue;
    }
    if (spare_) {
      lost_ = failure;
      lost_on_ = without;
    }
    return failure;
  }
}

// Nanoseconds of kernels and transfers of each region, after a traced run.
std::vector<double> Instance::WorkOf(const BoundPlan& plan) {
  std::vector<double> work;
  for (const Task* task : plan.tasks) {
    double sum = 0;
    for (const Span& span : task->Spans()) {
      if (span.kind != Span::Kind::kWait) sum += static_cast<double>(span.end - span.start);
    }
    work.push_back(sum);
  }
  return work;
}

// Switches to a plan without these processors; returns false if there is none.
bool Instance::TakeAnother(const std::vector<bool>& without) {
  std::vector<bool> usable;
  for (const BoundPlan& plan : plans_) {
    bool is_usable = true;
    for (size_t i = 0; i < without.size(); ++i) is_usable &= !(without[i] && plan.uses[i]);
    usable.push_back(is_usable);
  }
  return chooser_.Failed(usable);
}

void Instance::SetAffinity(Cores cores) {
  affinity_ = std::move(cores);
  for (const auto& device : devices_) device->SetAffinity(affinity_);
}

Cores Instance::CoresForRun() const {
  if (!affinity_.empty() || taken_.empty()) return affinity_;
  return Without(AllowedCores(), taken_);
}

// Uses the plans of failed processors again, once these have recovered.
void Instance::TryAgain() {
  if (!lost_ || devices_.empty()) return;
  bool any = false;
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (lost_on_[i + 1] && devices_[i]->MayTryAgain()) lost_on_[i + 1] = false;
    any |= lost_on_[i + 1];
  }
  if (!any) lost_.reset();
}

// Whether the current plan needs a lost processor. If it was lost while loading, no plan has its
// tasks.
bool Instance::IsLost() const {
  if (!lost_) return false;
  bool uses = devices_.empty();
  for (size_t i = 0; i < lost_on_.size(); ++i) uses |= lost_on_[i] && plan().uses[i];
  return uses;
}

std::string Instance::Health() const {
  std::string all;
  for (const auto& device : devices_) {
    const std::string one = device->Health();
    all += (all.empty() ? "" : ", ") + (one.empty() ? "{}" : one);
  }
  return "[" + all + "]";
}

void Instance::RunTasks(const BoundPlan& plan) {
  const CoresScope scope(CoresForRun());
  UseThreads(spec_.threads);
  for (Task* task : plan.on_devices) task->Start();
  bool failed = false;
  for (Task* task : plan.on_cpu) {
    task->Start();
    if (failed || !task->Wait()) continue;
    failed = true;
    for (Task* other : plan.tasks) other->Cancel();  // the run has failed: do not wait for the rest
  }
  for (Task* task : plan.on_devices) task->Wait();
}

void Instance::RunSpare(bool traced) {
  const CoresScope scope(affinity_);
  UseThreads(spec_.threads);
  spare_->Run(*plan().spec, traced);
}

std::vector<std::vector<Span>> Instance::Spans() const {
  std::vector<std::vector<Span>> spans;
  if (ran_spare_) {
    const auto first = spare_->spans().begin() + static_cast<ptrdiff_t>(last_run_->spec->first);
    spans.assign(first, first + static_cast<ptrdiff_t>(last_run_->spec->count));
  } else {
    for (const Task* task : last_run_->tasks) spans.push_back(task->Spans());
  }
  return spans;
}

void Instance::Cancel() {
  stops_stream_ = true;
  std::lock_guard<std::mutex> lock(run_mutex_);
  if (running_ == nullptr) return;
  is_cancelled_ = true;
  CancelTasks();
  if (spare_) spare_->Cancel();
}

void Instance::CancelHere() {
  stops_stream_ = true;
  std::lock_guard<std::mutex> lock(run_mutex_);
  is_cancelled_ = true;
  if (running_ != nullptr) CancelTasks();
  if (spare_) spare_->Cancel();
}

void Instance::CancelTasks() {
  for (Task* task : running_->tasks) task->Cancel();
}

// The error of a region, with the names of region, processor and device, and a hint.
ffi::Error Instance::InContext(const ffi::Error& error, const RegionSpec& region) const {
  std::string where = "'" + spec_.processors[region.processor].name + "'";
  const bool on_cpu = region.processor == kCpu;
  if (!on_cpu) {
    const std::string device = program_->devices()[region.processor - 1]->description();
    if (!device.empty()) where += " (" + device + ")";
  }
  std::string advice = "; run it again";
  if (!on_cpu) {
    advice += ", compile with spare=True so that the CPU takes over, or without that processor";
  }
  if (spare_) advice = "";  // the CPU runs it instead
  const bool keeps_kind = on_cpu || error.kind() == kRunError;
  return ffi::Error(keeps_kind ? error.kind() : kDeviceError,
                    "expected region '" + region.name + "' to run on processor " + where +
                        ", got: " + error.message() + advice,
                    error.backtrace());
}

// The first region that failed, and its failure; null if all succeeded, or the run was cancelled.
// Failures propagate only to later regions, so it is the first failure in order; but regions that
// were cancelled because of it may be earlier.
const RegionSpec* Instance::FirstFailed(const BoundPlan& plan, Failure* result) {
  const Failure* first = nullptr;
  size_t region = 0;
  for (size_t i = 0; i < plan.tasks.size(); ++i) {
    const Failure& failure = plan.tasks[i]->Wait();
    if (!failure || (first != nullptr && !IsCancelled(**first))) continue;
    if (first != nullptr && IsCancelled(*failure)) continue;
    first = &failure;
    region = plan.spec->first + i;
  }
  if (first == nullptr) return nullptr;
  *result = *first;
  const ffi::Error& error = **first;
  if (IsCancelled(error)) return nullptr;
  const RegionSpec& failed = spec_.regions[region];
  if (spec_.processors.size() > 1) *result = InContext(error, failed);
  return &failed;
}

}  // namespace tvm_stretch
