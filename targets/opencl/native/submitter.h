// Submits an instance's regions to its queues, in order and as early as possible.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "cores.h"
#include "device.h"
#include "queues.h"

namespace tvm_stretch::opencl {

class OpenCLTask;

// Regions with bells wait in the queue. Without bells, a region that waits for other processors is
// submitted, once these are complete, by a thread of the instance or by the thread that waits for
// the region. The alternative, user events in the queue, was measured on PoCL 3.1 (one kernel, 2
// cores): equal within noise (97 and 58 µs asleep and polling, 83 and 54 µs with the thread). It
// cannot be used, because a failed region has to fail such an event, and PoCL then ends the
// process.
class Submitter {
 public:
  // `copies`: whether copies have queues of their own.
  Submitter(const Device& device, bool copies);
  ~Submitter();

  // While binding: `waits` is whether the task ever waits for other processors.
  void Add(OpenCLTask* task, bool waits);

  void Reset(bool traced);
  // Called when all tasks are reset: from now on they may be submitted. (Not earlier: a thread that
  // was woken late in the last run would take its state for the new run's.)
  void Begin();
  // Submits tasks that are ready; any thread. It submits only a few waiting tasks with bells, which
  // are enough to keep the device busy.
  void SubmitReady();
  // Submits one more task, for idle threads.
  void SubmitOne();
  // Keeps this task and later ones from beginning; called while it is not complete.
  void Forbid(const OpenCLTask* first);
  // A task became ready. Quick, because another thread submits it.
  void Wake();
  // Returns once `is_submitted`; submits tasks meanwhile if possible.
  void AwaitSubmission(const std::function<bool()>& is_submitted);
  // Its own thread stays on these cores.
  void SetAffinity(const Cores& cores) { cores_.Set(cores); }
  // After an error commands may still run; they are awaited before the error is returned.
  void NoteError() { must_drain_ = true; }
  void DrainAfterError();

 private:
  bool IsReady(size_t task) const;
  void SubmitNext();
  void Loop();

  const Device& device_;
  const bool copies_;
  const Queues queues_;
  Queues traced_queues_;  // made when first needed; profiling is not free
  QueueClock clock_;
  std::vector<OpenCLTask*> tasks_;
  std::atomic<bool> must_drain_{false};

  std::mutex mutex_;  // guards the three below
  size_t next_ = 0;   // the first task that is not submitted; between runs their number
  bool traced_ = false;
  std::condition_variable submitted_;

  std::mutex wake_mutex_;  // guards the three below; never held for long
  bool is_awake_ = false;
  bool stops_ = false;
  std::condition_variable wake_;
  ThreadCores cores_;
  std::thread thread_;  // only if a task waits for other processors
};

}  // namespace tvm_stretch::opencl
