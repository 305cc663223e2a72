#include "build.h"

#include <tvm/ffi/function.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "pocl_cache.h"
#include "program_cache.h"
#include "signal_handlers.h"

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
  const std::string quiet = options + " -w";
  return CL().BuildProgram(program.get(), 1, &device.id, quiet.c_str(), nullptr, nullptr);
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

}  // namespace tvm_stretch::opencl
