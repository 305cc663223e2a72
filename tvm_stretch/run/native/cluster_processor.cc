// Cores of the CPU that form a separate processor: a phone's little cores.
//
// Their regions run on a thread of ours with its own pool of TVM, both only on these cores; the
// CPU's regions avoid them. All memory is the host's, so nothing is copied. Both sides spin before
// they sleep, because waking a thread takes longer than a small region.
//
//   {"cores": "0-3", "threads": 4}     its compiled code (targets/cpu/little.py)
#include <utility>

#include "cores.h"
#include "json_reader.h"
#include "queue_processor.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kMostThreads = 1024;
// The next run may begin at once.
constexpr Waiting kWaiting{std::chrono::microseconds{20}, std::chrono::microseconds{500}, true};

struct ClusterSpec {
  Cores cores;
  int threads = 1;
  std::string text;  // list of cores
};

ClusterSpec ReadSpec(const ffi::String& text) {
  static constexpr Document kDocument{"the code of a cluster", "compile the model again"};
  const Reader root = Reader::Parse(kDocument, text);
  ClusterSpec spec;
  spec.text = root["cores"].Str();
  spec.threads = static_cast<int>(root["threads"].Int(1, kMostThreads));
  spec.cores = ParseCores(spec.text, "the cores of a processor");
  if (spec.cores.empty()) root["cores"].Refuse("at least one core");
  return spec;
}

class ClusterCode final : public TextCode<ClusterCode> {
 public:
  static constexpr const char* kKind = "tvm_stretch.cluster";
  static constexpr const char* kRemedy = "compile the model again";

  explicit ClusterCode(ffi::String text) : TextCode(std::move(text)), spec(ReadSpec(text_)) {}

  const ClusterSpec spec;
};

class ClusterProgram final : public ProcessorProgram {
 public:
  explicit ClusterProgram(const ProcessorContext& context)
      : graph(context.graph),
        kernels(context.host_code, context.graph, context.index),
        code(context.code),
        spec(ClusterCode::Of(context)->spec) {
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

class ClusterTask final : public QueueTask {
 public:
  ClusterTask(QueueProcessor* processor, const RegionSpec& region, const std::vector<Task*>& after,
              Task* previous, BoundNodes nodes, int threads)
      : QueueTask(processor, region, after, previous, std::move(nodes)), threads_(threads) {}

 private:
  void Run() final {
    UseThreads(threads_);
    nodes_.Run(cancelled_, traced_ ? &spans_ : nullptr);
  }

  const int threads_;
};

class ClusterProcessor final : public QueueProcessor {
 public:
  ClusterProcessor(const ClusterProgram& program, const MemoryMap& memory)
      : QueueProcessor(kWaiting), program_(program), tensors_(program.graph, memory) {
    Begin();
  }
  ~ClusterProcessor() final { End(); }

  std::unique_ptr<Task> Bind(const RegionSpec& region, const std::vector<Task*>& after) final {
    BoundNodes nodes(program_.graph.nodes, region.nodes, program_.kernels, &tensors_);
    auto task = std::make_unique<ClusterTask>(this, region, after, last_, std::move(nodes),
                                              program_.spec.threads);
    last_ = task.get();
    return task;
  }

 private:
  void Work() final {
    const CoresScope scope(program_.spec.cores);  // before the pool's threads, which inherit it
    QueueProcessor::Work();
  }

  const ClusterProgram& program_;
  BoundTensors tensors_;
};

std::unique_ptr<Processor> ClusterProgram::CreateInstance(const MemoryMap& memory) const {
  return std::make_unique<ClusterProcessor>(*this, memory);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  RegisterProcessor("cluster", [](const ProcessorContext& context) {
    return std::make_unique<ClusterProgram>(context);
  });
  ClusterCode::Register("tvm_stretch.create_cluster_code");
}

}  // namespace tvm_stretch
