#include "host_cores.h"

#include <tvm/ffi/error.h>

#include <cstdlib>
#include <string>

namespace tvm_stretch::opencl {
namespace {

constexpr const char* kCoresVariable = "TVM_STRETCH_OPENCL_CPUS";
constexpr const char* kWorkersVariable = "POCL_MAX_PTHREAD_COUNT";

// Written while the driver is loaded, before any reader.
Cores driver_cores;

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

}  // namespace tvm_stretch::opencl
