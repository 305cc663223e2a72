// TVM's base class of devices, without TVM's libraries.
//
// Its header is all we may rely on: a part of its code is in libtvm_runtime, which is not linked,
// so that the library loads wherever tvm-ffi is. tvm_device_base.cc holds our own version of that
// part, hidden in this library. TVM only ever calls through the table of virtual functions.
#ifndef TVM_STRETCH_OPENCL_TVM_DEVICE_BASE_H_
#define TVM_STRETCH_OPENCL_TVM_DEVICE_BASE_H_

#define TVM_RUNTIME_DLL
#define TVM_RUNTIME_DLL_EXPORT
#include <tvm/runtime/device_api.h>

#endif  // TVM_STRETCH_OPENCL_TVM_DEVICE_BASE_H_
