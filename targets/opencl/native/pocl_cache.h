// PoCL's own cache of compiled programs.
#ifndef TVM_STRETCH_OPENCL_POCL_CACHE_H_
#define TVM_STRETCH_OPENCL_POCL_CACHE_H_

#include "device.h"

namespace tvm_stretch::opencl {

// Whether the driver is PoCL with a working cache, including machine code specialised to work-group
// sizes.
bool KeepsItsPrograms(const DeviceInfo& info);

// Before the driver is loaded: gives PoCL a private folder for this process if others may write to
// its default one, which is in /tmp without HOME. PoCL runs any code that it finds there.
void GuardPoclCache();

// Makes the folder, which may have been removed meanwhile, and removes, once in a process, files
// that a power loss truncated. PoCL compiles missing programs, but trusts all files: a truncated
// one would crash every process, or fail every build.
void PreparePoclCache();

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_POCL_CACHE_H_
