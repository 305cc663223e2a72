// Pauses before regions of processors that may only be busy for a share of the time.
#ifndef TVM_STRETCH_PAUSES_H_
#define TVM_STRETCH_PAUSES_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "duty_cycle.h"
#include "processor.h"

namespace tvm_stretch {

class Pause;

// A pause is a task that its region waits for like for a region of another processor, so no kind of
// processor has to know of it. It begins once the region could, and ends at once where the
// processor was idle for long enough; otherwise a thread waits for that time.
class Pauses {
 public:
  // The shares of the processors, by their position; 1: no limit.
  explicit Pauses(const std::vector<double>& shares);
  ~Pauses();

  bool AreNeeded(size_t processor) const { return cycles_.count(processor) != 0; }

  // Regions are bound in order; those of another plan never run together with earlier ones.
  void BeginPlan() { last_.clear(); }

  // The pause of the processor's next region, which waits for `after`. The pause lives as long as
  // this, and so must these tasks.
  Task* Before(size_t processor, const std::vector<Task*>& after);

  // The task of that region.
  void Bound(size_t processor, Task* region);

 private:
  friend class Pause;

  void Work();  // on the thread
  // Whether a region may begin now; if not, the pause ends later.
  bool MayBegin(Pause* pause);
  void Wake();

  std::map<size_t, DutyCycle> cycles_;
  std::map<size_t, Task*> last_;  // the region of each processor that was bound last
  std::vector<std::unique_ptr<Task>> pauses_;
  std::mutex mutex_;  // guards the cycles' times and all below
  std::condition_variable wake_;
  std::vector<Pause*> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_PAUSES_H_
