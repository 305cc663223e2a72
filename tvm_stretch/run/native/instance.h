// An instance of a model: its memory, and its regions as tasks of their processors.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bound_graph.h"
#include "cores.h"
#include "cpu_processor.h"
#include "guard.h"
#include "memory.h"
#include "pauses.h"
#include "plan_chooser.h"
#include "processor.h"
#include "program.h"
#include "sampler.h"
#include "stream.h"

namespace tvm_stretch {

// The room for a state that slides: it moves to the front once for every time its bytes are new.
int64_t BytesToSlide(const GraphSpec& spec, const StateSpec& state);

class Instance {
 public:
  explicit Instance(std::shared_ptr<const Program> program);
  ~Instance();

  // The instance's own memory for an input or output of the graph.
  char* input(size_t i) const { return inputs_[i]; }
  char* output(size_t i) const { return outputs_[i]; }

  // Whether runs may use the caller's memory for it: not if a device accesses it.
  bool takes_input(size_t i) const { return takes_inputs_[i]; }
  bool takes_output(size_t i) const { return takes_outputs_[i]; }
  // Whether all devices that read an input import this external memory for it.
  bool ImportsInput(size_t i, const DLTensor& tensor);
  void BindInput(size_t i, char* data);
  void BindOutput(size_t i, char* data) { cpu_.tensors().BindOutput(i, data); }

  // Runs the graph once; when it returns or throws, no processor works on it any more. If a
  // processor other than the CPU fails, a plan without that processor computes the answer, if there
  // is one. Otherwise the CPU, if it has spare kernels, runs the whole graph again, and all later
  // runs until the processor reports that it may be tried again.
  void Run(bool traced = false);

  // Runs the next frame of a stream; the results are in the instance's own outputs. After another
  // kind of run, everything is computed.
  StreamResult RunFrame(const std::vector<const char*>& frame, const StreamOptions& options);

  // Draws the next values of states that are chosen from the last run's scores.
  void Choose();
  // A value that was chosen, and where the random numbers were after that.
  struct Choice {
    int64_t value;
    uint64_t drawn;
  };

  // Chooses a state from the last run's scores, one row for each value that it read, as runs of one
  // value would: as long as what they choose was guessed, `most` at most, none after an end.
  std::vector<Choice> Accept(size_t state, const std::vector<int64_t>& guesses, int64_t most,
                             const std::function<bool(int64_t)>& is_end);
  // After `Advance`: this is the choice, and the last `count` values are as if they were not read.
  void Rewind(size_t state, const Choice& last, int64_t count);
  // How they are drawn from now on.
  void UseSampling(const SamplingSpec& sampling);

  // Results of the last run become the states of the next one.
  void Advance();

  // The states become those of another instance of the same program.
  void CopyStates(const Instance& other);

  // All states are what they were before the first run.
  void ResetStates();

  // The caller has written to the memory of a state, as many values as this length reads.
  void StateIsSet(size_t input);

  // Whether a run of this length reads as many values of each state as there are.
  bool Holds(size_t length) const;
  // The next run has a length for the values that states have, if there is one.
  void FollowStates();

  // Throws InputError if the last run had values that its guards forbid.
  void CheckValues() const { guards_[last_length()].Check(); }

  // The next run takes inputs of this length; see GraphSpec::lengths.
  void UseLength(size_t length) {
    if (spec_.lengths.size() > 1) chooser_.Pin(static_cast<int64_t>(length));
  }
  // The lengths of the next run and of the last one; before the first run, both are the same.
  size_t length() const { return spec_.LengthOf(chooser_.plan()); }
  size_t last_length() const { return call_.plan ? spec_.LengthOf(last_plan()) : length(); }

  // Why the CPU runs everything; empty while the processors of the current plan work.
  std::string lost() const {
    if (stream_ && stream_->lost()) return stream_->lost()->message();
    return IsLost() ? lost_->message() : "";
  }

  // The last failure that made a run use another plan; empty if there was none.
  std::string replaced() const { return replaced_ ? replaced_->message() : ""; }

  // Decides the plan of the next run.
  PlanChooser& chooser() { return chooser_; }

  // The state of the processors other than the CPU: a JSON list, in their order. Any thread.
  std::string Health() const;

  // From now on the CPU's regions, and our threads that serve other processors, run on these cores.
  // Without cores: wherever the calling thread may run, except cores of other processors' threads.
  void SetAffinity(Cores cores);

  // The spans of each region of the last run, which must have been traced.
  std::vector<std::vector<Span>> Spans() const;
  // The time at which the last run began to compute.
  int64_t began() const { return call_.began; }
  int64_t last_plan() const { return call_.plan - plans_.data(); }

  // Stops the run in progress, whose tasks may not be reset yet, if there is one. Any thread.
  void Cancel();

 private:
  // A plan bound to tasks.
  struct BoundPlan {
    const PlanSpec* spec;
    std::vector<bool> uses;    // which processors
    std::vector<Task*> tasks;  // one for each region
    std::vector<Task*> on_cpu;
    std::vector<Task*> on_devices;
    std::vector<Task*> pauses;  // before regions of processors with a limit
  };

  // The state of a call: of the one in progress, then of the last one.
  struct Call {
    std::mutex mutex;  // guards the two below, so that only this call's tasks are cancelled
    const BoundPlan* running = nullptr;  // while tasks of this plan are in progress
    bool is_cancelled = false;
    int64_t began = 0;
    const BoundPlan* plan = nullptr;  // whose tasks have its spans
    bool is_on_spare = false;         // whether `spare_` ran it
  };

  const BoundPlan& plan() const { return plans_[chooser_.plan()]; }
  MemoryMap PlaceMemory();
  void DescribePlans();
  void CreateDevices();
  void BindRegions(BoundPlan* plan);
  void DropTasks();
  void Slide(const StateSpec& state);
  void PlaceNextStates();
  Cores CoresForRun(bool only_waits) const;
  void TryAgain();
  bool IsLost() const;
  void Begin(bool traced);
  Failure RunPlans(bool traced);
  void RunTasks(const BoundPlan& plan);
  static std::vector<double> WorkOf(const BoundPlan& plan);
  void RunSpare(bool traced);
  static void CancelTasks(const BoundPlan& plan);
  bool TakeAnother(const std::vector<bool>& without);
  const RegionSpec* FirstFailed(const BoundPlan& plan, Failure* failure);
  ffi::Error InContext(const ffi::Error& error, const RegionSpec& region) const;

  const std::shared_ptr<const Program> program_;
  const GraphSpec& spec_;
  const SharedBlock device_block_;  // if a device allocated it
  AlignedBuffer block_;
  const MemoryMap memory_;
  std::vector<char*> inputs_;   // `memory_.inputs`, but those of states change places with
  std::vector<char*> outputs_;  // their outputs
  WrittenRows written_;
  std::vector<int64_t> held_;      // of each state, the bytes of its values
  std::vector<Sampler> samplers_;  // of each state
  std::vector<bool> takes_inputs_;
  std::vector<bool> takes_outputs_;
  std::vector<std::set<int64_t>> readers_;  // of each input, the devices
  std::vector<bool> is_imported_;           // whether they read external memory
  std::vector<BoundPlan> plans_;
  PlanChooser chooser_;
  CpuProcessor cpu_;
  std::vector<Guards> guards_;                       // one for each length
  std::vector<std::unique_ptr<Processor>> devices_;  // all other processors
  Pauses pauses_;
  std::vector<std::unique_ptr<Task>> tasks_;  // one for each region
  std::optional<Spare> spare_;                // where the CPU has kernels for it
  std::optional<Stream> stream_;
  std::atomic<bool> stops_stream_{false};
  Failure lost_;               // of another processor; then `spare_` runs plans that use it
  std::vector<bool> lost_on_;  // the processors that failed in a run; empty if loading failed
  Failure replaced_;           // the last failure after which another plan ran
  Cores affinity_;
  Cores taken_;  // cores of other processors
  Call call_;
};

}  // namespace tvm_stretch
