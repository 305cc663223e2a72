// The module `tvm_stretch.executor`: one instance of a model, ready to run.
//
//   set_input(name or index, tensor)      copies
//   run()
//   get_output(index[, tensor])           copies into the tensor, or into a new one
//   invoke(inputs...[, outputs...])       all three at once, without copies where memory allows it;
//                                         without outputs, returns new ones: a tensor or a list
//   profile()                             runs once; JSON of the nodes' nanoseconds
//   create_instance()                     same weights, own scratch memory: one per thread
//   load(), graph(), num_inputs(), num_outputs()
//
// Arguments are TensorViews, numbers and strings only, so every method can be called over RPC.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/reflection/registry.h>

#include <mutex>
#include <sstream>

#include "cpu_features.h"
#include "program.h"

namespace tvm_stretch {
namespace {

struct HostAllocator {
  void AllocData(DLTensor* tensor) {
    size_t bytes = (ffi::GetDataSize(*tensor) + kAlignment) / kAlignment * kAlignment;
    tensor->data = std::aligned_alloc(kAlignment, bytes);
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

ffi::Tensor NewTensor(const TensorSpec& spec) {
  DLDevice cpu{kDLCPU, 0};
  return ffi::Tensor::FromNDAlloc(HostAllocator(), ffi::Shape(spec.shape), spec.dtype, cpu);
}

std::string Describe(const ffi::Shape& shape, DLDataType dtype) {
  std::ostringstream text;
  text << dtype << shape;
  return text.str();
}

// A tensor from outside must be what the graph says, in memory that the CPU can read.
void CheckTensor(const DLTensor& got, const TensorSpec& want, const char* role,
                 const std::string& name) {
  ffi::Shape shape(want.shape);
  ffi::Shape got_shape(got.shape, got.shape + got.ndim);
  bool same_shape = want.shape == std::vector<int64_t>(got_shape.begin(), got_shape.end());
  if (!same_shape || !(got.dtype == want.dtype)) {
    TVM_FFI_THROW(ValueError) << "expected " << Describe(shape, want.dtype) << " for " << role
                              << " '" << name << "', got " << Describe(got_shape, got.dtype)
                              << "; convert the tensor before the call";
  }
  if (got.device.device_type != kDLCPU) {
    TVM_FFI_THROW(ValueError) << "expected memory of the CPU for " << role << " '" << name
                              << "', got device type " << got.device.device_type
                              << "; copy the tensor to the CPU";
  }
}

// Memory of one instance. Ports have their own copies for callers whose memory cannot be used.
class Workspace {
 public:
  explicit Workspace(const std::shared_ptr<const Program>& program)
      : program_(program),
        arena_(program->spec().arena_bytes),
        staging_(StagingBytes(program->spec())),
        graph_(program->spec(), program->spec().nodes, program->kernels(), Map()) {}

  BoundGraph& graph() { return graph_; }
  char* input(size_t i) const { return staging_.data() + offsets_[i]; }
  char* output(size_t i) const {
    return staging_.data() + offsets_[program_->spec().inputs.size() + i];
  }

 private:
  size_t StagingBytes(const GraphSpec& spec) {
    size_t total = 0;
    auto add = [&](const TensorSpec& tensor) {
      offsets_.push_back(total);
      total += (tensor.bytes + kAlignment) / kAlignment * kAlignment;
    };
    for (size_t i = 0; i < spec.inputs.size(); ++i) add(spec.input(i));
    for (size_t i = 0; i < spec.outputs.size(); ++i) add(spec.output(i));
    return total;
  }

  MemoryMap Map() const {
    const GraphSpec& spec = program_->spec();
    MemoryMap memory;
    memory.arena = arena_.data();
    memory.constant = program_->constant();
    memory.prepared = program_->prepared();
    for (size_t i = 0; i < spec.inputs.size(); ++i) memory.inputs.push_back(input(i));
    for (size_t i = 0; i < spec.outputs.size(); ++i) memory.outputs.push_back(output(i));
    return memory;
  }

  std::shared_ptr<const Program> program_;
  AlignedBuffer arena_;
  std::vector<size_t> offsets_;
  AlignedBuffer staging_;
  BoundGraph graph_;
};

class Executor final : public ffi::ModuleObj {
 public:
  // The kernels arrive as import later, so loading waits for the first use. (An executor for
  // another machine is never used here, only exported.) Without `weights`, those that are linked
  // into the library of the kernels are taken.
  explicit Executor(GraphBytes bytes, ffi::Optional<ffi::Tensor> weights = std::nullopt)
      : bytes_(std::move(bytes)),
        spec_(GraphSpec::FromJSON(bytes_.json)),
        weights_(std::move(weights)) {}

  Executor(GraphBytes bytes, std::shared_ptr<const Program> program)
      : bytes_(std::move(bytes)), spec_(program->spec()), program_(std::move(program)) {}

  const char* kind() const final { return "tvm_stretch.executor"; }
  int GetPropertyMask() const final {
    return ffi::Module::kBinarySerializable | ffi::Module::kRunnable;
  }
  // The weights are not in these bytes: they are a section of the artifact (runtime/artifact.py).
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
      std::lock_guard<std::mutex> lock(mutex_);
      *result = (this->*method)(args);
    });
  }

  void Load();
  Workspace& workspace();
  size_t InputIndex(const ffi::AnyView& key) const;
  size_t OutputIndex(const ffi::AnyView& key) const;
  void BindStaging();
  void RunOn(const std::vector<const DLTensor*>& inputs,
             const std::vector<const DLTensor*>& outputs);

  ffi::Any LoadNow(Args) { return Load(), ffi::Any(); }
  ffi::Any GraphJSON(Args) { return bytes_.json; }
  ffi::Any NumInputs(Args) { return static_cast<int64_t>(spec_.inputs.size()); }
  ffi::Any NumOutputs(Args) { return static_cast<int64_t>(spec_.outputs.size()); }
  ffi::Any SetInput(Args args);
  ffi::Any Run(Args args);
  ffi::Any GetOutput(Args args);
  ffi::Any Invoke(Args args);
  ffi::Any Profile(Args args);
  ffi::Any CreateInstance(Args args);

  const GraphBytes bytes_;
  const GraphSpec spec_;
  ffi::Optional<ffi::Tensor> weights_;
  std::mutex mutex_;
  std::shared_ptr<const Program> program_;
  std::unique_ptr<Workspace> workspace_;
  std::vector<bool> is_set_;
};

void RequireCount(const ffi::PackedArgs& args, int low, int high, const char* method) {
  if (args.size() < low || args.size() > high) {
    TVM_FFI_THROW(TypeError) << "expected " << low << " to " << high << " arguments for " << method
                             << ", got " << args.size() << "; see the list of methods";
  }
}

ffi::Optional<ffi::Function> Executor::GetFunction(const ffi::String& name) {
  if (name == "set_input") return Locked(&Executor::SetInput);
  if (name == "run") return Locked(&Executor::Run);
  if (name == "get_output") return Locked(&Executor::GetOutput);
  if (name == "invoke") return Locked(&Executor::Invoke);
  if (name == "profile") return Locked(&Executor::Profile);
  if (name == "create_instance") return Locked(&Executor::CreateInstance);
  if (name == "load") return Locked(&Executor::LoadNow);
  if (name == "graph") return Locked(&Executor::GraphJSON);
  if (name == "num_inputs") return Locked(&Executor::NumInputs);
  if (name == "num_outputs") return Locked(&Executor::NumOutputs);
  return std::nullopt;
}

void Executor::Load() {
  if (program_ != nullptr) return;
  if (imports().empty()) {
    TVM_FFI_THROW(ValueError) << "expected the library of the kernels as import of the executor, "
                                 "got none; open the artifact with load_module";
  }
  RequireCpuFeatures(spec_.cpu_features);
  auto kernels = imports()[0].cast<ffi::Module>();
  if (weights_.has_value()) {
    const char* data = DataOf(*(*weights_).GetDLTensorPtr());
    program_ = std::make_shared<Program>(spec_, std::move(kernels), data, *weights_);
  } else {
    program_ = Program::FromLibrary(spec_, std::move(kernels), bytes_.weights_fingerprint);
  }
}

Workspace& Executor::workspace() {
  if (workspace_ == nullptr) {
    Load();
    workspace_ = std::make_unique<Workspace>(program_);
    is_set_.resize(spec_.inputs.size());
  }
  return *workspace_;
}

size_t Executor::InputIndex(const ffi::AnyView& key) const {
  std::string names;
  auto name = key.try_cast<ffi::String>();
  auto index = key.try_cast<int64_t>();
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (name ? *name == spec_.inputs[i].name : index && *index == static_cast<int64_t>(i)) return i;
    names += (names.empty() ? "'" : ", '") + spec_.inputs[i].name + "'";
  }
  TVM_FFI_THROW(ValueError) << "expected one of " << names << " (or its position) for the input, "
                            << "got " << (name ? std::string(*name) : "another position")
                            << "; use a name of the model";
  TVM_FFI_UNREACHABLE();
}

size_t Executor::OutputIndex(const ffi::AnyView& key) const {
  auto index = key.try_cast<int64_t>();
  if (!index || *index < 0 || *index >= static_cast<int64_t>(spec_.outputs.size())) {
    TVM_FFI_THROW(ValueError) << "expected a position below " << spec_.outputs.size()
                              << " for the output, got "
                              << (index ? std::to_string(*index) : "no integer")
                              << "; num_outputs() tells how many there are";
  }
  return static_cast<size_t>(*index);
}

void Executor::BindStaging() {
  Workspace& space = workspace();
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (!is_set_[i]) {
      TVM_FFI_THROW(ValueError) << "expected set_input('" << spec_.inputs[i].name
                                << "', ...) before run, got none; set every input once";
    }
    space.graph().BindInput(i, space.input(i));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) space.graph().BindOutput(i, space.output(i));
  UseThreads(spec_.threads);
}

ffi::Any Executor::SetInput(Args args) {
  RequireCount(args, 2, 2, "set_input");
  size_t i = InputIndex(args[0]);
  const DLTensor& tensor = *args[1].cast<DLTensor*>();
  CheckTensor(tensor, spec_.input(i), "input", spec_.inputs[i].name);
  CopyToContiguous(tensor, workspace().input(i));
  is_set_[i] = true;
  return ffi::Any();
}

ffi::Any Executor::Run(Args) {
  BindStaging();
  workspace_->graph().Run();
  return ffi::Any();
}

ffi::Any Executor::GetOutput(Args args) {
  RequireCount(args, 1, 2, "get_output");
  size_t i = OutputIndex(args[0]);
  const TensorSpec& spec = spec_.output(i);
  if (args.size() == 2) {
    const DLTensor& tensor = *args[1].cast<DLTensor*>();
    CheckTensor(tensor, spec, "output", spec_.outputs[i].name);
    CopyFromContiguous(workspace().output(i), tensor);
    return ffi::Any();
  }
  ffi::Tensor tensor = NewTensor(spec);
  CopyFromContiguous(workspace().output(i), *tensor.GetDLTensorPtr());
  return tensor;
}

ffi::Any Executor::Invoke(Args args) {
  const int num_inputs = static_cast<int>(spec_.inputs.size());
  const int num_outputs = static_cast<int>(spec_.outputs.size());
  if (args.size() != num_inputs) {
    RequireCount(args, num_inputs + num_outputs, num_inputs + num_outputs, "invoke");
  }
  std::vector<const DLTensor*> inputs, outputs;
  for (int i = 0; i < num_inputs; ++i) {
    inputs.push_back(args[i].cast<DLTensor*>());
    CheckTensor(*inputs[i], spec_.input(i), "input", spec_.inputs[i].name);
  }
  for (int i = 0; i < args.size() - num_inputs; ++i) {
    outputs.push_back(args[num_inputs + i].cast<DLTensor*>());
    CheckTensor(*outputs[i], spec_.output(i), "output", spec_.outputs[i].name);
  }
  if (args.size() != num_inputs) return RunOn(inputs, outputs), ffi::Any();
  ffi::Array<ffi::Tensor> fresh;
  for (int i = 0; i < num_outputs; ++i) {
    fresh.push_back(NewTensor(spec_.output(i)));
    outputs.push_back(fresh[i].GetDLTensorPtr());
  }
  RunOn(inputs, outputs);
  return num_outputs == 1 ? ffi::Any(fresh[0]) : ffi::Any(fresh);
}

void Executor::RunOn(const std::vector<const DLTensor*>& inputs,
                     const std::vector<const DLTensor*>& outputs) {
  Workspace& space = workspace();
  for (size_t i = 0; i < inputs.size(); ++i) {
    bool in_place = IsUsableInPlace(*inputs[i]);
    if (!in_place) {
      CopyToContiguous(*inputs[i], space.input(i));
      is_set_[i] = true;
    }
    space.graph().BindInput(i, in_place ? DataOf(*inputs[i]) : space.input(i));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    bool in_place = IsUsableInPlace(*outputs[i]);
    space.graph().BindOutput(i, in_place ? DataOf(*outputs[i]) : space.output(i));
  }
  UseThreads(spec_.threads);
  space.graph().Run();
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsUsableInPlace(*outputs[i])) CopyFromContiguous(space.output(i), *outputs[i]);
  }
}

ffi::Any Executor::Profile(Args) {
  BindStaging();
  std::ostringstream json;
  json << "[";
  for (int64_t nanoseconds : workspace_->graph().RunTimed()) {
    json << (json.tellp() > 1 ? "," : "") << nanoseconds;
  }
  json << "]";
  return ffi::String(json.str());
}

ffi::Any Executor::CreateInstance(Args) {
  Load();
  auto instance = ffi::make_object<Executor>(bytes_, program_);
  for (const ffi::Any& module : imports()) instance->ImportModule(module.cast<ffi::Module>());
  return ffi::Module(instance);
}

ffi::Module CreateExecutor(const ffi::String& json, const ffi::Module& kernels,
                           const ffi::Tensor& weights) {
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
  executor->ImportModule(kernels);
  return ffi::Module(executor);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_stretch.create_executor", CreateExecutor)
      .def("ffi.Module.load_from_bytes.tvm_stretch.executor", [](const ffi::Bytes& bytes) {
        return ffi::Module(ffi::make_object<Executor>(GraphBytes::Decode(bytes)));
      });
}

}  // namespace tvm_stretch
