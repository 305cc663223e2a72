// The part that all instances of a model share: graph, kernels, weights.
#pragma once

#include <tvm/ffi/extra/module.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bound_graph.h"
#include "graph.h"
#include "memory.h"
#include "processor.h"

namespace tvm_stretch {

// Runs the prepare nodes of a graph when its artifact is loaded, on several cores. Another thread
// checks the weights meanwhile: both read all of them, so they wait for memory or for the disk.

class Preparation {
 public:
  // All arguments must outlive this. `check` throws if the weights are damaged.
  Preparation(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors,
              std::function<void()> check);

  // Calls all kernels, and `check` beside them. Throws what one of them threw.
  void Run();

 private:
  void Check();
  void Work();
  bool IsReady(size_t node) const;
  void Finish(Failure failure, const size_t* node);

  std::vector<BoundNodes> nodes_;
  // For each node the earlier ones that have to be complete, because both use the same memory.
  std::vector<std::vector<size_t>> after_;
  const bool is_serial_;
  const std::function<void()> check_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<bool> done_;
  size_t next_ = 0;
  bool checking_ = false;
  Failure failure_;
};

// The graph as it is stored in an artifact, with a fingerprint to detect damage.
struct GraphBytes {
  ffi::String json;
  uint64_t weights_fingerprint;

  ffi::Bytes Encode() const;
  static GraphBytes Decode(const ffi::Bytes& bytes);
};

class Program {
 public:
  // `code` is the compiled code of each of the graph's processors. `weights` points to
  // spec.weights_bytes bytes and lives as long as `weights_owner`. Throws ValueError if they have
  // another fingerprint.
  Program(GraphSpec spec, const std::vector<ffi::Module>& code, const char* weights,
          ffi::Any weights_owner, std::optional<uint64_t> fingerprint);

  // Uses the weights that are linked into the library of the CPU's kernels.
  static std::shared_ptr<const Program> FromLibrary(GraphSpec spec,
                                                    const std::vector<ffi::Module>& code,
                                                    uint64_t fingerprint);

  // Uses the weights of files, concatenated, without headers.
  static std::shared_ptr<const Program> FromFiles(GraphSpec spec,
                                                  const std::vector<ffi::Module>& code,
                                                  uint64_t fingerprint,
                                                  const std::vector<std::string>& paths);

  const GraphSpec& spec() const { return spec_; }
  const KernelTable& kernels() const { return kernels_; }
  // All processors except the CPU; empty if one of them cannot be used and the CPU runs everything.
  const std::vector<std::unique_ptr<ProcessorProgram>>& devices() const { return devices_; }
  const Failure& lost() const { return lost_; }
  char* constant() const { return memory_.constant; }
  char* prepared() const { return memory_.prepared; }

 private:
  void Prepare(std::optional<uint64_t> fingerprint) const;
  void CreateDevices(const std::vector<ffi::Module>& code);

  GraphSpec spec_;
  KernelTable kernels_;
  ffi::Any weights_owner_;
  AlignedBuffer prepared_;
  MemoryMap memory_;  // the weights only
  std::vector<std::unique_ptr<ProcessorProgram>> devices_;
  Failure lost_;
};

// The imports of an executor: the code of each processor of the graph. Throws ValueError if some
// are missing.
std::vector<ffi::Module> CodeOf(const ffi::Array<ffi::Any>& imports, const GraphSpec& spec);

}  // namespace tvm_stretch
