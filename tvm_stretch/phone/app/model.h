// A loaded artifact as the C interface has it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "artifact_file.h"
#include "graph.h"
#include "padding.h"
#include "tvm_stretch.h"

namespace tvm_stretch::app {

// The thread of a model that makes asynchronous runs.

// What it runs must not throw.
struct Job {
  std::function<void()> run;
  std::function<void()> done;  // may begin the next job, or destroy the worker
};

// Starts with the first job, so that models without asynchronous runs have no thread.
class Worker {
 public:
  ~Worker() { Finish(); }

  // Returns false if `run` of another job has not returned yet, or after Finish().
  bool Begin(Job job);

  // Waits for the job in progress, unless this is its thread. There will be no other one.
  void Finish();

 private:
  // Survives the worker if a job destroys that one.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_busy = false;
    bool is_over = false;
    Job next;
  };

  static void Work(State* state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

// An input or output with the memory that its description points to.
struct Port {
  Port(const PortSpec& spec, std::vector<int64_t> shape, DLDataType dtype);
  Port(const Port&) = delete;

  std::string type;
  std::vector<int64_t> shape;
  TvmStretchTensor shown;
  DLTensor tensor;  // a run gives it its data
};

// The inputs and outputs of runs with certain sizes.
struct LengthPorts {
  bool is_padded = false;  // inputs are smaller than those of the length that computes them
  std::vector<std::unique_ptr<Port>> inputs;
  std::vector<std::unique_ptr<Port>> outputs;
};

// The caller's memory for one run.
struct Buffers {
  const TvmStretchBuffer* inputs;
  size_t input_count;
  const TvmStretchBuffer* outputs;
  size_t output_count;
};

class Model {
 public:
  // `data` is the path of the network, if the artifact has the kernels only; else null.
  explicit Model(std::shared_ptr<const ArtifactFile> file, const char* data);
  std::unique_ptr<Model> Clone(bool with_states);

  const GraphSpec& spec() const { return spec_; }
  const std::vector<std::unique_ptr<Port>>& inputs() const { return ports().inputs; }
  const std::vector<std::unique_ptr<Port>>& outputs() const { return ports().outputs; }
  Worker& worker() { return worker_; }

  // Throws ValueError unless there is a buffer for each input and output, large enough.
  void Check(const Buffers& buffers) const;
  void Run(const Buffers& buffers);
  // Gives the next run of the worker a number, by which Cancel() stops it even before it begins.
  int64_t Announce();
  void Cancel();
  void UsePlan(size_t number);
  void UseLength(size_t number);
  void UseSize(const std::string& name, int64_t size);
  void Reset();
  // Reads tokens, or goes on without any, and chooses others until `is_over` says so.
  void Generate(const int64_t* tokens, size_t count, size_t most,
                const std::function<bool(int64_t)>& is_over);
  void SetSampling(const SamplingSpec& sampling);
  void Adapt();
  void SetCores(const char* cores);

  // The texts stay until the next call of either.
  const std::string& Statistics();
  const std::string& Trace(const Buffers& buffers);

 private:
  Model(std::shared_ptr<const ArtifactFile> file, ffi::Module executor,
        std::optional<GraphSpec> spec);
  ffi::Function Method(const char* name) const;
  void Bind(const LengthPorts& own, const Buffers& buffers);
  const LengthPorts& PortsOf(const SizedLength& sized);
  void Use(const SizedLength& sized);
  const LengthPorts& ports() const { return *now_; }

  const std::shared_ptr<const ArtifactFile> file_;  // outlives the code of `executor_`
  const ffi::Module executor_;
  const GraphSpec spec_;
  // For all sizes that were used, because their descriptions stay valid.
  std::map<std::pair<size_t, Missing>, LengthPorts> ports_;
  std::atomic<const LengthPorts*> now_;
  Sizes sizes_;  // of the dimensions with names
  const ffi::Function invoke_;
  const ffi::Function cancel_;
  std::atomic<int64_t> announced_{0};  // the number of the last asynchronous run
  std::mutex mutex_;                   // guards the tensors of the ports and the members below
  std::vector<ffi::AnyView> arguments_;
  int64_t runs_ = 0;
  int64_t last_ns_ = 0;
  std::string text_;
  Worker worker_;  // the last member: its thread uses the others
};

}  // namespace tvm_stretch::app
