// How urgent this program's work is on a GPU that others use too, such as the one that draws the
// screen. Drivers take it as a hint: Qualcomm's for a context, Khronos's for a queue.
#ifndef TVM_STRETCH_OPENCL_PRIORITY_H_
#define TVM_STRETCH_OPENCL_PRIORITY_H_

#include <vector>

#include "device.h"

namespace tvm_stretch::opencl {

// Properties of a context of the device, with the hint of $TVM_STRETCH_OPENCL_PRIORITY (low,
// medium, high; throws ValueError for other words) if the driver takes one.
std::vector<cl_properties> ContextProperties(const Device& device);

// A queue of the device, with the same hint.
cl_command_queue NewQueue(const Device& device, cl_bitfield properties, cl_int* code);

}  // namespace tvm_stretch::opencl

#endif  // TVM_STRETCH_OPENCL_PRIORITY_H_
