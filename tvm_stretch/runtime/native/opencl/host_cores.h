// An OpenCL driver for the host's own CPU (PoCL) must not fight the CPU processor for cores.
#ifndef TVM_STRETCH_OPENCL_HOST_CORES_H_
#define TVM_STRETCH_OPENCL_HOST_CORES_H_

#include <optional>

#include "../cores.h"

namespace tvm_stretch::opencl {

// The cores that such a driver gets: $TVM_STRETCH_OPENCL_CPUS ("1", "2-3", "0,4-7"), otherwise the
// upper half of `allowed`; all of them where there is only one. Throws ValueError.
Cores CoresForDriver(const Cores& allowed);

// The cores that were given to such drivers; empty if the user has taken control.
const Cores& DriverCores();

// While it lives, threads that the driver starts from this thread stay on the driver's cores, and
// PoCL starts one worker per core: threads inherit their creator's affinity. Does nothing where the
// user has taken control with POCL_MAX_PTHREAD_COUNT or POCL_AFFINITY.
class HostCoresScope {
 public:
  HostCoresScope();
  ~HostCoresScope();

 private:
  std::optional<CoresScope> scope_;
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_HOST_CORES_H_
