// Builds sources to programs of one device.
#ifndef TVM_STRETCH_OPENCL_BUILD_H_
#define TVM_STRETCH_OPENCL_BUILD_H_

#include <string>
#include <vector>

#include "code.h"
#include "device.h"
#include "handle.h"

namespace tvm_stretch::opencl {

// One program per source, in order, from the cache on disk if it has them. Throws DeviceError with
// the compiler's log. The progress of long builds goes to the global function
// `tvm_stretch.opencl_progress`(programs done, programs in all) if there is one, else to a
// terminal.
std::vector<Program> BuildPrograms(const Device& device, const std::vector<std::string>& sources,
                                   const std::string& options);

// A new kernel with separate arguments; throws ValueError if the program has no such entry.
Kernel CreateKernel(const Program& program, const std::string& entry);

// Throws ValueError if the device cannot run the launch: the work-group or local memory is too
// large, or the arguments do not match the kernel.
void CheckLaunch(const Device& device, const Kernel& kernel, const LaunchSpec& launch);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_BUILD_H_
