#include "device_program.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "errors.h"
#include "handover.h"
#include "host_cores.h"

namespace tvm_stretch::opencl {
namespace {

// The code, if it was made for such a device: a CPU's loops would take a GPU minutes.
const CodeSpec& CodeFor(const Device& device, const ffi::Module& module) {
  const CodeSpec& code = CodeOf(module);
  if (!code.has_bells || device.info.is_cpu()) return code;
  throw ffi::Error(kDeviceError,
                   "expected a CPU's OpenCL device for kernels that were compiled for one, got " +
                       device.info.name + "; compile the network where that device is",
                   "");
}

}  // namespace

OpenCLProgram::OpenCLProgram(const ProcessorContext& context)
    : device_(WorkingDevice()),
      graph_(context.graph),
      index_(static_cast<int64_t>(context.index)),
      weights_(context.weights),
      module_(context.code),
      code_(CodeFor(device_, module_)),
      programs_(BuildPrograms(device_, code_.sources, code_.options)),
      is_alone_(IsAlone(context.index)) {
  std::vector<const NodeSpec*> nodes = OwnNodes(context.index);
  for (const NodeSpec* node : nodes) {
    if (node->kernel != kCopyKernel) CheckLaunches(*node);
  }
  Upload(nodes, Memory::kConstant);
  Upload(nodes, Memory::kPrepared);
}

// Whether no other processor of the graph has this kind, which would share the device.
bool OpenCLProgram::IsAlone(size_t index) const {
  for (size_t i = 0; i < graph_.processors.size(); ++i) {
    if (i != index && graph_.processors[i].kind == graph_.processors[index].kind) return false;
  }
  return true;
}

// Waiting kernels must not occupy a core that the awaited regions need, or that is to be idle.
bool OpenCLProgram::CanRingBells() const {
  const bool is_limited = graph_.processors[index_].max_share < 1;
  return code_.has_bells && is_alone_ && !is_limited && device_.memory == MemoryKind::kShared &&
         !cores().empty() && !Without(AllowedCores(), cores()).empty();
}

std::vector<const NodeSpec*> OpenCLProgram::OwnNodes(size_t index) const {
  std::vector<const NodeSpec*> nodes;
  for (const RegionSpec& region : graph_.regions) {
    if (region.processor != static_cast<int64_t>(index)) continue;
    for (int64_t id : region.nodes) nodes.push_back(&graph_.nodes[id]);
  }
  return nodes;
}

const std::vector<LaunchSpec>& OpenCLProgram::LaunchesOf(const NodeSpec& node) const {
  auto found = code_.kernels.find(node.kernel);
  if (found == code_.kernels.end()) {
    TVM_FFI_THROW(ValueError) << "expected a kernel '" << node.kernel
                              << "' in the OpenCL code, got none; compile the model again";
  }
  return found->second;
}

void OpenCLProgram::CheckLaunches(const NodeSpec& node) {
  const auto num_tensors = static_cast<int64_t>(node.inputs.size() + node.outputs.size());
  for (const LaunchSpec& launch : LaunchesOf(node)) {
    for (const ArgSpec& arg : launch.args) {
      const bool is_image = arg.kind == ArgSpec::Kind::kImage;
      bool is_tensor =
          is_image || arg.kind == ArgSpec::Kind::kBuffer || arg.kind == ArgSpec::Kind::kOffset;
      if (is_tensor && arg.value >= num_tensors) {
        TVM_FFI_THROW(ValueError) << "expected one of " << num_tensors << " tensors of '"
                                  << node.name << "' in the OpenCL code, got number " << arg.value
                                  << "; compile the model again";
      }
      if (is_image && !device_.info.has_images) {
        TVM_FFI_THROW(DeviceError)
            << "expected a device with images for kernel '" << launch.entry << "', got "
            << device_.info.name << "; compile the model for this device";
      }
      if (arg.kind == ArgSpec::Kind::kScratch) {
        scratch_bytes_ = std::max(scratch_bytes_, arg.value);
      }
    }
    CheckLaunch(device_, NewKernel(launch), launch);
  }
}

// Uploads the part of a weight memory that this processor's nodes read.
void OpenCLProgram::Upload(const std::vector<const NodeSpec*>& nodes, Memory memory) {
  int64_t low = std::numeric_limits<int64_t>::max(), high = 0;
  for (const NodeSpec* node : nodes) {
    for (int64_t id : node->inputs) {
      const TensorSpec& tensor = graph_.tensors[id];
      if (tensor.memory != memory || tensor.bytes == 0) continue;
      low = std::min(low, tensor.offset);
      high = std::max(high, tensor.offset + tensor.bytes);
    }
  }
  if (high == 0) return;
  low = low / static_cast<int64_t>(kAlignment) * static_cast<int64_t>(kAlignment);
  char* base = memory == Memory::kConstant ? weights_.constant : weights_.prepared;
  weight_memories_.emplace_back(device_, base + low, static_cast<size_t>(high - low),
                                Contents::kUpload);
}

const DeviceMemory& OpenCLProgram::WeightsAt(const char* address) const {
  for (const DeviceMemory& memory : weight_memories_) {
    if (memory.Holds(address)) return memory;
  }
  TVM_FFI_THROW(InternalError) << "expected weights of an OpenCL node, got another address";
  TVM_FFI_UNREACHABLE();
}

std::shared_ptr<char> OpenCLProgram::AllocateBlock(size_t bytes) const {
  if (device_.memory == MemoryKind::kMapped) return DriversMemory::Allocate(device_, bytes);
  if (device_.memory == MemoryKind::kMirror) return AllocatePinned(device_, bytes);
  if (device_.memory != MemoryKind::kFine || CL().SVMAlloc == nullptr || bytes == 0) return nullptr;
  const cl_context context = device_.context;
  const cl_bitfield flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
  auto block = static_cast<char*>(CL().SVMAlloc(context, flags, bytes, kAlignment));
  if (block == nullptr) Fail(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clSVMAlloc");
  std::memset(block, 0, bytes);
  return {block, [context](char* memory) { CL().SVMFree(context, memory); }};
}

Cores OpenCLProgram::cores() const { return device_.info.is_cpu() ? DriverCores() : Cores(); }

}  // namespace tvm_stretch::opencl
