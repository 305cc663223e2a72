// One instance of a model: its memory, and its regions as tasks of their processors.
#ifndef TVM_STRETCH_INSTANCE_H_
#define TVM_STRETCH_INSTANCE_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cores.h"
#include "cpu_processor.h"
#include "guard.h"
#include "memory.h"
#include "plan_chooser.h"
#include "processor.h"
#include "program.h"
#include "spare.h"

namespace tvm_stretch {

class Instance {
 public:
  explicit Instance(std::shared_ptr<const Program> program);
  ~Instance();

  // The instance's own memory for an input or output of the graph.
  char* input(size_t i) const { return memory_.inputs[i]; }
  char* output(size_t i) const { return memory_.outputs[i]; }

  // Whether the next runs may take memory of the caller for it: not if a device touches it.
  bool takes_input(size_t i) const { return takes_inputs_[i]; }
  bool takes_output(size_t i) const { return takes_outputs_[i]; }
  void BindInput(size_t i, char* data) { cpu_.tensors().BindInput(i, data); }
  void BindOutput(size_t i, char* data) { cpu_.tensors().BindOutput(i, data); }

  // Runs the graph once; when it returns or throws, no processor works for it any more. If another
  // processor than the CPU fails, a plan without it computes the answer, where there is one. Else,
  // where the CPU has spare kernels, it runs the whole graph again, and all later runs until that
  // processor says that it may be tried again.
  void Run(bool traced = false);

  // Throws InputError if the last run met values that nothing can be computed with.
  void CheckValues() const { guards_.Check(); }

  // Why the CPU runs everything; empty as long as the processors of the present plan work.
  std::string lost() const { return IsLost() ? lost_->message() : ""; }

  // Which failure was the last that made a run take another plan; empty if there was none.
  std::string replaced() const { return replaced_ ? replaced_->message() : ""; }

  // Which plan the next run takes, and who decides that.
  PlanChooser& chooser() { return chooser_; }

  // How the processors beside the CPU are: a JSON list, in their order. Any thread.
  std::string Health() const;

  // From now on the CPU's regions run on these cores, and so do our threads that serve other
  // processors; on no cores: wherever the calling thread may run, but off those where other
  // processors have threads.
  void SetAffinity(Cores cores);

  // What happened in the last run, a traced one: the spans of each region of its plan.
  std::vector<std::vector<Span>> Spans() const;
  // When the last run began to compute.
  int64_t began() const { return began_; }
  int64_t last_plan() const { return last_run_ - plans_.data(); }

  // Stops the run that is in progress, if there is one. Any thread.
  void Cancel();

 private:
  friend void CancelRun(int64_t number);
  friend void CancelAllRuns();

  // What a run of one plan needs.
  struct BoundPlan {
    const PlanSpec* spec;
    std::vector<bool> uses;    // which processors
    std::vector<Task*> tasks;  // one for each region
    std::vector<Task*> on_cpu;
    std::vector<Task*> on_devices;
  };

  const BoundPlan& plan() const { return plans_[chooser_.plan()]; }
  MemoryMap PlaceMemory();
  void DescribePlans();
  void CreateDevices();
  void BindRegions(BoundPlan* plan);
  void DropTasks();
  Cores CoresForRun() const;
  void TryAgain();
  bool IsLost() const;
  void Begin(bool traced);
  Failure RunPlans(bool traced);
  void RunTasks(const BoundPlan& plan);
  void RunSpare(bool traced);
  void CancelTasks();
  void CancelHere();
  void TakeNumber();
  void ForgetNumber();
  bool TakeAnother(const std::vector<bool>& without);
  const RegionSpec* FirstFailed(const BoundPlan& plan, Failure* failure);
  ffi::Error InContext(const ffi::Error& error, const RegionSpec& region) const;

  const std::shared_ptr<const Program> program_;
  const GraphSpec& spec_;
  const std::shared_ptr<char> device_block_;  // where a device has better memory than ours
  AlignedBuffer block_;
  const MemoryMap memory_;
  std::vector<bool> takes_inputs_;
  std::vector<bool> takes_outputs_;
  std::vector<BoundPlan> plans_;
  PlanChooser chooser_;
  CpuProcessor cpu_;
  const Guards guards_;
  std::vector<std::unique_ptr<Processor>> devices_;  // all other processors
  std::vector<std::unique_ptr<Task>> tasks_;         // one for each region
  std::optional<Spare> spare_;                       // where the CPU has kernels for it
  Failure lost_;               // of another processor; then only `spare_` runs plans that use it
  std::vector<bool> lost_on_;  // which failed in a run; none: it was when loading
  Failure replaced_;           // the last after which another plan was taken
  Cores affinity_;
  Cores taken_;           // by other processors
  std::mutex run_mutex_;  // guards the two below, and that only its tasks are cancelled
  const BoundPlan* running_ = nullptr;  // while a run is in progress
  bool is_cancelled_ = false;
  int64_t number_ = 0;  // of the run, as it was announced; 0: it was not
  int64_t began_ = 0;
  const BoundPlan* last_run_ = nullptr;  // whose spans there are
  bool ran_spare_ = false;               // in that run
};

// The next run that this thread begins is the one that others call by this number. 0: it has none,
// and one that was announced before never begins.
void AnnounceRun(int64_t number);

// Stops the run of this number, whether it began or will, and no other one. Any thread. Of those
// that were not even announced, only the last is remembered.
void CancelRun(int64_t number);

// Stops whatever is in progress in this process.
void CancelAllRuns();

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_INSTANCE_H_
