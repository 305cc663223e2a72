// Runs of an instance: by plans, by the CPU in place of a lost processor, and their ends.
#include <algorithm>
#include <utility>

#include "announced_runs.h"
#include "cores.h"
#include "errors.h"
#include "instance.h"

namespace tvm_stretch {

void Instance::Run(bool traced) {
  if (stream_) stream_->Forget();
  PlaceNextStates();
  TryAgain();
  {
    std::lock_guard<std::mutex> lock(call_.mutex);
    call_.is_cancelled = false;
    if (spare_) spare_->Reset();
  }
  const AnnouncedRun announced(this);
  Failure failure = IsLost() ? std::nullopt : RunPlans(traced);
  call_.is_on_spare = IsLost();
  if (call_.is_on_spare) {
    written_.CatchUp(inputs_, outputs_);
    Begin(traced);
    failure = Attempt([this, traced] { RunSpare(traced); });
  }
  {
    std::lock_guard<std::mutex> lock(call_.mutex);
    call_.running = nullptr;
  }
  if (failure) throw *failure;
  written_.Remember(outputs_, last_length());
}

StreamResult Instance::RunFrame(const std::vector<const char*>& frame,
                                const StreamOptions& options) {
  if (!stream_) stream_.emplace(spec_, program_->kernels(), memory_, devices_);
  stops_stream_ = false;
  const CoresScope scope(CoresForRun(false));
  UseThreads(spec_.threads);
  const AnnouncedRun announced(this);
  return stream_->Run(frame, options, stops_stream_);
}

// From now on the current plan can be cancelled; a cancellation from before is applied again.
void Instance::Begin(bool traced) {
  std::lock_guard<std::mutex> lock(call_.mutex);
  call_.running = call_.plan = &plan();
  for (Task* task : call_.running->tasks) task->Reset(traced);
  for (Task* pause : call_.running->pauses) pause->Reset(traced);
  if (call_.is_cancelled) CancelTasks(*call_.running);
  call_.began = Now();  // after tracing processors have calibrated their clocks
}

// Runs the current plan and, after a processor failed, plans without that processor.
Failure Instance::RunPlans(bool traced) {
  std::vector<bool> without = lost_on_;  // processors that failed
  for (;;) {
    const bool is_sample = !traced && chooser_.WantsSample();
    written_.CatchUp(inputs_, outputs_);
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
      chooser_.Ran(Now() - call_.began);
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

// A thread that only waits for a device leaves the CPU's cores to other runs, and is awake again as
// soon as the device's own thread on that core goes to sleep.
Cores Instance::CoresForRun(bool only_waits) const {
  if (!affinity_.empty() || taken_.empty()) return affinity_;
  const Cores allowed = AllowedCores(), others = Without(allowed, taken_);
  return only_waits ? Without(allowed, others) : others;
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
  const bool is_alone = plan.tasks.size() == 1 && plan.pauses.empty();
  const CoresScope scope(CoresForRun(is_alone && plan.on_cpu.empty()));
  if (!plan.on_cpu.empty()) UseThreads(spec_.threads);
  for (Task* pause : plan.pauses) pause->Start();
  for (Task* task : plan.on_devices) is_alone ? task->StartAlone() : task->Start();
  bool failed = false;
  for (Task* task : plan.on_cpu) {
    task->Start();
    if (failed || !task->Wait()) continue;
    failed = true;
    CancelTasks(plan);  // the run has failed: do not wait for the rest
  }
  for (Task* task : plan.on_devices) task->Wait();
  for (Task* pause : plan.pauses) pause->Wait();
}

void Instance::RunSpare(bool traced) {
  const CoresScope scope(affinity_);
  UseThreads(spec_.threads);
  spare_->Run(*plan().spec, traced);
}

std::vector<std::vector<Span>> Instance::Spans() const {
  std::vector<std::vector<Span>> spans;
  if (call_.is_on_spare) {
    const auto first = spare_->spans().begin() + static_cast<ptrdiff_t>(call_.plan->spec->first);
    spans.assign(first, first + static_cast<ptrdiff_t>(call_.plan->spec->count));
  } else {
    for (const Task* task : call_.plan->tasks) spans.push_back(task->Spans());
  }
  return spans;
}

void Instance::Cancel() {
  stops_stream_ = true;
  std::lock_guard<std::mutex> lock(call_.mutex);
  call_.is_cancelled = true;
  if (call_.running != nullptr) CancelTasks(*call_.running);
  if (spare_) spare_->Cancel();
}

void Instance::CancelTasks(const BoundPlan& plan) {
  for (Task* task : plan.tasks) task->Cancel();
  for (Task* pause : plan.pauses) pause->Cancel();
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
