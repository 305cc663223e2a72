#include "driver.h"

#include <dlfcn.h>
#include <tvm/ffi/error.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "program_cache.h"

namespace tvm_stretch::opencl {
namespace {

constexpr const char* kCoresVariable = "TVM_STRETCH_OPENCL_CPUS";
constexpr const char* kWorkersVariable = "POCL_MAX_PTHREAD_COUNT";

// Written while the driver is loaded, before any reader.
Cores driver_cores;

struct Kept {
  std::mutex mutex;  // guards the members below
  int open = 0;
  std::array<struct sigaction, NSIG> handlers{};
};

Kept& TheKept() {
  static Kept& kept = *new Kept();
  return kept;
}

using GetPlatforms = cl_int (*)(cl_uint, cl_platform_id*, cl_uint*);
using GetExtensionFunction = void* (*)(const char*);

// Loaders come first, as they know every driver of the machine, then drivers without a loader.
constexpr const char* kLibraries[] = {
    "libOpenCL.so.1",
    "libOpenCL.so",
    "/vendor/lib64/libOpenCL.so",
    "/system/vendor/lib64/libOpenCL.so",
    "/system/lib64/libOpenCL.so",
    "libOpenCL-pixel.so",
    "/vendor/lib64/libOpenCL-pixel.so",
    "/vendor/lib64/egl/libGLES_mali.so",
    "/system/vendor/lib64/egl/libGLES_mali.so",
    "/vendor/lib64/libPVROCL.so",
    "libnvidia-opencl.so.1",
    "libmali.so.1",
    "libpocl.so.2",
};

std::vector<cl_platform_id> ListPlatforms(GetPlatforms get) {
  cl_uint count = 0;
  if (get == nullptr || get(0, nullptr, &count) != CL_SUCCESS || count == 0) return {};
  std::vector<cl_platform_id> platforms(count);
  if (get(count, platforms.data(), nullptr) != CL_SUCCESS) return {};
  return platforms;
}

// Fills the table by function names. Returns the first missing name, or null.
const char* FillByName(void* library, Api* api) {
#define TVM_STRETCH_CL_LOAD(index, name, result, parameters)                     \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, "cl" #name)); \
  if (api->name == nullptr) return "cl" #name;
  TVM_STRETCH_CL_FUNCTIONS(TVM_STRETCH_CL_LOAD)
#undef TVM_STRETCH_CL_LOAD
#define TVM_STRETCH_CL_LOAD(name, result, parameters) \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, "cl" #name));
  TVM_STRETCH_CL_OPTIONAL_FUNCTIONS(TVM_STRETCH_CL_LOAD)
#undef TVM_STRETCH_CL_LOAD
  return nullptr;
}

// Fills the table from the dispatch table that every object of an installable driver begins with.
void FillFromDispatch(cl_platform_id platform, Api* api) {
  void** dispatch = *reinterpret_cast<void***>(platform);
#define TVM_STRETCH_CL_COPY(index, name, result, parameters) \
  api->name = reinterpret_cast<decltype(api->name)>(dispatch[index]);
  TVM_STRETCH_CL_FUNCTIONS(TVM_STRETCH_CL_COPY)
#undef TVM_STRETCH_CL_COPY
}

// Opens one library; returns the reason why it cannot be used, or "".
std::string Open(const char* name, Driver* driver) {
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return dlerror();
  // Google's loader for Pixel phones hides its functions until this call.
  if (auto enable = reinterpret_cast<void (*)()>(dlsym(library, "enableOpenCL"))) enable();
  auto get = reinterpret_cast<GetPlatforms>(dlsym(library, "clGetPlatformIDs"));
  if (get != nullptr) {
    if (const char* missing = FillByName(library, &driver->api)) {
      return std::string(name) + ": no function " + missing;
    }
  } else if (auto find = reinterpret_cast<GetExtensionFunction>(
                 dlsym(library, "clGetExtensionFunctionAddress"))) {
    get = reinterpret_cast<GetPlatforms>(find("clIcdGetPlatformIDsKHR"));
  }
  driver->platforms = ListPlatforms(get);
  if (driver->platforms.empty()) return std::string(name) + ": no platform";
  if (driver->api.GetDeviceIDs == nullptr) {
    FillFromDispatch(driver->platforms[0], &driver->api);
  }
  driver->library = name;
  return "";
}

struct Loaded {
  std::unique_ptr<Driver> driver;
  std::string reason;
};

Loaded Load() {
  // Drivers for the host's CPU start their threads now, on their share of the cores.
  const HostCoresScope cores;
  const KeepsSignalHandlers handlers;
  GuardPoclCache();
  Loaded loaded;
  auto attempt = [&loaded](const char* name) {
    auto driver = std::make_unique<Driver>();
    std::string reason = Open(name, driver.get());
    if (reason.empty()) loaded.driver = std::move(driver);
    // The first reason other than a missing file is the most helpful one.
    if (loaded.reason.empty() || reason.find("No such file") == std::string::npos) {
      loaded.reason = reason;
    }
    return loaded.driver != nullptr;
  };
  if (const char* name = std::getenv("TVM_STRETCH_OPENCL_LIB"); name != nullptr && *name != 0) {
    attempt(name);
    return loaded;
  }
  for (const char* name : kLibraries) {
    if (attempt(name)) break;
  }
  return loaded;
}

const char* AdviceFor(cl_int code) {
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
      return "the device has too little memory: run fewer or smaller networks on it";
    case CL_OUT_OF_RESOURCES:
      return "the device is out of resources or failed: run fewer or smaller networks on it";
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_NV_ILLEGAL_BUFFER_ACCESS:  // NVIDIA's driver then fails all later calls
      return "the device is lost: start the process again, or compile for another processor";
    case CL_INVALID_WORK_GROUP_SIZE:
      return "measure with ts.tune.measure(networks=), which drops such kernels, or compile for "
             "another processor";
    default:
      return "check the driver with clinfo, or compile for another processor";
  }
}

}  // namespace

const Cores& DriverCores() { return driver_cores; }

Cores CoresForDriver(const Cores& allowed) {
  const char* text = std::getenv(kCoresVariable);
  if (text == nullptr || *text == '\0') {
    return {allowed.begin() + static_cast<std::ptrdiff_t>(allowed.size() / 2), allowed.end()};
  }
  Cores cores = Without(allowed, Without(allowed, ParseCores(text, kCoresVariable)));
  if (cores.empty()) {
    TVM_FFI_THROW(ValueError) << "expected cores that this process may use for " << kCoresVariable
                              << ", got '" << text << "'; correct or unset it";
  }
  return cores;
}

HostCoresScope::HostCoresScope() {
  if (std::getenv(kWorkersVariable) != nullptr || std::getenv("POCL_AFFINITY") != nullptr) return;
  Cores cores = CoresForDriver(AllowedCores());
  scope_.emplace(cores);
  if (!scope_->active()) return;
  setenv(kWorkersVariable, std::to_string(cores.size()).c_str(), 1);
  driver_cores = std::move(cores);
}

HostCoresScope::~HostCoresScope() {
  if (scope_ && scope_->active()) unsetenv(kWorkersVariable);
}

KeepsSignalHandlers::KeepsSignalHandlers() {
  Kept& kept = TheKept();
  std::lock_guard<std::mutex> lock(kept.mutex);
  if (kept.open++ > 0) return;
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, nullptr, &kept.handlers[static_cast<size_t>(number)]);
  }
}

KeepsSignalHandlers::~KeepsSignalHandlers() {
  Kept& kept = TheKept();
  std::lock_guard<std::mutex> lock(kept.mutex);
  if (--kept.open > 0) return;
  for (int number = 1; number < NSIG; ++number) {
    const struct sigaction& before = kept.handlers[static_cast<size_t>(number)];
    struct sigaction now{};
    if (sigaction(number, nullptr, &now) != 0) continue;  // reserved by the C library
    if (now.sa_sigaction != before.sa_sigaction) sigaction(number, &before, nullptr);
  }
}

const Driver& TheDriver() {
  // Never destroyed, because threads of the driver may outlive this library's static objects.
  static const Loaded& loaded = *new Loaded(Load());
  if (loaded.driver == nullptr) {
    TVM_FFI_THROW(DeviceError)
        << "expected an OpenCL driver for processor opencl, got none (" << loaded.reason
        << "); install one (Debian's for CPUs: pocl-opencl-icd), or name its library in "
           "TVM_STRETCH_OPENCL_LIB";
  }
  return *loaded.driver;
}

std::string NameOf(cl_int code) {
  static const std::unordered_map<cl_int, const char*> names = {
      {-1, "CL_DEVICE_NOT_FOUND"},
      {-2, "CL_DEVICE_NOT_AVAILABLE"},
      {-3, "CL_COMPILER_NOT_AVAILABLE"},
      {-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
      {-5, "CL_OUT_OF_RESOURCES"},
      {-6, "CL_OUT_OF_HOST_MEMORY"},
      {-11, "CL_BUILD_PROGRAM_FAILURE"},
      {-12, "CL_MAP_FAILURE"},
      {-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
      {-30, "CL_INVALID_VALUE"},
      {-34, "CL_INVALID_CONTEXT"},
      {-36, "CL_INVALID_COMMAND_QUEUE"},
      {-38, "CL_INVALID_MEM_OBJECT"},
      {-42, "CL_INVALID_BINARY"},
      {-43, "CL_INVALID_BUILD_OPTIONS"},
      {-45, "CL_INVALID_PROGRAM_EXECUTABLE"},
      {-46, "CL_INVALID_KERNEL_NAME"},
      {-49, "CL_INVALID_ARG_INDEX"},
      {-50, "CL_INVALID_ARG_VALUE"},
      {-51, "CL_INVALID_ARG_SIZE"},
      {-52, "CL_INVALID_KERNEL_ARGS"},
      {-54, "CL_INVALID_WORK_GROUP_SIZE"},
      {-55, "CL_INVALID_WORK_ITEM_SIZE"},
      {-61, "CL_INVALID_BUFFER_SIZE"},
      {CL_NV_ILLEGAL_BUFFER_ACCESS, "CL_NV_ILLEGAL_BUFFER_ACCESS"},
  };
  auto found = names.find(code);
  return found == names.end() ? "error " + std::to_string(code) : found->second;
}

void Fail(cl_int code, const std::string& what) {
  TVM_FFI_THROW(DeviceError) << "expected success of OpenCL's " << what << ", got " << NameOf(code)
                             << "; " << AdviceFor(code);
  TVM_FFI_UNREACHABLE();
}

}  // namespace tvm_stretch::opencl
