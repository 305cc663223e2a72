// OpenCL's driver, found and loaded at first use: it is not linked, so machines without OpenCL need
// no library.
#ifndef TVM_STRETCH_OPENCL_DRIVER_H_
#define TVM_STRETCH_OPENCL_DRIVER_H_

#include <tvm/ffi/error.h>

#include <string>
#include <vector>

#include "cl.h"

namespace tvm_stretch::opencl {

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

#endif  // TVM_STRETCH_OPENCL_DRIVER_H_
