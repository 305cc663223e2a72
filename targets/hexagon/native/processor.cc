// Runs regions on a DSP; native/processor.h has the executor's interface.
#include "processor.h"

#include <cstdlib>

#include "session.h"

namespace tvm_stretch::dsp {
namespace {

class DspProgramOfModel final : public ProcessorProgram {
 public:
  explicit DspProgramOfModel(const ProcessorContext& context)
      : graph_(context.graph),
        index_(context.index),
        module_(context.code),
        code_(CodeOf(module_)),
        weights_(graph_, index_, code_, context.weights) {}

  std::unique_ptr<Processor> CreateInstance(const MemoryMap& memory) const final;
  SharedBlock AllocateBlock(size_t bytes, bool) const final {
    return code_.by_fastrpc ? AllocateShared(code_, bytes) : SharedBlock();
  }
  std::string description() const final { return code_.device; }

  const GraphSpec& graph() const { return graph_; }
  const CodeSpec& code() const { return code_; }
  const Weights& weights() const { return weights_; }
  size_t index() const { return index_; }

 private:
  const GraphSpec& graph_;
  const size_t index_;
  const ffi::Module module_;
  const CodeSpec& code_;
  const Weights weights_;
};

// A region as a job; after Start() the session's thread runs it, or the caller of StartAlone().
class DspTask final : public Task, public Job {
 public:
  DspTask(Session* session, const GraphSpec& graph, const Image& image, uint32_t region,
          const std::vector<Task*>& after, Task* previous)
      : session_(*session),
        graph_(graph),
        image_(image),
        region_(region),
        num_after_(after.size()),
        previous_(previous) {
    for (Task* task : after) {
      task->OnComplete([this](const Failure& failure) { Arrive(failure); });
    }
  }

  void Reset(bool traced) final {
    Task::Reset(traced);
    std::lock_guard<std::mutex> lock(session_.mutex());
    missing_ = num_after_;
    failure_.reset();
    cancelled_ = false;
    traced_ = traced;
    spans_.clear();
    is_done_ = false;
  }
  void Start() final {
    started_ = Now();
    session_.Push(this);
    launched_ = Now();
  }
  // Another thread would cost two hand-overs, and a core to spin on.
  void StartAlone() final {
    launched_ = started_ = Now();
    session_.ExecuteHere(this);
  }
  // Spins first, because waking a thread takes longer than a small region.
  const Failure& Wait() final {
    SpinFor(session_.spin(), [this] { return is_done_.load(); });
    return Task::Wait();
  }
  void Cancel() final {
    std::lock_guard<std::mutex> lock(session_.mutex());
    cancelled_ = true;
  }
  std::vector<Span> Spans() const final { return spans_; }

  bool IsReady() const final { return missing_ == 0; }

  void Execute(Session* session) final {
    Failure failure = WhyNot();
    if (!failure) {
      failure = Attempt([&] {
        const int64_t begun = num_after_ == 0 ? started_.load() : Now();
        const Reply reply = session->Invoke(region_, traced_);
        const auto computed = static_cast<int64_t>(reply.nanoseconds);
        session->NoteHandover(launched_ - started_, Now() - begun - computed);
        if (traced_) AddSpans(reply);
      });
    }
    is_done_ = true;  // before Complete(): once Wait() returns, this may be destroyed
    Complete(std::move(failure));
  }

 private:
  void Arrive(const Failure& failure) {
    {
      std::lock_guard<std::mutex> lock(session_.mutex());
      if (failure && !failure_) failure_ = failure;
      if (--missing_ != 0) return;
    }
    session_.Notify();
  }

  // The reason why the region must not begin.
  Failure WhyNot() {
    {
      std::lock_guard<std::mutex> lock(session_.mutex());
      if (failure_) return failure_;
      if (cancelled_) return CancelledError();
    }
    return previous_ == nullptr ? std::nullopt : previous_->Wait();
  }

  void AddSpans(const Reply& reply) {
    for (size_t i = 0; i < reply.spans.size(); ++i) {
      const int64_t id = image_.nodes[image_.bounds[region_].first + i];
      const DspSpan& span = reply.spans[i];
      spans_.push_back(Span{Span::Kind::kKernel, id, graph_.nodes[id].name,
                            static_cast<int64_t>(span.start), static_cast<int64_t>(span.end)});
      spans_.back().packets = static_cast<int64_t>(span.packets);
    }
  }

  Session& session_;
  const GraphSpec& graph_;
  const Image& image_;
  const uint32_t region_;
  const size_t num_after_;
  Task* const previous_;  // of the same processor
  size_t missing_ = 0;
  Failure failure_;  // of a task in `after`
  bool cancelled_ = false;
  bool traced_ = false;
  std::atomic<bool> is_done_{false};
  std::atomic<int64_t> started_{0}, launched_{0};  // `launched_` may be set after the run
  std::vector<Span> spans_;
};

class DspProcessor final : public Processor {
 public:
  DspProcessor(const DspProgramOfModel& program, const MemoryMap& memory)
      : graph_(program.graph()),
        image_(Image::Make(graph_, program.index(), program.code(), program.weights(), memory)),
        session_(program.code(), image_, memory.block, program.weights().block()) {}

  void BeginPlan() final { last_ = nullptr; }
  std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) final {
    const int64_t id = &region - graph_.regions.data();
    auto task =
        std::make_unique<DspTask>(&session_, graph_, image_, image_.regions.at(id), after, last_);
    last_ = task.get();
    return task;
  }
  bool MayTryAgain() const final { return session_.MayTryAgain(); }
  void SetAffinity(const std::vector<int>& cores) final { session_.SetAffinity(cores); }
  std::string Health() const final { return session_.Health(); }

 private:
  const GraphSpec& graph_;
  const Image image_;
  Session session_;
  Task* last_ = nullptr;
};

std::unique_ptr<Processor> DspProgramOfModel::CreateInstance(const MemoryMap& memory) const {
  return std::make_unique<DspProcessor>(*this, memory);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  // An engine is a process that computes regions too, with models for kernels.
  for (const char* kind : {"dsp", "engine"}) {
    RegisterProcessor(kind, [](const ProcessorContext& context) {
      return std::make_unique<DspProgramOfModel>(context);
    });
  }
}

}  // namespace tvm_stretch::dsp
