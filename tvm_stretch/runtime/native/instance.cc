#include "instance.h"

#include <algorithm>
#include <set>

#include "errors.h"

namespace tvm_stretch {
namespace {

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// Arena, inputs and outputs, each at the start of a page.
size_t BlockBytes(const GraphSpec& spec) {
  size_t bytes = RoundUp(spec.arena_bytes, kPageBytes);
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    bytes += RoundUp(spec.input(i).bytes, kPageBytes);
  }
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    bytes += RoundUp(spec.output(i).bytes, kPageBytes);
  }
  return bytes;
}

// A device that lacks the memory gets copies of ours, or says itself that it has no room for them.
std::shared_ptr<char> AllocateOnDevice(const Program& program) {
  const auto& devices = program.devices();
  if (devices.size() != 1) return nullptr;
  std::shared_ptr<char> block;
  (void)Attempt([&] { block = devices[0]->AllocateBlock(BlockBytes(program.spec())); });
  return block;
}

// Calls visit(id) for every tensor that a processor other than the CPU touches.
template <typename Visit>
void ForEachDeviceTensor(const GraphSpec& spec, const Visit& visit) {
  for (const RegionSpec& region : spec.regions) {
    if (region.processor == kCpu) continue;
    std::for_each(region.receives.begin(), region.receives.end(), visit);
    std::for_each(region.sends.begin(), region.sends.end(), visit);
    for (int64_t node : region.nodes) {
      const NodeSpec& spec_of_node = spec.nodes[node];
      std::for_each(spec_of_node.inputs.begin(), spec_of_node.inputs.end(), visit);
      std::for_each(spec_of_node.outputs.begin(), spec_of_node.outputs.end(), visit);
    }
  }
}

struct Instances {
  std::mutex mutex;  // guards `all`, and that none of it goes while it is cancelled
  std::set<Instance*> all;
};

Instances& AllInstances() {
  static Instances& instances = *new Instances();
  return instances;
}

}  // namespace

void CancelAllRuns() {
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  for (Instance* instance : instances.all) instance->Cancel();
}

Instance::Instance(std::shared_ptr<const Program> program)
    : program_(std::move(program)),
      spec_(program_->spec()),
      device_block_(AllocateOnDevice(*program_)),
      block_(device_block_ ? 0 : BlockBytes(spec_),
             spec_.processors.size() > 1 ? Sharing::kShared : Sharing::kPrivate),
      memory_(PlaceMemory()),
      takes_inputs_(spec_.inputs.size(), true),
      takes_outputs_(spec_.outputs.size(), true),
      cpu_(spec_, program_->kernels(), memory_),
      guards_(spec_, &cpu_.tensors()) {
  FindCallersPorts();
  if (spec_.spare) spare_.emplace(spec_, program_->kernels(), &cpu_.tensors());
  lost_ = program_->lost();
  if (!lost_) lost_ = Attempt([this] { CreateDevices(); });
  if (lost_) {
    DropTasks();
    if (!spare_) throw *lost_;
  }
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  instances.all.insert(this);
}

Instance::~Instance() {
  {
    Instances& instances = AllInstances();
    std::lock_guard<std::mutex> lock(instances.mutex);
    instances.all.erase(this);
  }
  DropTasks();
}

void Instance::DropTasks() {
  cpu_tasks_.clear();
  device_tasks_.clear();
  while (!tasks_.empty()) tasks_.pop_back();  // a task uses the ones before it
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
    memory.inputs.push_back(take(spec_.input(i).bytes));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    memory.outputs.push_back(take(spec_.output(i).bytes));
  }
  return memory;
}

void Instance::FindCallersPorts() {
  ForEachDeviceTensor(spec_, [this](int64_t id) {
    const TensorSpec& tensor = spec_.tensors[id];
    if (tensor.memory == Memory::kInput) takes_inputs_[tensor.buffer] = false;
    if (tensor.memory == Memory::kOutput) takes_outputs_[tensor.buffer] = false;
  });
}

void Instance::CreateDevices() {
  for (const auto& device : program_->devices()) {
    devices_.push_back(device->CreateInstance(memory_));
    const Cores cores = device->cores();
    taken_.insert(taken_.end(), cores.begin(), cores.end());
  }
  BindRegions();
}

void Instance::BindRegions() {
  for (const RegionSpec& region : spec_.regions) {
    std::vector<Task*> after;
    for (int64_t id : region.after) after.push_back(tasks_[id].get());
    const bool on_cpu = region.processor == kCpu;
    Processor& processor = on_cpu ? cpu_ : *devices_[region.processor - 1];
    tasks_.push_back(processor.Bind(region, after));
    (on_cpu ? cpu_tasks_ : device_tasks_).push_back(tasks_.back().get());
  }
}

void Instance::Run(bool traced) {
  CheckThreads(spec_.threads);  // while nothing has begun
  TryAgain();
  {
    std::lock_guard<std::mutex> lock(run_mutex_);
    for (const auto& task : tasks_) task->Reset(traced);
    if (spare_) spare_->Reset();
    is_running_ = true;
  }
  Failure failure;
  if (!lost_) {
    RunTasks();
    const RegionSpec* failed = FirstFailed(&failure);
    if (failure)
      for (const auto& device : devices_) device->AfterFailure();
    if (spare_ && failed != nullptr && failed->processor != kCpu) {
      lost_ = failure;
      lost_device_ = devices_[failed->processor - 1].get();
    }
  }
  if (lost_) failure = Attempt([this, traced] { RunSpare(traced); });
  {
    std::lock_guard<std::mutex> lock(run_mutex_);
    is_running_ = false;
  }
  if (failure) throw *failure;
}

void Instance::SetAffinity(Cores cores) {
  affinity_ = std::move(cores);
  for (const auto& device : devices_) device->SetAffinity(affinity_);
}

Cores Instance::CoresForRun() const {
  if (!affinity_.empty() || taken_.empty()) return affinity_;
  return Without(AllowedCores(), taken_);
}

// Goes back to the plan if the processor that failed has recovered.
void Instance::TryAgain() {
  if (lost_ && lost_device_ != nullptr && lost_device_->MayTryAgain()) lost_.reset();
}

std::string Instance::Health() const {
  std::string all;
  for (const auto& device : devices_) {
    const std::string one = device->Health();
    all += (all.empty() ? "" : ", ") + (one.empty() ? "{}" : one);
  }
  return "[" + all + "]";
}

void Instance::RunTasks() {
  const CoresScope scope(CoresForRun());
  UseThreads(spec_.threads);
  for (Task* task : device_tasks_) task->Start();
  bool failed = false;
  for (Task* task : cpu_tasks_) {
    task->Start();
    if (failed || !task->Wait()) continue;
    failed = true;
    CancelTasks();  // the answer is lost: do not wait for what has not begun
  }
  for (Task* task : device_tasks_) task->Wait();
}

void Instance::RunSpare(bool traced) {
  const CoresScope scope(affinity_);
  UseThreads(spec_.threads);
  spare_->Run(traced);
}

std::vector<std::vector<Span>> Instance::Spans() const {
  if (lost_) return spare_->spans();
  std::vector<std::vector<Span>> spans;
  for (const auto& task : tasks_) spans.push_back(task->Spans());
  return spans;
}

void Instance::Cancel() {
  std::lock_guard<std::mutex> lock(run_mutex_);
  if (!is_running_) return;
  CancelTasks();
  if (spare_) spare_->Cancel();
}

void Instance::CancelTasks() {
  for (const auto& task : tasks_) task->Cancel();
}

// The error of a region, with the names of region, processor and device, and the way out.
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
  if (spare_) advice = "";  // the CPU goes on
  const bool keeps_kind = on_cpu || error.kind() == kRunError;
  return ffi::Error(keeps_kind ? error.kind() : kDeviceError,
                    "expected region '" + region.name + "' to run on processor " + where +
                        ", got: " + error.message() + advice,
                    error.backtrace());
}

// The region where it began to fail, and how; null if all went well, or the run was cancelled.
// Failures pass on to later regions only, so it is the first in their order; but what was cancelled
// because of a failure may stand before it.
const RegionSpec* Instance::FirstFailed(Failure* result) {
  const Failure* first = nullptr;
  size_t region = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const Failure& failure = tasks_[i]->Wait();
    if (!failure || (first != nullptr && !IsCancelled(**first))) continue;
    if (first != nullptr && IsCancelled(*failure)) continue;
    first = &failure;
    region = i;
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
