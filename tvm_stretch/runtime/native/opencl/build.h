// From sources to programs of one device.
#ifndef TVM_STRETCH_OPENCL_BUILD_H_
#define TVM_STRETCH_OPENCL_BUILD_H_

#include <string>
#include <vector>

#include "code.h"
#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

// One program per source, in their order; taken from the cache on disk where it has them. Throws
// DeviceError with the compiler's log. Long builds are reported: to the global function
// `tvm_stretch.opencl_progress`(programs done, programs in all) if there is one, else on a
// terminal.
std::vector<Program> BuildPrograms(const Device& device, const std::vector<std::string>& sources,
                                   const std::string& options);

// A new kernel of its own arguments; throws ValueError if the program has no such entry.
Kernel CreateKernel(const Program& program, const std::string& entry);

// Throws ValueError if the device cannot run the launch: too large a work-group, too much local
// memory, other arguments than the kernel has.
void CheckLaunch(const Device& device, const Kernel& kernel, const LaunchSpec& launch);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_BUILD_H_
