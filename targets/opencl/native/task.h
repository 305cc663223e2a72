// One region on an OpenCL device.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "command.h"
#include "device.h"
#include "handle.h"
#include "processor.h"
#include "queues.h"

namespace tvm_stretch::opencl {

// Synchronises regions of a device on the host's CPU with other processors, without the driver.
//
// Kernels of a device on the host's CPU are threads of this process, so both sides can synchronise
// through memory: each kernel first waits until its region's bell is rung, and counts its finished
// work-items (targets/opencl/code/opencl_code.py writes that into the kernels).

// The bell of one region. It must outlive kernels that may read it.
class Bell {
 public:
  explicit Bell(const Device& device);

  // The argument of kernels.
  cl_mem buffer() const { return buffer_.get(); }

  // Before each run, when no kernel reads it. An open bell lets kernels begin at once.
  void Reset(bool is_open);
  // Lets the region's kernels begin, unless they were forbidden to.
  void Ring();
  // From now on, kernels that have not begun do nothing.
  void Forbid() { memory_->state = kNever; }

  bool is_silent() const { return memory_->state == kSilent; }
  bool is_forbidden() const { return memory_->state == kNever; }
  // The number of finished work-items; their results are visible.
  int32_t done() const { return memory_->done.load(std::memory_order_acquire); }

 private:
  enum State : int32_t { kSilent = 0, kRung = 1, kNever = 2 };

  // The layout in kernels: an int, and another one 16 ints later, each on its own cache line.
  struct alignas(64) Memory {
    std::atomic<int32_t> state{kRung};
    alignas(64) std::atomic<int32_t> done{0};
  };

  std::unique_ptr<Memory> memory_;
  Buffer buffer_;
};

// A bell that is always open, for devices that cannot read the host's memory.
Buffer CreateOpenBell(const Device& device);

class Submitter;

// A run in order: Reset; Start; once the task is ready and all earlier tasks are submitted, the
// submitter calls Submit on any thread; once the device is done, the waiting thread, or the
// driver's callback if there are listeners, calls Settle.
//
// With a bell, a task is ready at once: its kernels wait in the queue until the bell is rung. This
// cannot deadlock, and only delays later commands of the driver: a region depends only on earlier
// regions, and earlier regions of its processor precede it in the same queue. (So regions of two
// processors on one device must not wait for each other by bells.)
class OpenCLTask final : public Task {
 public:
  OpenCLTask(Submitter* submitter, OpenCLTask* previous, const RegionSpec& region,
             std::vector<Command> commands, const std::vector<Task*>& after, Bell* bell,
             bool last_event_tells);
  ~OpenCLTask() override;

  void Reset(bool traced) override;
  void Start() override;
  void StartAlone() override;
  const Failure& Wait() override;
  void Cancel() override;
  std::vector<Span> Spans() const override;

  // Whether Submit may be called: its predecessors are complete, or the task must not begin.
  bool IsReady() const;
  void Submit(const Queues& queues, const QueueClock* clock);

  Bell* bell() const { return bell_; }
  // Whether its kernels would wait for a bell.
  bool is_waiting() const { return bell_ != nullptr && bell_->is_silent(); }

 private:
  void OnDependency(const Failure& failure);
  Failure EnqueueAll(const Queues& queues);
  cl_int EnqueueOne(const Queues& queues, size_t index);
  cl_int EnqueueMarker(const Queues& queues);
  bool IsLastOfLane(size_t index) const;
  std::vector<cl_event> After(size_t index) const;
  Lane LastLane() const;
  void NoteError();
  void ListenTo(cl_event event);
  void Await();
  bool AwaitCount();
  cl_int AwaitEvent();
  cl_int SleepUntil(cl_event event);
  void Settle(cl_int status);
  cl_int FirstError(cl_int last) const;
  Failure OwnFailure(cl_int last);

  enum State { kPending, kOnDevice, kSettled };

  Submitter* const submitter_;
  OpenCLTask* const previous_;
  const RegionSpec& region_;
  const std::vector<Command> commands_;
  const int num_after_;
  Bell* const bell_;  // null: the host waits for other regions
  const int32_t work_items_;
  const bool last_event_tells_;  // else every command's event is checked

  bool is_alone_ = false;  // the run's only task: its caller waits on the driver's core
  std::atomic<bool> started_{false};
  std::atomic<bool> cancelled_{false};
  std::atomic<int> pending_{0};  // tasks of other processors that are not complete
  std::atomic<State> state_{kPending};
  std::atomic<bool> in_callback_{false};
  std::mutex mutex_;  // guards the two below
  Failure dependency_failure_;
  bool is_settled_ = false;
  std::vector<Event> events_;  // of the run; the last one is for the whole region
  bool traced_ = false;
  const QueueClock* clock_ = nullptr;
  int64_t started_at_ = 0;
  std::atomic<int64_t> may_begin_at_{0};  // when its predecessors were complete
};

}  // namespace tvm_stretch::opencl
