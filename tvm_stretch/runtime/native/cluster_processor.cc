// Cores of the CPU that form a separate processor: a phone's little cores.
//
// Their regions run on a thread of ours with its own pool of TVM, both only on these cores; the
// CPU's regions avoid them. All memory is the host's, so nothing is copied. Both sides spin before
// they sleep, because waking a thread takes longer than a small region.
//
//   {"cores": "0-3", "threads": 4}     its compiled code (targets/little.py)
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/reflection/registry.h>

#include <atomic>
#include <deque>
#include <string_view>
#include <thread>
#include <utility>

#include "bound_graph.h"
#include "cores.h"
#include "processor.h"
#include "spin.h"

namespace tvm_stretch {
namespace {

namespace json = ffi::json;

constexpr const char* kKind = "tvm_stretch.cluster";
constexpr int64_t kMostThreads = 1024;
constexpr std::chrono::microseconds kIdleSpin{20};  // the next run may begin at once
constexpr std::chrono::microseconds kSpin{500};     // while a run is in progress

struct ClusterSpec {
  Cores cores;
  int threads = 1;
  std::string text;  // list of cores
};

ClusterSpec ReadSpec(const ffi::String& text) {
  ffi::String error;
  auto root = json::Parse(text, &error).try_cast<json::Object>();
  ClusterSpec spec;
  bool is_good = root.has_value();
  if (is_good) {
    auto cores = root->find(ffi::String("cores"));
    auto threads = root->find(ffi::String("threads"));
    is_good = cores != root->end() && threads != root->end();
    if (is_good) {
      auto list = (*cores).second.try_cast<ffi::String>();
      auto count = (*threads).second.try_cast<int64_t>();
      is_good = list && count && *count >= 1 && *count <= kMostThreads;
      if (is_good) {
        spec.text = *list;
        spec.threads = static_cast<int>(*count);
        spec.cores = ParseCores(spec.text, "the cores of a processor");
      }
    }
  }
  if (!is_good || spec.cores.empty()) {
    TVM_FFI_THROW(ValueError) << "expected cores and threads for the code of a cluster, got '"
                              << std::string(text) << "'; compile the model again";
  }
  return spec;
}

class ClusterCode final : public ffi::ModuleObj {
 public:
  explicit ClusterCode(ffi::String text) : text_(std::move(text)), spec_(ReadSpec(text_)) {}

  const char* kind() const final { return kKind; }
  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable; }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(text_.data(), text_.size()); }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) final { return std::nullopt; }
  const ClusterSpec& spec() const { return spec_; }

 private:
  const ffi::String text_;
  const ClusterSpec spec_;
};

const ClusterSpec& SpecOf(const ProcessorContext& context) {
  const ffi::ModuleObj* module = context.code.get();
  if (std::string_view(module->kind()) != kKind) {
    TVM_FFI_THROW(ValueError) << "expected code of kind " << kKind << " for processor '"
                              << context.graph.processors[context.index].name << "', got "
                              << module->kind() << "; compile the model again";
  }
  return static_cast<const ClusterCode*>(module)->spec();
}

class ClusterProgram final : public ProcessorProgram {
 public:
  explicit ClusterProgram(const ProcessorContext& context)
      : graph(context.graph),
        kernels(context.host_code, context.graph, context.index),
        code(context.code),
        spec(SpecOf(context)) {
    if (Without(spec.cores, AllowedCores()).empty()) return;
    TVM_FFI_THROW(RuntimeError) << "expected cores " << spec.text << " for processor '"
                                << context.graph.processors[context.index].name
                                << "', got a process that may not use all of them; compile the "
                                   "model for the cores that are here, or let it use them";
  }
  std::unique_ptr<Processor> CreateInstance(const MemoryMap& memory) const final;
  std::string description() const final { return "cores " + spec.text; }
  std::vector<int> cores() const final { return spec.cores; }

  const GraphSpec& graph;
  const KernelTable kernels;
  const ffi::Module code;
  const ClusterSpec& spec;  // of `code`
};

class ClusterTask;

class ClusterProcessor final : public Processor {
 public:
  ClusterProcessor(const ClusterProgram& program, const MemoryMap& memory)
      : program_(program), tensors_(program.graph, memory), thread_([this] { Work(); }) {}
  ~ClusterProcessor() final;

  void BeginPlan() final { last_ = nullptr; }
  std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) final;

  void Push(ClusterTask* task);
  // Called when a task's last predecessor is complete.
  void Notify() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }  // the thread sleeps, or will check again
    wake_.notify_one();
  }

 private:
  void Work();
  ClusterTask* Next();
  void AwaitOthers(const ClusterTask& task);

  const ClusterProgram& program_;
  BoundTensors tensors_;
  Task* last_ = nullptr;
  std::mutex mutex_;  // guards the queue
  std::condition_variable wake_;
  std::deque<ClusterTask*> queue_;
  std::atomic<size_t> waiting_{0};  // in the queue
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class ClusterTask final : public Task {
 public:
  ClusterTask(ClusterProcessor* processor, const RegionSpec& region,
              const std::vector<Task*>& after, Task* previous, BoundNodes nodes)
      : processor_(*processor),
        region_(region),
        num_after_(after.size()),
        previous_(previous),
        nodes_(std::move(nodes)) {
    for (Task* task : after) {
      task->OnComplete([this](const Failure& failure) { Arrive(failure); });
    }
  }

  void Reset(bool traced) final {
    Task::Reset(traced);
    missing_ = num_after_;
    failure_.reset();
    traced_ = traced;
    spans_.clear();
    cancelled_ = false;
  }
  void Start() final { processor_.Push(this); }
  const Failure& Wait() final {
    SpinFor(kSpin, [this] { return is_complete(); });
    return Task::Wait();
  }
  void Cancel() final { cancelled_ = true; }
  std::vector<Span> Spans() const final { return spans_; }

  bool IsReady() const { return missing_.load(std::memory_order_acquire) == 0; }
  bool traced() const { return traced_; }
  void NoteWait(int64_t start) {
    const int64_t id = region_.after.size() == 1 ? region_.after[0] : -1;
    spans_.push_back(Span{Span::Kind::kWait, id, region_.name, start, Now()});
  }

  // Runs on the processor's thread, once the task is ready.
  void Execute() {
    Failure failure;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      failure = failure_;
    }
    if (!failure && previous_ != nullptr) failure = previous_->Wait();
    if (!failure) {
      failure = Attempt([this] { nodes_.Run(cancelled_, traced_ ? &spans_ : nullptr); });
    }
    Complete(std::move(failure));
  }

 private:
  void Arrive(const Failure& failure) {
    if (failure) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = failure;
    }
    // The thread that reads 0 may finish this task and the run, so this thread must not touch the
    // task afterwards.
    ClusterProcessor& processor = processor_;
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) processor.Notify();
  }

  ClusterProcessor& processor_;
  const RegionSpec& region_;
  const size_t num_after_;
  Task* const previous_;  // of the same processor
  const BoundNodes nodes_;
  std::atomic<bool> cancelled_{false};
  std::atomic<size_t> missing_{0};
  std::mutex mutex_;  // guards `failure_`
  Failure failure_;   // of a task in `after`
  bool traced_ = false;
  std::vector<Span> spans_;
};

ClusterProcessor::~ClusterProcessor() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

std::unique_ptr<Task> ClusterProcessor::Bind(const RegionSpec& region,
                                             const std::vector<Task*>& after) {
  BoundNodes nodes(program_.graph.nodes, region.nodes, program_.kernels, &tensors_);
  auto task = std::make_unique<ClusterTask>(this, region, after, last_, std::move(nodes));
  last_ = task.get();
  return task;
}

void ClusterProcessor::Push(ClusterTask* task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(task);
    waiting_ = queue_.size();
  }
  wake_.notify_one();
}

// The next task, or null at the end.
ClusterTask* ClusterProcessor::Next() {
  SpinFor(kIdleSpin, [this] { return stop_ || waiting_ != 0; });
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
  if (stop_) return nullptr;
  ClusterTask* task = queue_.front();
  queue_.pop_front();
  waiting_ = queue_.size();
  return task;
}

void ClusterProcessor::AwaitOthers(const ClusterTask& task) {
  if (SpinFor(kSpin, [&] { return task.IsReady(); })) return;
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait(lock, [&] { return task.IsReady(); });
}

void ClusterProcessor::Work() {
  const CoresScope scope(program_.spec.cores);  // before the pool's threads begin, which inherit it
  while (ClusterTask* task = Next()) {
    const int64_t start = task->traced() && !task->IsReady() ? Now() : 0;
    AwaitOthers(*task);
    if (start != 0) task->NoteWait(start);
    UseThreads(program_.spec.threads);
    task->Execute();
  }
}

std::unique_ptr<Processor> ClusterProgram::CreateInstance(const MemoryMap& memory) const {
  return std::make_unique<ClusterProcessor>(*this, memory);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  RegisterProcessor("cluster", [](const ProcessorContext& context) {
    return std::make_unique<ClusterProgram>(context);
  });
  tvm::ffi::reflection::GlobalDef()
      .def("tvm_stretch.create_cluster_code",
           [](const ffi::String& text) { return ffi::Module(ffi::make_object<ClusterCode>(text)); })
      .def("ffi.Module.load_from_bytes.tvm_stretch.cluster", [](const ffi::Bytes& bytes) {
        return ffi::Module(ffi::make_object<ClusterCode>(ffi::String(bytes.data(), bytes.size())));
      });
}

}  // namespace tvm_stretch
