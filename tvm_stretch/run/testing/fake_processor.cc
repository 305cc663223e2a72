// A processor without a device, for tests: it runs the CPU's kernels on a thread of its own.
//
// Its code is a module that `tvm_stretch.create_fake_code(script)` makes of
//
//   {"mirrored": true,                              separate memory, so that tensors are copied
//    "regions": {"r1": {"latency_us": 2000,         least duration of the region
//                       "fails": "device lost",     the region fails with this message
//                       "failures": 1}}}            number of failing runs; default: all
//
// and whose method `log` returns what was done since the last call, as JSON:
//
//   {"regions": ["r1", ...], "receives": [tensor ids], "sends": [tensor ids]}
//
// `take(region, microseconds)` sets the least duration of a region, and
// `fail(region, message, count)` makes its next `count` runs fail.
//
// A real device whose calls block a thread looks the same from the executor's side.
#include <tvm/ffi/cast.h>
#include <tvm/ffi/extra/json.h>

#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "memory.h"
#include "queue_processor.h"

namespace tvm_stretch {
namespace {

namespace json = ffi::json;

struct Script {
  std::chrono::microseconds latency{0};
  std::string error;
  int64_t failures = INT64_MAX;  // how many runs still fail
};

// What tests tell the processor and what it tells them; shared by all instances.
class FakeCode final : public TextCode<FakeCode> {
 public:
  static constexpr const char* kKind = "tvm_stretch.fake";
  static constexpr const char* kRemedy = "pass tvm_stretch.create_fake_code(...)";

  explicit FakeCode(ffi::String text) : TextCode(std::move(text)) {
    auto script = json::Parse(text_).cast<json::Object>();
    if (auto found = script.find(ffi::String("mirrored")); found != script.end()) {
      mirrored_ = (*found).second.cast<bool>();
    }
    auto regions = script.find(ffi::String("regions"));
    if (regions == script.end()) return;
    for (const auto& [name, value] : (*regions).second.cast<json::Object>()) {
      Script& region = scripts_[name.cast<ffi::String>()];
      for (const auto& [key, entry] : value.cast<json::Object>()) {
        auto word = key.cast<ffi::String>();
        if (word == "latency_us") region.latency = std::chrono::microseconds(entry.cast<int64_t>());
        if (word == "fails") region.error = entry.cast<ffi::String>();
        if (word == "failures") region.failures = entry.cast<int64_t>();
      }
    }
  }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    auto self = ffi::GetObjectPtr<ffi::Object>(this);
    if (name == "take") {
      return ffi::Function::FromTyped([self, this](const ffi::String& region, int64_t latency) {
        std::lock_guard<std::mutex> lock(mutex_);
        scripts_[region].latency = std::chrono::microseconds(latency);
      });
    }
    if (name == "fail") {
      return ffi::Function::FromTyped(
          [self, this](const ffi::String& region, const ffi::String& error, int64_t failures) {
            std::lock_guard<std::mutex> lock(mutex_);
            scripts_[region].error = error;
            scripts_[region].failures = failures;
          });
    }
    if (name != "log") return std::nullopt;
    return ffi::Function::FromTyped([self, this]() { return TakeLog(); });
  }

  bool mirrored() const { return mirrored_; }

  std::chrono::microseconds Latency(const std::string& region) {
    std::lock_guard<std::mutex> lock(mutex_);
    return scripts_[region].latency;
  }

  void ThrowScripted(const std::string& region) {
    std::lock_guard<std::mutex> lock(mutex_);
    Script& script = scripts_[region];
    if (script.error.empty() || script.failures == 0) return;
    --script.failures;
    TVM_FFI_THROW(RuntimeError) << script.error;
  }

  void Log(const RegionSpec& region) {
    std::lock_guard<std::mutex> lock(mutex_);
    regions_.push_back(ffi::String(region.name));
    for (int64_t id : region.receives) receives_.push_back(id);
    for (int64_t id : region.sends) sends_.push_back(id);
  }

 private:
  ffi::String TakeLog() {
    std::lock_guard<std::mutex> lock(mutex_);
    json::Object log;
    log.Set(ffi::String("regions"), std::exchange(regions_, {}));
    log.Set(ffi::String("receives"), std::exchange(receives_, {}));
    log.Set(ffi::String("sends"), std::exchange(sends_, {}));
    return json::Stringify(log);
  }

  bool mirrored_ = false;
  std::mutex mutex_;  // guards all below
  std::map<std::string, Script> scripts_;
  json::Array regions_, receives_, sends_;
};

struct FakeProgram final : public ProcessorProgram {
  explicit FakeProgram(const ProcessorContext& context)
      : graph(context.graph),
        kernels(context.host_code, context.graph, context.index),
        module(context.code),
        code(FakeCode::Of(context)) {}
  std::unique_ptr<Processor> CreateInstance(const MemoryMap& memory) const final;

  const GraphSpec& graph;
  const KernelTable kernels;
  const ffi::Module module;
  FakeCode* const code;
};

class FakeProcessor final : public QueueProcessor {
 public:
  FakeProcessor(const FakeProgram& program, const MemoryMap& host)
      : QueueProcessor(Waiting{}),
        program_(program),
        host_(host),
        mirror_(program.code->mirrored() ? host.block.bytes : 0),
        memory_(program.code->mirrored() ? MapMirror() : host),
        tensors_(program.graph, memory_) {
    Begin();
  }
  ~FakeProcessor() final { End(); }

  std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) final;
  bool SharesMemory() const final { return mirror_.bytes() == 0; }

  void ForgetMirror() {
    if (mirror_.bytes() != 0) std::memset(mirror_.data(), 0xFF, mirror_.bytes());
  }
  void Receive(int64_t id) const { Copy(id, host_, memory_); }
  void Send(int64_t id) const { Copy(id, memory_, host_); }

  const FakeProgram& program() const { return program_; }

 private:
  MemoryMap MapMirror() const {
    MemoryMap map = host_;
    auto move = [this](char* address) { return mirror_.data() + (address - host_.block.data); };
    map.arena = move(map.arena);
    for (char*& address : map.inputs) address = move(address);
    for (char*& address : map.outputs) address = move(address);
    return map;
  }
  void Copy(int64_t id, const MemoryMap& from, const MemoryMap& to) const {
    const TensorSpec& tensor = program_.graph.tensors[id];
    char* target = AddressOf(to, tensor);
    const char* source = AddressOf(from, tensor);
    if (target != source && tensor.bytes != 0) std::memcpy(target, source, tensor.bytes);
  }

  const FakeProgram& program_;
  const MemoryMap& host_;
  const AlignedBuffer mirror_;
  const MemoryMap memory_;
  BoundTensors tensors_;
};

class FakeTask final : public QueueTask {
 public:
  FakeTask(FakeProcessor* processor, const RegionSpec& region, const std::vector<Task*>& after,
           Task* previous, BoundNodes nodes)
      : QueueTask(processor, region, after, previous, std::move(nodes)), processor_(*processor) {}

  void Reset(bool traced) final {
    QueueTask::Reset(traced);
    if (previous_ == nullptr) processor_.ForgetMirror();
  }

 private:
  void Run() final {
    if (cancelled_) throw CancelledError();
    FakeCode& code = *processor_.program().code;
    const auto end = std::chrono::steady_clock::now() + code.Latency(region_.name);
    code.Log(region_);
    Transfer(region_.receives, Span::Kind::kReceive);
    nodes_.Run(never_, traced_ ? &spans_ : nullptr);
    std::this_thread::sleep_until(end);
    if (!spans_.empty()) spans_.back().end = Now();  // of a kernel, or of a receive
    code.ThrowScripted(region_.name);
    Transfer(region_.sends, Span::Kind::kSend);
  }

  void Transfer(const std::vector<int64_t>& ids, Span::Kind kind) {
    for (int64_t id : ids) {
      const int64_t start = Now();
      kind == Span::Kind::kReceive ? processor_.Receive(id) : processor_.Send(id);
      if (traced_) spans_.push_back(Span{kind, id, region_.name, start, Now()});
    }
  }

  FakeProcessor& processor_;
  const std::atomic<bool> never_{false};  // a region that has begun is not stopped
};

std::unique_ptr<Task> FakeProcessor::Bind(const RegionSpec& region,
                                          const std::vector<Task*>& after) {
  BoundNodes nodes(program_.graph.nodes, region.nodes, program_.kernels, &tensors_);
  auto task = std::make_unique<FakeTask>(this, region, after, last_, std::move(nodes));
  last_ = task.get();
  return task;
}

std::unique_ptr<Processor> FakeProgram::CreateInstance(const MemoryMap& memory) const {
  return std::make_unique<FakeProcessor>(*this, memory);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  RegisterProcessor("fake", [](const ProcessorContext& context) {
    return std::make_unique<FakeProgram>(context);
  });
  FakeCode::Register("tvm_stretch.create_fake_code");
}

}  // namespace tvm_stretch
