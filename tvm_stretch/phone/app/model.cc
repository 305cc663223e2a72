#include "model.h"

#include <dlfcn.h>
#include <tvm/ffi/cast.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <utility>

#include "announced_runs.h"
#include "memory.h"
#include "plan_chooser.h"
#include "ports.h"
#include "processor.h"
#include "trace_events.h"
#include "workspace.h"

namespace tvm_stretch::app {
namespace {

namespace json = ffi::json;

constexpr DLDevice kCpuDevice{kDLCPU, 0};

GraphSpec SpecOf(const ffi::Module& executor) {
  return GraphSpec::FromJSON((*executor->GetFunction("graph"))().cast<ffi::String>());
}

// Kernels with several threads use TVM's pool, which is in a library of its own. Kernels get their
// pointers to it while they are loaded, so those that came before it are loaded again.
ffi::Module LoadWithThreadPool(const ArtifactFile& file) {
  ffi::Module executor = file.Load();
  const int threads = SpecOf(executor).threads;
  if (threads == 1 || ffi::Function::GetGlobal("runtime.config_threadpool")) return executor;
  if (dlopen("libtvm_runtime.so", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    ProvideWorkspaces();  // its own ones came later
    return file.Load();
  }
  throw ffi::Error(kArtifactError,
                   "expected libtvm_runtime.so beside libtvm_stretch_runtime.so for a model with " +
                       std::to_string(threads) + " CPU threads, got: " + dlerror() +
                       "; install it, or compile with cpu_threads=1",
                   "");
}

// The executor of an artifact, or of a network as data for its kernels.
ffi::Module Executor(const ArtifactFile& file, const char* data) {
  ffi::Module executor = LoadWithThreadPool(file);
  if (data == nullptr) return executor;
  static const ffi::Function with_data = ffi::Function::GetGlobalRequired("tvm_stretch.with_data");
  return with_data(executor, ffi::String(data)).cast<ffi::Module>();
}

void CheckCount(const char* what, size_t got, size_t want) {
  if (got == want) return;
  TVM_FFI_THROW(ValueError) << "expected " << want << " buffers for the model's " << what
                            << ", got " << got << "; give one for each, in the model's order";
}

void CheckBuffer(const char* role, const TvmStretchBuffer& buffer, const Port& port) {
  if (buffer.data != nullptr && buffer.bytes >= port.shown.bytes) return;
  TVM_FFI_THROW(ValueError) << "expected " << port.shown.bytes << " bytes for the " << role << " '"
                            << port.shown.name << "', got "
                            << (buffer.data == nullptr ? "a null pointer"
                                                       : std::to_string(buffer.bytes))
                            << "; see its description for its shape and type";
}

}  // namespace

bool Worker::Begin(Job job) {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  if (state_->is_busy || state_->is_over) return false;
  if (!thread_.joinable()) thread_ = std::thread([state = state_] { Work(state.get()); });
  state_->is_busy = true;
  state_->next = std::move(job);
  state_->changed.notify_all();
  return true;
}

void Worker::Finish() {
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->is_over = true;
    state_->changed.notify_all();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Worker::Work(State* state) {
  while (true) {
    Job job;
    {
      std::unique_lock<std::mutex> lock(state->mutex);
      state->changed.wait(lock, [&] { return state->next.run != nullptr || state->is_over; });
      if (state->next.run == nullptr) return;
      job = std::exchange(state->next, Job());
    }
    job.run();
    {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->is_busy = false;
    }
    job.done();
  }
}

Port::Port(const PortSpec& spec, std::vector<int64_t> dimensions, DLDataType dtype)
    : type(ffi::DLDataTypeToString(dtype)), shape(std::move(dimensions)) {
  const auto count = static_cast<int32_t>(shape.size());
  tensor = {nullptr, kCpuDevice, count, dtype, shape.data(), nullptr, 0};
  shown = {spec.name.c_str(), type.c_str(), shape.size(), shape.data(), ffi::GetDataSize(tensor)};
}

Model::Model(std::shared_ptr<const ArtifactFile> file, const char* data)
    : Model(file, Executor(*file, data), std::nullopt) {}

Model::Model(std::shared_ptr<const ArtifactFile> file, ffi::Module executor,
             std::optional<GraphSpec> spec)
    : file_(std::move(file)),
      executor_(std::move(executor)),
      spec_(spec ? std::move(*spec) : SpecOf(executor_)),
      invoke_(Method("invoke")),
      cancel_(Method("cancel")) {
  now_ = &PortsOf({0, {}});
  sizes_ = spec_.lengths[0].sizes_by_name;
  Method("load")();
}

const LengthPorts& Model::PortsOf(const SizedLength& sized) {
  const auto [place, is_new] = ports_.try_emplace({sized.length, sized.missing});
  LengthPorts& one = place->second;
  if (!is_new) return one;
  one.is_padded = sized.is_padded();
  for (size_t i = 0; i < spec_.arguments; ++i) {
    one.inputs.push_back(std::make_unique<Port>(spec_.inputs[i], ShapeOfInput(spec_, i, sized),
                                                spec_.input(i, sized.length).dtype));
  }
  for (size_t i = 0; i < spec_.results; ++i) {
    one.outputs.push_back(std::make_unique<Port>(spec_.outputs[i], ShapeOfOutput(spec_, i, sized),
                                                 spec_.output(i, sized.length).dtype));
  }
  return one;
}

std::unique_ptr<Model> Model::Clone(bool with_states) {
  auto executor = Method("create_instance")(with_states).cast<ffi::Module>();
  return std::unique_ptr<Model>(new Model(file_, std::move(executor), spec_));
}

ffi::Function Model::Method(const char* name) const {
  return *executor_->GetFunction(ffi::String(name));
}

void Model::Check(const Buffers& buffers) const {
  const LengthPorts& own = ports();
  CheckCount("inputs", buffers.input_count, own.inputs.size());
  CheckCount("outputs", buffers.output_count, own.outputs.size());
  for (size_t i = 0; i < own.inputs.size(); ++i) {
    CheckBuffer("input", buffers.inputs[i], *own.inputs[i]);
  }
  for (size_t i = 0; i < own.outputs.size(); ++i) {
    CheckBuffer("output", buffers.outputs[i], *own.outputs[i]);
  }
}

// Points the tensors of the ports to the caller's memory.
void Model::Bind(const LengthPorts& own, const Buffers& buffers) {
  arguments_.clear();
  const auto bind = [this](Port* port, const TvmStretchBuffer& buffer) {
    port->tensor.data = buffer.data;
    arguments_.emplace_back(&port->tensor);
  };
  for (size_t i = 0; i < own.inputs.size(); ++i) bind(own.inputs[i].get(), buffers.inputs[i]);
  for (size_t i = 0; i < own.outputs.size(); ++i) {
    bind(own.outputs[i].get(), buffers.outputs[i]);
  }
}

void Model::Run(const Buffers& buffers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Check(buffers);
  Bind(ports(), buffers);
  ffi::Any nothing;
  const int64_t start = Now();
  invoke_.CallPacked(arguments_.data(), static_cast<int32_t>(arguments_.size()), &nothing);
  last_ns_ = Now() - start;
  ++runs_;
}

int64_t Model::Announce() {
  static std::atomic<int64_t> next{int64_t{1} << 62};  // far from the numbers of RPC sessions
  return announced_ = next++;
}

void Model::Cancel() {
  cancel_();
  if (announced_ != 0) CancelRun(announced_);
}

const std::string& Model::Trace(const Buffers& buffers) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Check(buffers);
  const LengthPorts& own = ports();
  Bind(own, buffers);
  if (own.is_padded) {  // a run leaves its padded inputs for the next one
    ffi::Any nothing;
    invoke_.CallPacked(arguments_.data(), static_cast<int32_t>(arguments_.size()), &nothing);
    text_ = TraceEvents(spec_, Method("trace")().cast<ffi::String>());
    ++runs_;
    return text_;
  }
  const ffi::Function set_input = Method("set_input"), get_output = Method("get_output");
  for (size_t i = 0; i < own.inputs.size(); ++i) {
    set_input(static_cast<int64_t>(i), &own.inputs[i]->tensor);
  }
  text_ = TraceEvents(spec_, Method("trace")().cast<ffi::String>());
  for (size_t i = 0; i < own.outputs.size(); ++i) {
    get_output(static_cast<int64_t>(i), &own.outputs[i]->tensor);
  }
  ++runs_;
  return text_;
}

void Model::UsePlan(size_t number) { Method("use_plan")(static_cast<int64_t>(number)); }

void Model::UseLength(size_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number >= spec_.lengths.size()) {
    TVM_FFI_THROW(ValueError) << "expected a number below " << spec_.lengths.size()
                              << " for the length, got " << number
                              << "; tvm_stretch_length_count tells how many there are";
  }
  Use({number, {}});
  sizes_ = spec_.lengths[number].sizes_by_name;
}

void Model::UseSize(const std::string& name, int64_t size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Sizes sizes = sizes_;
  std::string names;
  bool is_known = false;
  for (auto& [known, value] : sizes) {
    names += (names.empty() ? "'" : ", '") + known + "'";
    if (known != name) continue;
    value = size;
    is_known = true;
  }
  if (!is_known) {
    TVM_FFI_THROW(ValueError) << "expected one of the dimensions [" << names << "], got '" << name
                              << "'; those are the names that the model was compiled with";
  }
  Use(LengthOfSizes(spec_, sizes));
  sizes_ = std::move(sizes);
}

void Model::Use(const SizedLength& sized) {
  if (spec_.lengths.size() > 1) UsePlan(sized.length);
  now_ = &PortsOf(sized);
}

void Model::Reset() { Method("reset")(); }

void Model::Generate(const int64_t* tokens, size_t count, size_t most,
                     const std::function<bool(int64_t)>& is_over) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t state = ChosenState(spec_);
  const auto output = static_cast<int64_t>(spec_.states[state].output);
  const bool is_wide = spec_.output(output).dtype.bits == 64;
  std::vector<int32_t> narrow(is_wide ? 0 : count);
  for (size_t i = 0; i < narrow.size(); ++i) {
    if (tokens[i] < INT32_MIN || tokens[i] > INT32_MAX) {
      TVM_FFI_THROW(ValueError) << "expected tokens of int32, got " << tokens[i]
                                << "; see tvm_stretch_generate";
    }
    narrow[i] = static_cast<int32_t>(tokens[i]);
  }
  int64_t size = static_cast<int64_t>(count);
  DLTensor given{};
  given.data = is_wide ? const_cast<int64_t*>(tokens) : static_cast<void*>(narrow.data());
  given.device = DLDevice{kDLCPU, 0};
  given.ndim = 1;
  given.dtype = spec_.output(output).dtype;
  given.shape = &size;
  const ffi::Function guess = Method("guess");
  size_t left = most;
  if (count > 0 && left > 0) {
    Method("feed")(&given);
    ++runs_;
    const auto found = Method("get_output")(output).cast<ffi::Tensor>();
    const void* value = found.GetDLTensorPtr()->data;
    const int64_t token = is_wide ? *static_cast<const int64_t*>(value)
                                  : int64_t{*static_cast<const int32_t*>(value)};
    if (is_over(token)) return;
    --left;
  }
  while (left > 0) {
    const auto found = guess(static_cast<int64_t>(left)).cast<ffi::Tensor>();
    ++runs_;
    const auto* tokens_of_run = static_cast<const int64_t*>(found.GetDLTensorPtr()->data);
    const int64_t several = found.shape()[0];
    for (int64_t i = 0; i < several; ++i, --left) {
      if (!is_over(tokens_of_run[i])) continue;
      if (i + 1 < several) Method("take_back")(several - 1 - i);
      return;
    }
  }
}

void Model::SetSampling(const SamplingSpec& sampling) {
  Method("set_sampling")(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
                         sampling.seed);
}

void Model::Adapt() {
  const Patience usual;
  Method("adapt")(usual.factor, usual.runs, usual.pause);
}

void Model::SetCores(const char* cores) { Method("set_affinity")(ffi::String(cores)); }

const std::string& Model::Statistics() {
  const std::lock_guard<std::mutex> lock(mutex_);
  json::Object bytes, found;
  bytes.Set(ffi::String("weights"), spec_.weights_bytes);
  bytes.Set(ffi::String("prepared"), spec_.prepared_bytes);
  bytes.Set(ffi::String("scratch"), spec_.arena_bytes);
  found.Set(ffi::String("runs"), runs_);
  found.Set(ffi::String("nanoseconds"), last_ns_);
  found.Set(ffi::String("plan"), Method("plan")().cast<int64_t>());
  found.Set(ffi::String("lost"), Method("lost")().cast<ffi::String>());
  found.Set(ffi::String("replaced"), Method("replaced")().cast<ffi::String>());
  found.Set(ffi::String("processors"), json::Parse(Method("health")().cast<ffi::String>()));
  found.Set(ffi::String("bytes"), bytes);
  text_ = WholeJSON(found);
  return text_;
}

}  // namespace tvm_stretch::app
