#include "submitter.h"

#include "driver.h"
#include "task.h"

namespace tvm_stretch::opencl {
namespace {

// The number of enqueued regions with waiting kernels: the one that waits, and the next.
constexpr size_t kAhead = 2;

}  // namespace

Submitter::Submitter(const Device& device, bool copies)
    : device_(device), copies_(copies), queues_(device, copies, 0) {}

Submitter::~Submitter() {
  if (thread_.joinable()) {
    {
      std::lock_guard<std::mutex> lock(wake_mutex_);
      stops_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  queues_.Finish();
  traced_queues_.Finish();
}

void Submitter::Add(OpenCLTask* task, bool waits) {
  tasks_.push_back(task);
  if (waits && !thread_.joinable()) thread_ = std::thread([this] { Loop(); });
}

void Submitter::Reset(bool traced) {
  std::lock_guard<std::mutex> lock(mutex_);
  traced_ = traced;
  if (!traced) return;
  if (!traced_queues_) traced_queues_ = Queues(device_, copies_, CL_QUEUE_PROFILING_ENABLE);
  clock_.Calibrate(traced_queues_.at(Lane::kKernels));
}

void Submitter::Begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  next_ = 0;
}

bool Submitter::IsReady(size_t task) const {
  return task < tasks_.size() && tasks_[task]->IsReady();
}

void Submitter::SubmitReady() {
  std::lock_guard<std::mutex> lock(mutex_);
  auto are_enough = [this] { return next_ >= kAhead && tasks_[next_ - kAhead]->is_waiting(); };
  while (IsReady(next_) && !are_enough()) SubmitNext();
}

void Submitter::SubmitOne() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (IsReady(next_)) SubmitNext();
}

void Submitter::SubmitNext() {
  if (traced_) {
    tasks_[next_]->Submit(traced_queues_, &clock_);
  } else {
    tasks_[next_]->Submit(queues_, nullptr);
  }
  ++next_;
  submitted_.notify_all();
}

void Submitter::Forbid(const OpenCLTask* first) {
  // From the last to the first, because once a region's kernels return, later ones must not begin.
  for (size_t i = tasks_.size(); i-- > 0;) {
    tasks_[i]->bell()->Forbid();
    if (tasks_[i] == first) return;
  }
}

void Submitter::DrainAfterError() {
  if (!must_drain_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  queues_.Finish();
  traced_queues_.Finish();
  must_drain_ = false;
}

void Submitter::Wake() {
  {
    std::lock_guard<std::mutex> lock(wake_mutex_);
    is_awake_ = true;
  }
  wake_.notify_one();
}

void Submitter::AwaitSubmission(const std::function<bool()>& is_submitted) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_submitted() && IsReady(next_)) SubmitNext();
  submitted_.wait(lock, is_submitted);
}

void Submitter::Loop() {
  // The thread only feeds the driver, so it avoids the CPU processor's cores too.
  static const Cores everywhere;
  const CoresScope scope(device_.info.is_cpu() ? DriverCores() : everywhere);
  cores_.Begin();
  std::unique_lock<std::mutex> lock(wake_mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_awake_ || stops_; });
    if (stops_) return;
    is_awake_ = false;
    lock.unlock();
    SubmitReady();
    lock.lock();
  }
}

}  // namespace tvm_stretch::opencl
