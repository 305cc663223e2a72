#include "device_program.h"

#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <limits>

#include "driver.h"
#include "errors.h"
#include "handover.h"
#include "program_cache.h"

namespace tvm_stretch::opencl {
namespace {

constexpr size_t kMaxLogBytes = 4000;

// The key contains all that a binary depends on. The leading number is the format of entries.
std::string CacheKey(const Device& device, const std::string& source, const std::string& options) {
  const DeviceInfo& info = device.info;
  std::string key = "1";
  for (const std::string* part :
       {&info.platform, &info.name, &info.vendor, &info.version, &info.driver, &options, &source}) {
    key += std::to_string(part->size()) + ":" + *part;
  }
  return key;
}

// -w: PoCL prints in the terminal how many warnings its compiler has, which users cannot mend.
cl_int Build(const Device& device, const Program& program, const std::string& options) {
  const std::string all = options + (device.info.misoptimises ? " -cl-opt-disable -w" : " -w");
  return CL().BuildProgram(program.get(), 1, &device.id, all.c_str(), nullptr, nullptr);
}

// Null if the driver refuses the binary, for whatever reason.
Program FromBinary(const Device& device, const std::string& binary, const std::string& options) {
  cl_int code = CL_SUCCESS, status = CL_SUCCESS;
  size_t bytes = binary.size();
  auto data = reinterpret_cast<const unsigned char*>(binary.data());
  Program program(
      CL().CreateProgramWithBinary(device.context, 1, &device.id, &bytes, &data, &status, &code));
  if (code != CL_SUCCESS || status != CL_SUCCESS) return {};
  return Build(device, program, options) == CL_SUCCESS ? std::move(program) : Program();
}

Program FromSource(const Device& device, const std::string& source, const std::string& options) {
  cl_int code = CL_SUCCESS;
  const char* text = source.c_str();
  const size_t bytes = source.size();
  Program program(CL().CreateProgramWithSource(device.context, 1, &text, &bytes, &code));
  Check(code, "clCreateProgramWithSource");
  code = Build(device, program, options);
  if (code == CL_SUCCESS) return program;
  std::string log = InfoString([&](size_t size, void* to, size_t* returned) {
    return CL().GetProgramBuildInfo(program.get(), device.id, CL_PROGRAM_BUILD_LOG, size, to,
                                    returned);
  });
  if (log.empty()) Fail(code, "clBuildProgram");
  if (log.size() > kMaxLogBytes) log = log.substr(0, kMaxLogBytes) + "...";
  TVM_FFI_THROW(DeviceError) << "expected OpenCL code that " << device.info.name
                             << " can compile, got this log:\n"
                             << log << "\nof this source:\n"
                             << source.substr(0, kMaxLogBytes)
                             << "\n; compile the model for this device";
  TVM_FFI_UNREACHABLE();
}

// "" if the driver gives none. Not for PoCL, which would compile every kernel again for work-groups
// of any size.
std::string BinaryOf(const Program& program) {
  size_t bytes = 0;
  if (CL().GetProgramInfo(program.get(), CL_PROGRAM_BINARY_SIZES, sizeof(bytes), &bytes, nullptr) !=
      CL_SUCCESS) {
    return "";
  }
  std::string binary(bytes, '\0');
  char* data = binary.data();
  cl_int code =
      CL().GetProgramInfo(program.get(), CL_PROGRAM_BINARIES, sizeof(data), &data, nullptr);
  return code == CL_SUCCESS ? binary : "";
}

// Reports long builds to the registered function, else to the terminal if there is one.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}

  void Compiled(size_t done) {
    if (Clock::now() < next_) return;
    next_ = Clock::now() + kInterval;
    if (auto report = ffi::Function::GetGlobal("tvm_stretch.opencl_progress")) {
      (*report)(static_cast<int64_t>(done), static_cast<int64_t>(total_));
    } else if (isatty(STDERR_FILENO) == 1) {
      std::fprintf(stderr, "tvm_stretch: compiled %zu of %zu OpenCL programs\n", done, total_);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kInterval = std::chrono::seconds(1);

  size_t total_;
  Clock::time_point next_ = Clock::now() + kInterval;
};

template <typename T>
T KernelLimit(const Device& device, const Kernel& kernel, cl_uint what) {
  T value{};
  Check(CL().GetKernelWorkGroupInfo(kernel.get(), device.id, what, sizeof(value), &value, nullptr),
        "clGetKernelWorkGroupInfo");
  return value;
}

// The code, if it was made for such a device: a CPU's loops would take a GPU minutes.
const CodeSpec& CodeFor(const Device& device, const ffi::Module& module) {
  const CodeSpec& code = CodeOf(module);
  if (!code.has_bells || device.info.is_cpu()) return code;
  throw ffi::Error(kDeviceError,
                   "expected a CPU's OpenCL device for kernels that were compiled for one, got " +
                       device.info.name + "; compile the network where that device is",
                   "");
}

std::shared_ptr<char> AllocateMemory(const Device& device, size_t bytes) {
  if (device.memory == MemoryKind::kMapped) return DriversMemory::Allocate(device, bytes);
  if (device.memory == MemoryKind::kMirror) return AllocatePinned(device, bytes);
  if (device.memory != MemoryKind::kFine || CL().SVMAlloc == nullptr || bytes == 0) return nullptr;
  const cl_context context = device.context;
  const cl_bitfield flags = CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER;
  auto block = static_cast<char*>(CL().SVMAlloc(context, flags, bytes, kAlignment));
  if (block == nullptr) Fail(CL_MEM_OBJECT_ALLOCATION_FAILURE, "clSVMAlloc");
  std::memset(block, 0, bytes);
  return {block, [context](char* memory) { CL().SVMFree(context, memory); }};
}

}  // namespace

std::vector<Program> BuildPrograms(const Device& device, const std::vector<std::string>& sources,
                                   const std::string& options) {
  const KeepsSignalHandlers handlers;
  const ProgramCache cache;
  const bool is_pocl_cached = KeepsItsPrograms(device.info);
  const bool is_cached = cache.is_on() && !is_pocl_cached;
  if (is_pocl_cached) PreparePoclCache();
  Progress progress(sources.size());
  std::vector<Program> programs;
  for (const std::string& source : sources) {
    const std::string key = is_cached ? CacheKey(device, source, options) : "";
    const std::string binary = is_cached ? cache.Find(key) : "";
    Program program;
    if (!binary.empty()) program = FromBinary(device, binary, options);
    if (!program) {
      program = FromSource(device, source, options);
      if (is_cached) cache.Store(key, BinaryOf(program));
      progress.Compiled(programs.size() + 1);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

Kernel CreateKernel(const Program& program, const std::string& entry) {
  cl_int code = CL_SUCCESS;
  Kernel kernel(CL().CreateKernel(program.get(), entry.c_str(), &code));
  if (code == CL_INVALID_KERNEL_NAME) {
    TVM_FFI_THROW(ValueError) << "expected a kernel '" << entry
                              << "' in the OpenCL code, got none; compile the model again";
  }
  Check(code, "clCreateKernel");
  return kernel;
}

void CheckLaunch(const Device& device, const Kernel& kernel, const LaunchSpec& launch) {
  auto require = [&](bool holds, const char* what, size_t most, size_t got) {
    if (holds) return;
    TVM_FFI_THROW(ValueError) << "expected " << what << " of " << most << " for kernel '"
                              << launch.entry << "' on " << device.info.name << ", got " << got
                              << "; compile the model for this device";
  };
  size_t items = 1;
  for (size_t i = 0; i < 3; ++i) {
    items *= launch.group_size[i];
    size_t most = device.info.max_group_sizes.empty() ? device.info.max_group_size
                                                      : device.info.max_group_sizes[i];
    require(launch.group_size[i] <= most, "at most a work-group", most, launch.group_size[i]);
  }
  // NVIDIA's driver reports 256 for every kernel, even if it was compiled for more.
  using Sizes = std::array<size_t, 3>;
  const auto compiled = KernelLimit<Sizes>(device, kernel, CL_KERNEL_COMPILE_WORK_GROUP_SIZE);
  const bool is_compiled = std::equal(compiled.begin(), compiled.end(), launch.group_size.begin());
  auto most_items = is_compiled ? device.info.max_group_size
                                : KernelLimit<size_t>(device, kernel, CL_KERNEL_WORK_GROUP_SIZE);
  require(items <= most_items, "at most a work-group", most_items, items);
  size_t local = KernelLimit<cl_ulong>(device, kernel, CL_KERNEL_LOCAL_MEM_SIZE);
  for (const ArgSpec& arg : launch.args) {
    if (arg.kind == ArgSpec::Kind::kLocal) local += static_cast<size_t>(arg.value);
  }
  require(local <= device.info.local_bytes, "at most bytes of local memory",
          device.info.local_bytes, local);
  cl_uint args = 0;
  Check(CL().GetKernelInfo(kernel.get(), CL_KERNEL_NUM_ARGS, sizeof(args), &args, nullptr),
        "clGetKernelInfo");
  require(args == launch.args.size(), "the arguments' number", args, launch.args.size());
}

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

SharedBlock OpenCLProgram::AllocateBlock(size_t bytes, bool several) const {
  if (several) return {};  // no other device can use the driver's memory
  const std::shared_ptr<char> block = AllocateMemory(device_, bytes);
  return {block.get(), bytes, -1, block};
}

Cores OpenCLProgram::cores() const { return device_.info.is_cpu() ? DriverCores() : Cores(); }

}  // namespace tvm_stretch::opencl
