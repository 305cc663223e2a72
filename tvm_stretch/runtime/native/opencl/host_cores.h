// An OpenCL driver for the host's own CPU (PoCL) must not fight the CPU processor for cores.
#ifndef TVM_STRETCH_OPENCL_HOST_CORES_H_
#define TVM_STRETCH_OPENCL_HOST_CORES_H_

#include <sched.h>

#include <vector>

namespace tvm_stretch::opencl {

// The cores that such a driver gets: $TVM_STRETCH_OPENCL_CPUS ("1", "2-3", "0,4-7"), otherwise the
// upper half of `allowed`; all of them where there is only one. Throws ValueError.
std::vector<int> CoresForDriver(const std::vector<int>& allowed);

// While it lives, threads that the driver starts from this thread stay on the driver's cores, and
// PoCL starts one worker per core: threads inherit their creator's affinity. Does nothing where the
// user has taken control with POCL_MAX_PTHREAD_COUNT or POCL_AFFINITY.
class HostCoresScope {
 public:
  HostCoresScope();
  ~HostCoresScope();
  HostCoresScope(const HostCoresScope&) = delete;
  HostCoresScope& operator=(const HostCoresScope&) = delete;

 private:
  bool active_ = false;
  cpu_set_t before_;
};

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_HOST_CORES_H_
