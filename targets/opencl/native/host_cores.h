// Separates the cores of an OpenCL driver for the host's CPU (PoCL) from those of the CPU
// processor.
#pragma once

#include <optional>

#include "cores.h"

namespace tvm_stretch::opencl {

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

}  // namespace tvm_stretch::opencl
