// A processor that runs its regions one after the other on a thread of ours, with kernels of the
// CPU: little cores (cluster_processor.cc), and the scripted processor of tests.
#pragma once

#include <tvm/ffi/reflection/registry.h>

#include <atomic>
#include <deque>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bound_graph.h"
#include "processor.h"
#include "spin.h"

namespace tvm_stretch {

// The code of such a processor: a text, which a subclass reads. It is not empty, because tvm-ffi
// reads no empty module from an artifact. `Code` has a `kKind`, and a `kRemedy` for the message
// that refuses other code.
template <typename Code>
class TextCode : public ffi::ModuleObj {
 public:
  explicit TextCode(ffi::String text) : text_(std::move(text)) {}

  const char* kind() const final { return Code::kKind; }
  int GetPropertyMask() const final { return ffi::Module::kBinarySerializable; }
  ffi::Bytes SaveToBytes() const final { return ffi::Bytes(text_.data(), text_.size()); }
  ffi::Optional<ffi::Function> GetFunction(const ffi::String&) override { return std::nullopt; }

  static Code* Of(const ProcessorContext& context) {
    const ffi::ModuleObj* module = context.code.get();
    if (std::string_view(module->kind()) != Code::kKind) {
      TVM_FFI_THROW(ValueError) << "expected code of kind " << Code::kKind << " for processor '"
                                << context.graph.processors[context.index].name << "', got "
                                << module->kind() << "; " << Code::kRemedy;
    }
    return static_cast<Code*>(const_cast<ffi::ModuleObj*>(module));
  }

  // Registers the functions that make the code from its text and load it from an artifact.
  static void Register(const char* creator) {
    if (ffi::Function::GetGlobal(creator)) return;  // another library has the kind
    const std::string loader = std::string("ffi.Module.load_from_bytes.") + Code::kKind;
    auto make = [](const ffi::String& text) { return ffi::Module(ffi::make_object<Code>(text)); };
    ffi::reflection::GlobalDef()
        .def(creator, make)
        .def(loader.c_str(), [make](const ffi::Bytes& bytes) {
          return make(ffi::String(bytes.data(), bytes.size()));
        });
  }

 protected:
  const ffi::String text_;
};

class QueueTask;

// How long a thread spins before it sleeps, and whether waits for other processors are spans.
struct Waiting {
  std::chrono::microseconds idle{0};     // between runs
  std::chrono::microseconds running{0};  // while a run is in progress
  bool traced = false;
};

class QueueProcessor : public Processor {
 public:
  explicit QueueProcessor(Waiting waiting) : waiting_(waiting) {}

  void BeginPlan() final { last_ = nullptr; }
  const Waiting& waiting() const { return waiting_; }

  void Push(QueueTask* task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(task);
      pushed_ = queue_.size();
    }
    wake_.notify_one();
  }
  // Called when a task's last predecessor is complete.
  void Notify() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
    }  // the thread sleeps, or will check again
    wake_.notify_one();
  }

 protected:
  // Subclasses begin when they are constructed, and end before anything of them is destroyed.
  void Begin() {
    thread_ = std::thread([this] { Work(); });
  }
  void End();

  virtual void Work();  // on the thread

  Task* last_ = nullptr;  // the task that was bound last

 private:
  QueueTask* Next();
  void Await(QueueTask* task);

  const Waiting waiting_;
  std::mutex mutex_;  // guards the queue
  std::condition_variable wake_;
  std::deque<QueueTask*> queue_;
  std::atomic<size_t> pushed_{0};  // tasks in the queue
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class QueueTask : public Task {
 public:
  QueueTask(QueueProcessor* processor, const RegionSpec& region, const std::vector<Task*>& after,
            Task* previous, BoundNodes nodes)
      : region_(region),
        previous_(previous),
        nodes_(std::move(nodes)),
        processor_(*processor),
        num_after_(after.size()) {
    for (Task* task : after) {
      task->OnComplete([this](const Failure& failure) { Arrive(failure); });
    }
  }

  void Reset(bool traced) override {
    Task::Reset(traced);
    missing_ = num_after_;
    failure_.reset();
    traced_ = traced;
    spans_.clear();
    cancelled_ = false;
  }
  void Start() final { processor_.Push(this); }
  const Failure& Wait() final {
    SpinFor(processor_.waiting().running, [this] { return is_complete(); });
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
    if (!failure) failure = Attempt([this] { Run(); });
    Complete(std::move(failure));
  }

 protected:
  virtual void Run() = 0;

  const RegionSpec& region_;
  Task* const previous_;  // of the same processor
  const BoundNodes nodes_;
  std::atomic<bool> cancelled_{false};
  bool traced_ = false;
  std::vector<Span> spans_;

 private:
  void Arrive(const Failure& failure) {
    if (failure) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!failure_) failure_ = failure;
    }
    // The thread that reads 0 may finish this task and the run, so this thread must not touch the
    // task afterwards.
    QueueProcessor& processor = processor_;
    if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) processor.Notify();
  }

  QueueProcessor& processor_;
  const size_t num_after_;
  std::atomic<size_t> missing_{0};
  std::mutex mutex_;  // guards `failure_`
  Failure failure_;   // of a task in `after`
};

inline void QueueProcessor::End() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

inline void QueueProcessor::Work() {
  while (QueueTask* task = Next()) {
    const bool waits = waiting_.traced && task->traced() && !task->IsReady();
    const int64_t start = waits ? Now() : 0;
    Await(task);
    if (waits) task->NoteWait(start);
    task->Execute();
  }
}

// The next task, or null at the end.
inline QueueTask* QueueProcessor::Next() {
  SpinFor(waiting_.idle, [this] { return stop_ || pushed_ != 0; });
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
  if (stop_) return nullptr;
  QueueTask* task = queue_.front();
  queue_.pop_front();
  pushed_ = queue_.size();
  return task;
}

inline void QueueProcessor::Await(QueueTask* task) {
  if (SpinFor(waiting_.running, [&] { return task->IsReady(); })) return;
  std::unique_lock<std::mutex> lock(mutex_);
  wake_.wait(lock, [&] { return task->IsReady(); });
}

}  // namespace tvm_stretch
