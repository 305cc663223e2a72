#include "executor.h"

#include <tvm/ffi/reflection/registry.h>

#include "announced_runs.h"
#include "cpu_features.h"
#include "ports.h"
#include "seal.h"

namespace tvm_stretch {

void RequireCount(const ffi::PackedArgs& args, int low, int high, const char* method) {
  if (args.size() < low || args.size() > high) {
    TVM_FFI_THROW(TypeError) << "expected " << low << " to " << high << " arguments for " << method
                             << ", got " << args.size() << "; see the list of methods";
  }
}

// The only argument of a method.
static size_t NumberBelow(const ffi::PackedArgs& args, size_t end, const char* method) {
  RequireCount(args, 1, 1, method);
  const auto number = args[0].cast<int64_t>();
  if (number >= 0 && number < static_cast<int64_t>(end)) return static_cast<size_t>(number);
  TVM_FFI_THROW(ValueError) << "expected a number below " << end << " for " << method << ", got "
                            << number << "; see the list of methods";
  TVM_FFI_UNREACHABLE();
}

ffi::Optional<ffi::Function> Executor::Find(const ffi::String& name) {
  const CallScope scope;
  if (name == "set_input") return Locked(&Executor::SetInput);
  if (name == "run") return Locked(&Executor::Run);
  if (name == "get_output") return Locked(&Executor::GetOutput);
  if (name == "invoke") return Locked(&Executor::Invoke);
  if (name == "run_steps") return Locked(&Executor::RunSteps);
  if (name == "feed") return Locked(&Executor::Feed);
  if (name == "guess") return Locked(&Executor::Guess);
  if (name == "take_back") return Locked(&Executor::TakeBack);
  if (name == "set_sampling") return Locked(&Executor::SetSampling);
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
  if (name == "pace") return Locked(&Executor::Pace);
  if (name == "predicted") return Locked(&Executor::Predicted);
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
    program_ = std::make_shared<Program>(spec_, code, data, *weights_, std::nullopt);
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
    return OrNoMemory([&] {
      if (running_ == nullptr) {
        const std::unique_lock<std::mutex> lock = Lock();
        instance();
      }
      if (BelongsToFork()) throw ForkError();
      return ffi::String(running_.load()->Health());
    });
  });
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

ffi::Any Executor::Pace(Args args) {
  return instance().chooser().PaceOf(NumberBelow(args, spec_.processors.size(), "pace"));
}

ffi::Any Executor::Predicted(Args args) {
  return instance().chooser().Predicted(NumberBelow(args, spec_.plans.size(), "predicted"));
}

ffi::Any Executor::CreateInstance(Args args) {
  RequireCount(args, 0, 1, "create_instance");
  Load();
  auto made = ffi::make_object<Executor>(bytes_, program_);
  for (const ffi::Any& module : imports()) made->ImportModule(module.cast<ffi::Module>());
  if (args.size() == 1 && args[0].cast<bool>()) made->instance().CopyStates(instance());
  return ffi::Module(made);
}

namespace {

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
      .def_packed("tvm_stretch.create_executor",
                  [](const ffi::PackedArgs& args, ffi::Any* result) {
                    OrNoMemory([&] { CreateExecutor(args, result); });
                  })
      .def_packed("tvm_stretch.fingerprint_file", Packed(FingerprintFile))
      .def_packed("tvm_stretch.seal_fingerprint",
                  Packed(+[](const ffi::String& path, int64_t bytes, int64_t weights,
                             int64_t weights_bytes) {
                    return Seal{{}, bytes, weights, weights_bytes, 0}.Measure(path);
                  }))
      // For servers, whose sessions answer no other request during a run.
      .def_packed("tvm_stretch.announce_run", Packed(AnnounceRun))
      .def_packed("tvm_stretch.cancel_run", Packed(CancelRun))
      .def_packed("ffi.Module.load_from_bytes.tvm_stretch.executor",
                  Packed(+[](const ffi::Bytes& bytes) {
                    return ffi::Module(ffi::make_object<Executor>(GraphBytes::Decode(bytes)));
                  }));
}

}  // namespace tvm_stretch
