// What PoCL keeps of the programs that it compiled, in a folder of its own.
#ifndef TVM_STRETCH_OPENCL_POCL_CACHE_H_
#define TVM_STRETCH_OPENCL_POCL_CACHE_H_

#include "device.h"

namespace tvm_stretch::opencl {

// Whether the driver is PoCL and finds again what it compiled, down to the machine code for the
// work-groups that a run had.
bool KeepsItsPrograms(const DeviceInfo& info);

// Before the driver is loaded: gives PoCL a folder for this process alone where others may write to
// the one it would use, which is in /tmp without HOME. PoCL runs whatever lies there.
void GuardPoclCache();

// Makes the folder, which somebody may have removed meanwhile, and removes, once in a process,
// files that a loss of power cut short. PoCL compiles what is missing, but believes whatever it
// finds: that ends the process, or fails the build, again and again.
void PreparePoclCache();

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_POCL_CACHE_H_
