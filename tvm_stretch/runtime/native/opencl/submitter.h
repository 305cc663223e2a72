// Hands an instance's regions to its queue, in their order and as early as they may.
#ifndef TVM_STRETCH_OPENCL_SUBMITTER_H_
#define TVM_STRETCH_OPENCL_SUBMITTER_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "../cores.h"
#include "clock.h"
#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

class OpenCLTask;

// Regions with bells wait in the queue. Another one that waits for other processors is submitted by
// a thread of the instance, or by whoever waits for the region, once these are complete. The third
// way, user events in the queue, was measured on PoCL 3.1 (one kernel, 2 cores): the same as that
// thread within noise (97 and 58 µs asleep and polling, 83 and 54 µs with the thread), and it can't
// be used: PoCL ends the process when such an event fails, which is how a region must be kept from
// running when one before it failed.
class Submitter {
 public:
  explicit Submitter(const Device& device);
  ~Submitter();

  // While binding: `waits` says whether the task ever waits for other processors.
  void Add(OpenCLTask* task, bool waits);

  void Reset(bool traced);
  // All tasks are reset: from now on they may be submitted. (Not before: a thread that was woken
  // late in the last run would take what is left of that for the new one.)
  void Begin();
  // Submits what is ready; called by any thread. Of tasks with bells, a few that wait for others
  // are enough for the device never to wait for the host.
  void SubmitReady();
  // Submits one more task, for threads that have nothing else to do.
  void SubmitOne();
  // The task and those after it do not begin any more; called while it is not complete.
  void Forbid(const OpenCLTask* first);
  // Something became ready. Quick: another thread submits it.
  void Wake();
  // Returns once `is_submitted`; helps instead of waiting where it can.
  void AwaitSubmission(const std::function<bool()>& is_submitted);
  // Its own thread stays on these cores.
  void SetAffinity(const Cores& cores) { cores_.Set(cores); }
  // After an error commands may still run: whoever gets the error waits for them first.
  void NoteError() { must_drain_ = true; }
  void DrainAfterError();

 private:
  bool IsReady(size_t task) const;
  void SubmitNext();
  void Loop();

  const Device& device_;
  const Queue queue_;
  Queue traced_queue_;  // made when first needed; profiling is not free
  QueueClock clock_;
  std::vector<OpenCLTask*> tasks_;
  std::atomic<bool> must_drain_{false};

  std::mutex mutex_;  // guards the three below
  size_t next_ = 0;   // the first task that is not submitted; between runs all are
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

#endif  // TVM_STRETCH_OPENCL_SUBMITTER_H_
