// The module `tvm_stretch.executor`: one instance of a model, ready to run.
//
//   set_input(name or index, tensor)      copies; its shape chooses one of several lengths
//   run([advance])                        false: the states stay as they are
//   get_output(index[, tensor])           copies into the tensor, or into a new one
//   invoke(inputs...[, outputs...])       all three at once, without copies where memory allows it;
//                                         without outputs, returns new ones: a tensor or a list
//   run_steps(count, inputs..., outputs...)  invoke `count` times; outputs, and inputs that differ
//                                         from step to step, have one more dimension, of the steps
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
//   paces()                               "1.0,2.5;12345,0": of each processor, the present time of
//                                         its work over that when plans were measured; of each
//                                         plan, the nanoseconds that a run should take now, 0:
//                                         unknown
//   create_instance()                     same weights, own scratch memory: one per thread
//   lost()                                why the CPU runs everything; "" if nothing has failed
//   replaced()                            the failure that made a run use another plan; or ""
//   health()                              state of the processors other than the CPU, as JSON
//   load(), graph(), num_inputs(), num_outputs()
//
// Arguments are TensorViews, numbers and strings only, so every method can be called over RPC.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <mutex>

#include "announced_runs.h"
#include "calls.h"
#include "cpu_features.h"
#include "errors.h"
#include "forked.h"
#include "instance.h"
#include "ports.h"
#include "program.h"
#include "staging.h"
#include "trace.h"

namespace tvm_stretch {
namespace {

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
  // The weights are not in these bytes: they are a section of the artifact (runtime/parts.py).
  ffi::Bytes SaveToBytes() const final { return bytes_.Encode(); }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final;

 private:
  using Args = ffi::PackedArgs;

  // `mutex_` guards the instance's memory; a second thread waits. It does not guard against
  // another thread's set_input between one's own set_input and run: use create_instance().
  template <typename Method>
  ffi::Function Locked(Method method) {
    auto self = ffi::GetObjectPtr<ffi::Object>(this);  // the function keeps the module alive
    return ffi::Function::FromPacked([self, this, method](Args args, ffi::Any* result) {
      const CallScope scope;
      const std::unique_lock<std::mutex> lock = Lock();
      const auto call = [&] { *result = (this->*method)(args); };
      try {
        if (spec_.threads > 1 && IsForkedThread()) {
          OnThreadOfThisProcess(call);
        } else {
          call();
        }
      } catch (const std::bad_alloc&) {
        throw NoMemoryError();
      }
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
  size_t UseLengthOf(const std::vector<const DLTensor*>& inputs);
  ffi::Any SetInput(Args args);
  ffi::Any Run(Args args);
  ffi::Any GetOutput(Args args);
  ffi::Any Invoke(Args args);
  ffi::Any RunSteps(Args args);
  ffi::Any RunFrame(Args args);
  ffi::Any State(Args args);
  ffi::Any Reset(Args) { return instance().ResetStates(), ffi::Any(); }
  ffi::Any Trace(Args args);
  ffi::Any TimeRuns(Args args);
  ffi::Any UseWeights(Args args);
  ffi::Any SetAffinity(Args args);
  ffi::Any PlanNumber(Args) {
    return static_cast<int64_t>(instance_ == nullptr ? 0 : instance_->chooser().plan());
  }
  ffi::Any UsePlan(Args args);
  ffi::Any Adapt(Args args);
  ffi::Any PacesNow(Args);
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
};

void RequireCount(const ffi::PackedArgs& args, int low, int high, const char* method) {
  if (args.size() < low || args.size() > high) {
    TVM_FFI_THROW(TypeError) << "expected " << low << " to " << high << " arguments for " << method
                             << ", got " << args.size() << "; see the list of methods";
  }
}

ffi::Optional<ffi::Function> Executor::GetFunction(const ffi::String& name) {
  const CallScope scope;
  if (name == "set_input") return Locked(&Executor::SetInput);
  if (name == "run") return Locked(&Executor::Run);
  if (name == "get_output") return Locked(&Executor::GetOutput);
  if (name == "invoke") return Locked(&Executor::Invoke);
  if (name == "run_steps") return Locked(&Executor::RunSteps);
  if (name == "run_frame") return Locked(&Executor::RunFrame);
  if (name == "state") return Locked(&Executor::State);
  if (name == "reset") return Locked(&Executor::Reset);
  if (name == "trace") return Locked(&Executor::Trace);
  if (name == "time_runs") return Locked(&Executor::TimeRuns);
  if (name == "use_weights") return Locked(&Executor::UseWeights);
  if (name == "set_affinity") return Locked(&Executor::SetAffinity);
  if (name == "plan") return Locked(&Executor::PlanNumber);
  if (name == "use_plan") return Locked(&Executor::UsePlan);
  if (name == "adapt") return Locked(&Executor::Adapt);
  if (name == "paces") return Locked(&Executor::PacesNow);
  if (name == "cancel") return CancelFunction();
  if (name == "create_instance") return Locked(&Executor::CreateInstance);
  if (name == "lost") return Locked(&Executor::Lost);
  if (name == "replaced") return Locked(&Executor::Replaced);
  if (name == "health") return HealthFunction();
  if (name == "load") return Locked(&Executor::LoadNow);
  if (name == "graph") return Locked(&Executor::GraphJSON);
  if (name == "num_inputs") return Locked(&Executor::NumInputs);
  if (name == "num_outputs") return Locked(&Executor::NumOutputs);
  return std::nullopt;
}

// Whether this is a fork of the process that loaded a model with other processors.
bool Executor::BelongsToFork() const {
  return program_ != nullptr && spec_.processors.size() > 1 && process_ != getpid();
}

// In a fork, models on the CPU alone keep working, unless a thread of the parent held the lock.
std::unique_lock<std::mutex> Executor::Lock() {
  if (process_ == getpid()) return std::unique_lock<std::mutex>(mutex_);
  static std::mutex moving;  // two threads of the fork may be the first
  const std::lock_guard<std::mutex> one(moving);
  if (process_ == getpid()) return std::unique_lock<std::mutex>(mutex_);
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock || BelongsToFork()) throw ForkError();
  process_ = getpid();
  return lock;
}

void Executor::Load() {
  if (program_ != nullptr) return;
  RequireCpuFeatures(spec_.cpu_features, spec_.origin);
  const std::vector<ffi::Module> code = CodeOf(imports(), spec_);
  if (weights_.has_value()) {
    const char* data = DataOf(*(*weights_).GetDLTensorPtr());
    program_ = std::make_shared<Program>(spec_, code, data, *weights_);
  } else if (!weights_paths_.empty()) {
    program_ = Program::FromFiles(spec_, code, bytes_.weights_fingerprint, weights_paths_);
  } else {
    program_ = Program::FromLibrary(spec_, code, bytes_.weights_fingerprint);
  }
}

Instance& Executor::instance() {
  if (instance_ == nullptr) {
    Load();
    instance_ = std::make_unique<Instance>(program_);
    running_ = instance_.get();
  }
  return *instance_;
}

ffi::Function Executor::CancelFunction() {
  auto self = ffi::GetObjectPtr<ffi::Object>(this);
  return ffi::Function::FromTyped([self, this]() {
    const CallScope scope;
    if (Instance* instance = running_) instance->Cancel();
  });
}

// Does not wait for a run in progress, because a hanging DSP may block it.
ffi::Function Executor::HealthFunction() {
  auto self = ffi::GetObjectPtr<ffi::Object>(this);
  return ffi::Function::FromTyped([self, this]() {
    const CallScope scope;
    if (running_ == nullptr) {
      const std::unique_lock<std::mutex> lock = Lock();
      instance();
    }
    if (BelongsToFork()) throw ForkError();
    return ffi::String(running_.load()->Health());
  });
}

ffi::Any Executor::SetInput(Args args) {
  RequireCount(args, 2, 2, "set_input");
  size_t i = InputIndex(spec_, args[0]);
  const DLTensor& tensor = *args[1].cast<DLTensor*>();
  const size_t length = staging_.LengthWith(i, tensor, instance().length());
  CheckTensor(tensor, spec_.input(i, length), "input", spec_.inputs[i].name);
  instance().UseLength(length);
  staging_.Set(&instance(), i, tensor);
  return ffi::Any();
}

// Chooses the length of these inputs for the next run, and checks the inputs.
size_t Executor::UseLengthOf(const std::vector<const DLTensor*>& inputs) {
  const size_t length = FindLength(spec_, inputs, instance().length());
  for (size_t i = 0; i < inputs.size(); ++i) {
    CheckTensor(*inputs[i], spec_.input(i, length), "input", spec_.inputs[i].name);
  }
  instance().UseLength(length);
  return length;
}

ffi::Any Executor::Run(Args args) {
  RequireCount(args, 0, 1, "run");
  staging_.BindOwn(&instance());
  instance_->Run();
  instance_->CheckValues();
  if (args.size() == 0 || args[0].cast<bool>()) instance_->Advance();
  return ffi::Any();
}

ffi::Any Executor::GetOutput(Args args) {
  RequireCount(args, 1, 2, "get_output");
  size_t i = OutputIndex(spec_, args[0]);
  const TensorSpec& spec = spec_.output(i, instance().last_length());
  if (args.size() == 2) {
    const DLTensor& tensor = *args[1].cast<DLTensor*>();
    CheckTensor(tensor, spec, "output", spec_.outputs[i].name);
    CopyFromContiguous(instance().output(i), tensor);
    return ffi::Any();
  }
  ffi::Tensor tensor = NewTensor(spec);
  CopyFromContiguous(instance().output(i), *tensor.GetDLTensorPtr());
  return tensor;
}

ffi::Any Executor::Invoke(Args args) {
  const int num_inputs = static_cast<int>(spec_.arguments);
  const int num_outputs = static_cast<int>(spec_.results);
  if (args.size() != num_inputs) {
    RequireCount(args, num_inputs + num_outputs, num_inputs + num_outputs, "invoke");
  }
  std::vector<const DLTensor*> inputs, outputs;
  for (int i = 0; i < num_inputs; ++i) inputs.push_back(args[i].cast<DLTensor*>());
  const size_t length = UseLengthOf(inputs);
  for (int i = 0; i < args.size() - num_inputs; ++i) {
    outputs.push_back(args[num_inputs + i].cast<DLTensor*>());
    CheckTensor(*outputs[i], spec_.output(i, length), "output", spec_.outputs[i].name);
    CheckApart(outputs);
  }
  if (args.size() != num_inputs) return staging_.Run(&instance(), inputs, outputs), ffi::Any();
  ffi::Array<ffi::Tensor> fresh;
  for (int i = 0; i < num_outputs; ++i) {
    fresh.push_back(NewTensor(spec_.output(i, length)));
    outputs.push_back(fresh[i].GetDLTensorPtr());
  }
  staging_.Run(&instance(), inputs, outputs);
  return num_outputs == 1 ? ffi::Any(fresh[0]) : ffi::Any(fresh);
}

ffi::Any Executor::RunSteps(Args args) {
  const int num_inputs = static_cast<int>(spec_.arguments);
  const int num_outputs = static_cast<int>(spec_.results);
  RequireCount(args, 1 + num_inputs + num_outputs, 1 + num_inputs + num_outputs, "run_steps");
  const int64_t count = args[0].cast<int64_t>();
  std::vector<SteppedTensor> inputs, outputs;
  std::vector<const DLTensor*> whole, first;
  for (int i = 0; i < num_inputs; ++i) {
    const DLTensor& tensor = *args[1 + i].cast<DLTensor*>();
    const bool same = tensor.ndim == static_cast<int32_t>(spec_.input(i).shape.size());
    inputs.emplace_back(tensor, same ? SteppedTensor::kSame : count);
  }
  for (SteppedTensor& input : inputs) first.push_back(&input.at(0));
  const size_t length = UseLengthOf(first);
  for (int i = 0; i < num_outputs; ++i) {
    whole.push_back(args[1 + num_inputs + i].cast<DLTensor*>());
    outputs.emplace_back(*whole[i], count);
    CheckTensor(outputs[i].at(0), spec_.output(i, length), "output", spec_.outputs[i].name);
    CheckApart(whole);
  }
  for (int64_t step = 0; step < count; ++step) {
    std::vector<const DLTensor*> from, to;
    for (SteppedTensor& input : inputs) from.push_back(&input.at(step));
    for (SteppedTensor& output : outputs) to.push_back(&output.at(step));
    staging_.Run(&instance(), from, to);
  }
  return ffi::Any();
}

ffi::Any Executor::RunFrame(Args args) {
  const int num_inputs = static_cast<int>(spec_.arguments);
  const int num_outputs = static_cast<int>(spec_.results);
  RequireCount(args, 4 + num_inputs + num_outputs, 4 + num_inputs + num_outputs, "run_frame");
  const StreamOptions options{args[0].cast<double>(), args[1].cast<double>(),
                              args[2].cast<double>(), args[3].cast<bool>()};
  std::vector<const char*> frame;
  std::vector<std::vector<char>> copies(num_inputs);
  for (int i = 0; i < num_inputs; ++i) {
    const DLTensor& tensor = *args[4 + i].cast<DLTensor*>();
    CheckTensor(tensor, spec_.input(i), "input", spec_.inputs[i].name);
    if (!IsUsableInPlace(tensor)) {
      copies[i].resize(spec_.input(i).bytes);
      CopyToContiguous(tensor, copies[i].data());
    }
    frame.push_back(copies[i].empty() ? DataOf(tensor) : copies[i].data());
  }
  const StreamResult result = instance().RunFrame(frame, options);
  instance_->CheckValues();
  for (int i = 0; i < num_outputs; ++i) {
    const DLTensor& tensor = *args[4 + num_inputs + i].cast<DLTensor*>();
    CheckTensor(tensor, spec_.output(i), "output", spec_.outputs[i].name);
    CopyFromContiguous(instance_->output(i), tensor);
  }
  return ffi::String(std::to_string(result.changed) + "," + std::to_string(result.computed));
}

ffi::Any Executor::State(Args args) {
  RequireCount(args, 1, 1, "state");
  const size_t i = InputIndex(spec_, args[0]);
  ffi::Tensor tensor = NewTensor(spec_.input(i));
  CopyFromContiguous(instance().input(i), *tensor.GetDLTensorPtr());
  return tensor;
}

ffi::Any Executor::Trace(Args) {
  staging_.BindOwn(&instance());
  instance_->Run(true);
  const int64_t end = Now();
  return TraceToJSON(instance_->last_plan(), instance_->began(), end, instance_->Spans());
}

// Measures runs as a caller would, but on this machine. Guards do not check, as inputs are random.
ffi::Any Executor::TimeRuns(Args args) {
  RequireCount(args, 1, 1, "time_runs");
  const int64_t count = args[0].cast<int64_t>();
  if (count < 1) {
    TVM_FFI_THROW(ValueError) << "expected at least 1 run for time_runs, got " << count
                              << "; measure at least once";
  }
  staging_.BindOwn(&instance());
  std::string times;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t start = Now();
    instance_->Run();
    times += (i == 0 ? "" : ",") + std::to_string(Now() - start);
  }
  return ffi::String(times);
}

ffi::Any Executor::UseWeights(Args args) {
  RequireCount(args, 1, INT32_MAX, "use_weights");
  if (program_ != nullptr) {
    TVM_FFI_THROW(ValueError) << "expected use_weights before the first use, got it later; open "
                                 "the artifact again";
  }
  weights_paths_.clear();
  for (int i = 0; i < args.size(); ++i) {
    weights_paths_.emplace_back(args[i].cast<ffi::String>());
  }
  return ffi::Any();
}

ffi::Any Executor::SetAffinity(Args args) {
  RequireCount(args, 1, 1, "set_affinity");
  instance().SetAffinity(ParseUsableCores(args[0].cast<ffi::String>(), "set_affinity"));
  return ffi::Any();
}

ffi::Any Executor::UsePlan(Args args) {
  RequireCount(args, 1, 1, "use_plan");
  instance().chooser().Pin(args[0].cast<int64_t>());
  return ffi::Any();
}

ffi::Any Executor::Adapt(Args args) {
  RequireCount(args, 3, 3, "adapt");
  if (spec_.lengths.size() > 1) {
    TVM_FFI_THROW(ValueError) << "expected a model of one length for adapt, got one of "
                              << spec_.lengths.size() << "; its inputs choose the plan";
  }
  instance().chooser().Adapt(
      {args[0].cast<double>(), args[1].cast<int64_t>(), args[2].cast<int64_t>()});
  return ffi::Any();
}

ffi::Any Executor::PacesNow(Args) {
  const PlanChooser& chooser = instance().chooser();
  std::string text;
  for (size_t i = 0; i < spec_.processors.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(chooser.PaceOf(i));
  }
  for (size_t i = 0; i < spec_.plans.size(); ++i) {
    text += (i == 0 ? ";" : ",") + std::to_string(std::llround(chooser.Predicted(i)));
  }
  return ffi::String(text);
}

ffi::Any Executor::CreateInstance(Args) {
  Load();
  auto instance = ffi::make_object<Executor>(bytes_, program_);
  for (const ffi::Any& module : imports()) instance->ImportModule(module.cast<ffi::Module>());
  return ffi::Module(instance);
}

// (graph as JSON, weights, code of processor 0, code of processor 1, ...) -> executor.
void CreateExecutor(ffi::PackedArgs args, ffi::Any* result) {
  RequireCount(args, 3, INT32_MAX, "create_executor");
  auto json = args[0].cast<ffi::String>();
  auto weights = args[1].cast<ffi::Tensor>();
  const GraphSpec spec = GraphSpec::FromJSON(json);
  if (static_cast<int64_t>(ffi::GetDataSize(weights)) != spec.weights_bytes ||
      !IsUsableInPlace(*weights.GetDLTensorPtr())) {
    TVM_FFI_THROW(ValueError) << "expected " << spec.weights_bytes
                              << " aligned bytes for the weights, got " << ffi::GetDataSize(weights)
                              << "; pass the blob of lower()";
  }
  const char* data = DataOf(*weights.GetDLTensorPtr());
  GraphBytes bytes{json, Fingerprint(data, spec.weights_bytes)};
  auto executor = ffi::make_object<Executor>(std::move(bytes), weights);
  for (int i = 2; i < args.size(); ++i) executor->ImportModule(args[i].cast<ffi::Module>());
  *result = ffi::Module(executor);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def_packed("tvm_stretch.create_executor", CreateExecutor)
      .def("tvm_stretch.fingerprint_file", FingerprintFile)
      // For servers, whose sessions answer no other request during a run.
      .def("tvm_stretch.announce_run", AnnounceRun)
      .def("tvm_stretch.cancel_run", CancelRun)
      .def("ffi.Module.load_from_bytes.tvm_stretch.executor", [](const ffi::Bytes& bytes) {
        return ffi::Module(ffi::make_object<Executor>(GraphBytes::Decode(bytes)));
      });
}

}  // namespace tvm_stretch
