// OpenCL's driver, found and loaded at first use: it is not linked, so machines without OpenCL need
// no library.
#pragma once

#include <tvm/ffi/error.h>

#include <optional>
#include <string>
#include <vector>

#include "cl.h"
#include "cores.h"

namespace tvm_stretch::opencl {

// Separates the cores of an OpenCL driver for the host's CPU (PoCL) from those of the CPU
// processor.

// The cores of such a driver: $TVM_STRETCH_OPENCL_CPUS ("1", "2-3", "0,4-7"), otherwise the upper
// half of `allowed`, or its only core. Throws ValueError.
Cores CoresForDriver(const Cores& allowed);

// The cores of such drivers; empty if the user controls them.
const Cores& DriverCores();

// While it lives, threads that the driver starts from this thread stay on the driver's cores, and
// PoCL starts one worker per core: threads inherit their creator's affinity. Does nothing if the
// user sets POCL_MAX_PTHREAD_COUNT or POCL_AFFINITY.
class HostCoresScope {
 public:
  HostCoresScope();
  ~HostCoresScope();

 private:
  std::optional<CoresScope> scope_;
};

// Restores the program's signal handlers, which drivers replace: PoCL's LLVM replaces seventeen of
// them at first use, including Ctrl-C and those of Python's faulthandler.

// A scope around calls in which a driver starts or compiles. When the last open scope of all
// threads ends, handlers are restored to their state at the begin of the first one. (A handler that
// another thread of the program sets meanwhile is lost.)
class KeepsSignalHandlers {
 public:
  KeepsSignalHandlers();
  ~KeepsSignalHandlers();
  KeepsSignalHandlers(const KeepsSignalHandlers&) = delete;
  KeepsSignalHandlers& operator=(const KeepsSignalHandlers&) = delete;
};

namespace ffi = tvm::ffi;

struct Driver {
  Api api;
  std::vector<cl_platform_id> platforms;
  std::string library;
};

// The first of these that can be loaded and has a platform: $TVM_STRETCH_OPENCL_LIB (then no
// other), a loader (libOpenCL.so.1, ...), a vendor's driver without a loader. If there is none,
// this and later calls throw DeviceError.
const Driver& TheDriver();

inline const Api& CL() { return TheDriver().api; }

// "CL_OUT_OF_RESOURCES", or the number.
std::string NameOf(cl_int code);

// Throws DeviceError: "expected success of <what>, got <code>; <what to do>".
[[noreturn]] void Fail(cl_int code, const std::string& what);

inline void Check(cl_int code, const char* what) {
  if (code != CL_SUCCESS) Fail(code, what);
}

// Reads the string of an OpenCL Get...Info function: `get(bytes, pointer, bytes returned)`.
template <typename Get>
std::string InfoString(const Get& get) {
  size_t bytes = 0;
  if (get(0, nullptr, &bytes) != CL_SUCCESS || bytes == 0) return "";
  std::string text(bytes, '\0');
  if (get(bytes, text.data(), nullptr) != CL_SUCCESS) return "";
  while (!text.empty() && (text.back() == '\0' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace tvm_stretch::opencl
