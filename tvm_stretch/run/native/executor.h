// The module `tvm_stretch.executor`: one instance of a model, ready to run.
//
//   set_input(name or index, tensor)      copies; its shape chooses one of several lengths
//   run([advance])                        false: the states stay as they are
//   get_output(index[, tensor])           copies into the tensor, or into a new one
//   invoke(inputs...[, outputs...])       all three at once, without copies where memory allows it;
//                                         without outputs, returns new ones: a tensor or a list
//   run_steps(count, inputs..., outputs...[, "2,7"])  invoke up to `count` times, and return how
//                                         often; outputs, and inputs that differ from step to step,
//                                         have one more dimension, of the steps; the last step is
//                                         the first whose chosen values are all in the text
//   feed(tensor)                          runs with these values of the state that is chosen from
//                                         scores, in pieces as long as lengths allow
//   guess(most[, "2,7"[, guesses]])       runs once, and returns the chosen values, `most`
//                                         at most: several if guesses of the next ones came true
//                                         (these, or guesses.h), none after one in the text
//   take_back(count)                      after guess: the last ones of its values were not chosen
//   set_sampling(temperature, top_k, top_p, min_p, seed)  how values are drawn from scores from now
//                                         on; sampler.h
//   run_frame(noise, bound, cut, whole, inputs..., outputs...)  invoke for the next frame of a
//                                         stream (stream.h); "0.25,0.4": the shares of the
//                                         inputs that changed and of results that were computed
//   state(index)                          a copy of a state: an input that holds what an output
//                                         had after the last run; set_input sets it, trace() and
//                                         time_runs() leave it
//   reset()                               all states are zero again
//   cancel()                              stops the run that is in progress on another thread
//   trace()                               runs once; the spans of each region as JSON
//   time_runs(count)                      runs; "12345,12321": nanoseconds of each, by this clock
//   use_weights(paths...)                 before the first run of an artifact without weights:
//                                         files that hold them, concatenated
//   set_affinity("0,4-7")                 the cores for the CPU's regions; "": any
//   plan()                                the number of the next run's plan
//   use_plan(number)                      all runs use that plan; if there are several lengths, it
//                                         chooses one, until inputs of another come
//   adapt(factor, runs, pause)            runs use the plan that is fastest now; plan_chooser.h
//   pace(number)                          of a processor: the present time of its work over that
//                                         when plans were measured
//   predicted(number)                     nanoseconds that a run of that plan should take now; 0:
//                                         unknown
//   create_instance([true])               same weights, own scratch memory: one per thread; with
//                                         true, its states begin as these are
//   lost()                                why the CPU runs everything; "" if nothing has failed
//   replaced()                            the failure that made a run use another plan; or ""
//   health()                              state of the processors other than the CPU, as JSON
//   load(), graph(), num_inputs(), num_outputs()
//
// Arguments are TensorViews, numbers and strings only, so every method can be called over RPC.
#pragma once

#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "calls.h"
#include "errors.h"
#include "guesses.h"
#include "instance.h"
#include "packed.h"
#include "program.h"
#include "staging.h"

namespace tvm_stretch {

class Stops;

class Executor final : public ffi::ModuleObj {
 public:
  // The kernels are imported later, so loading happens at first use. (An executor for another
  // machine is only exported here.) Without `weights`, the weights that are linked into the library
  // of the kernels are used.
  explicit Executor(GraphBytes bytes, ffi::Optional<ffi::Tensor> weights = std::nullopt)
      : bytes_(std::move(bytes)),
        spec_(GraphSpec::FromJSON(bytes_.json)),
        weights_(std::move(weights)) {}

  Executor(GraphBytes bytes, std::shared_ptr<const Program> program)
      : bytes_(std::move(bytes)), spec_(program->spec()), program_(std::move(program)) {}

  // In a fork, destructors that wait for threads or drivers are skipped, because these do not exist
  // there.
  ~Executor() {
    if (!BelongsToFork()) return;
    instance_.release();
    new std::shared_ptr<const Program>(std::move(program_));
  }

  const char* kind() const final { return "tvm_stretch.executor"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  // The weights are not in these bytes: they are a section of the artifact (run/parts.py).
  ffi::Bytes SaveToBytes() const final { return bytes_.Encode(); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    return OrNoMemory([&] { return Find(name); });
  }

 private:
  using Args = ffi::PackedArgs;

  ffi::Optional<ffi::Function> Find(const ffi::String& name);

  // `mutex_` guards the instance's memory; a second thread waits. It does not guard against
  // another thread's set_input between one's own set_input and run: use create_instance().
  template <typename Method>
  ffi::Function Locked(Method method) {
    auto self = ffi::GetObjectPtr<ffi::Object>(this);  // the function keeps the module alive
    return ffi::Function::FromPacked([self, this, method](Args args, ffi::Any* result) {
      const CallScope scope;
      const std::unique_lock<std::mutex> lock = Lock();
      OrNoMemory([&] {
        const auto call = [&] { *result = (this->*method)(args); };
        if (spec_.threads > 1 && IsForkedThread()) {
          OnThreadOfThisProcess(call);
        } else {
          call();
        }
      });
    });
  }

  std::unique_lock<std::mutex> Lock();
  bool BelongsToFork() const;
  void Load();
  Instance& instance();

  ffi::Any LoadNow(Args) { return Load(), ffi::Any(); }
  ffi::Any Lost(Args) { return ffi::String(instance().lost()); }
  ffi::Any Replaced(Args) { return ffi::String(instance().replaced()); }
  ffi::Any GraphJSON(Args) { return bytes_.json; }
  ffi::Any NumInputs(Args) { return static_cast<int64_t>(spec_.arguments); }
  ffi::Any NumOutputs(Args) { return static_cast<int64_t>(spec_.results); }
  SizedLength UseLengthOf(const std::vector<const DLTensor*>& inputs, bool padding);
  ffi::Any SetInput(Args args);
  ffi::Any Run(Args args);
  ffi::Any GetOutput(Args args);
  ffi::Any Invoke(Args args);
  ffi::Any RunSteps(Args args);
  ffi::Any Feed(Args args);
  ffi::Any Guess(Args args);
  ffi::Any TakeBack(Args args);
  std::vector<Instance::Choice> RunGuessing(size_t state, const Stops& stops, int64_t most,
                                            const std::vector<int64_t>& offered);
  ffi::Any SetSampling(Args args);
  ffi::Any RunFrame(Args args);
  ffi::Any State(Args args);
  ffi::Any Reset(Args) {
    guesses_.Forget();
    return instance().ResetStates(), ffi::Any();
  }
  ffi::Any Trace(Args args);
  ffi::Any TimeRuns(Args args);
  ffi::Any UseWeights(Args args);
  ffi::Any SetAffinity(Args args);
  ffi::Any PlanNumber(Args) {
    return static_cast<int64_t>(instance_ == nullptr ? 0 : instance_->chooser().plan());
  }
  ffi::Any UsePlan(Args args);
  ffi::Any Adapt(Args args);
  ffi::Any Pace(Args args);
  ffi::Any Predicted(Args args);
  ffi::Any CreateInstance(Args args);
  ffi::Function CancelFunction();
  ffi::Function HealthFunction();

  const GraphBytes bytes_;
  const GraphSpec spec_;
  ffi::Optional<ffi::Tensor> weights_;
  std::vector<std::string> weights_paths_;  // files of weights; empty if they are linked
  std::mutex mutex_;
  std::atomic<pid_t> process_{getpid()};  // the process that may run this
  std::shared_ptr<const Program> program_;
  std::unique_ptr<Instance> instance_;
  std::atomic<Instance*> running_{nullptr};  // `instance_`, for cancel(): it cannot take the lock
  Staging staging_{spec_};
  Guesses guesses_;
  std::vector<Instance::Choice> choices_;  // of the last run with guesses
  int64_t chosen_by_ = 0;                  // when it began
};

}  // namespace tvm_stretch
