// TVM's base class of devices, without TVM's libraries.
//
// We use only its header: a part of its code is in libtvm_runtime, which is not linked so that our
// library loads with tvm-ffi alone. tvm_device_base.cc has our own version of that part, hidden in
// this library. TVM calls only virtual functions.
#ifndef TVM_STRETCH_OPENCL_TVM_DEVICE_BASE_H_
#define TVM_STRETCH_OPENCL_TVM_DEVICE_BASE_H_

#define TVM_RUNTIME_DLL
#define TVM_RUNTIME_DLL_EXPORT
#include <tvm/runtime/device_api.h>

#endif  // TVM_STRETCH_OPENCL_TVM_DEVICE_BASE_H_
