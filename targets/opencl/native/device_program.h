// What all instances of a model share on an OpenCL device: programs and weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "code.h"
#include "cores.h"
#include "device.h"
#include "device_memory.h"
#include "handle.h"
#include "processor.h"

namespace tvm_stretch::opencl {

// Builds sources to programs of one device.

// One program per source, in order, from the cache on disk if it has them. Throws DeviceError with
// the compiler's log. The progress of long builds goes to the global function
// `tvm_stretch.opencl_progress`(programs done, programs in all) if there is one, else to a
// terminal.
std::vector<Program> BuildPrograms(const Device& device, const std::vector<std::string>& sources,
                                   const std::string& options);

// A new kernel with separate arguments; throws ValueError if the program has no such entry.
Kernel CreateKernel(const Program& program, const std::string& entry);

// Throws ValueError if the device cannot run the launch: the work-group or local memory is too
// large, or the arguments do not match the kernel.
void CheckLaunch(const Device& device, const Kernel& kernel, const LaunchSpec& launch);

class OpenCLProgram final : public ProcessorProgram {
 public:
  explicit OpenCLProgram(const ProcessorContext& context);

  std::unique_ptr<Processor> CreateInstance(const MemoryMap& memory) const final;
  SharedBlock AllocateBlock(size_t bytes, bool several) const final;
  std::string description() const final { return device_.info.name; }
  Cores cores() const final;

  const Device& device() const { return device_; }
  const GraphSpec& graph() const { return graph_; }
  const MemoryMap& weights() const { return weights_; }
  const std::vector<LaunchSpec>& LaunchesOf(const NodeSpec& node) const;
  Kernel NewKernel(const LaunchSpec& launch) const {
    return CreateKernel(programs_[launch.source], launch.entry);
  }
  const DeviceMemory& WeightsAt(const char* address) const;
  int64_t scratch_bytes() const { return scratch_bytes_; }
  const CodeSpec& code() const { return code_; }
  int64_t index() const { return index_; }
  bool CanRingBells() const;

 private:
  std::vector<const NodeSpec*> OwnNodes(size_t index) const;
  void CheckLaunches(const NodeSpec& node);
  bool IsAlone(size_t index) const;
  void Upload(const std::vector<const NodeSpec*>& nodes, Memory memory);

  const Device device_;
  const GraphSpec& graph_;
  const int64_t index_;
  const MemoryMap weights_;
  const ffi::Module module_;
  const CodeSpec& code_;
  const std::vector<Program> programs_;
  const bool is_alone_;
  std::vector<DeviceMemory> weight_memories_;
  int64_t scratch_bytes_ = 0;  // the most that any launch needs
};

}  // namespace tvm_stretch::opencl
