// The part of OpenCL's interface that the runtime uses, and a table of its functions.
//
// Declared here because the library is loaded at run time, so building needs no OpenCL headers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tvm_stretch::opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_platform_id = struct _cl_platform_id*;
using cl_device_id = struct _cl_device_id*;
using cl_context = struct _cl_context*;
using cl_command_queue = struct _cl_command_queue*;
using cl_mem = struct _cl_mem*;
using cl_program = struct _cl_program*;
using cl_kernel = struct _cl_kernel*;
using cl_event = struct _cl_event*;
using cl_properties = intptr_t;
using ContextCallback = void (*)(const char*, const void*, size_t, void*);
using ProgramCallback = void (*)(cl_program, void*);
using EventCallback = void (*)(cl_event, cl_int, void*);

struct cl_image_format {
  cl_uint order;
  cl_uint type;
};

struct cl_image_desc {
  cl_uint type;
  size_t width, height, depth, layers, row_pitch, slice_pitch;
  cl_uint levels, samples;
  cl_mem buffer;
};

constexpr cl_bool kFalse = 0;
constexpr cl_bool kTrue = 1;

constexpr cl_int CL_SUCCESS = 0;
constexpr cl_int CL_DEVICE_NOT_FOUND = -1;
constexpr cl_int CL_DEVICE_NOT_AVAILABLE = -2;
constexpr cl_int CL_MEM_OBJECT_ALLOCATION_FAILURE = -4;
constexpr cl_int CL_OUT_OF_RESOURCES = -5;
constexpr cl_int CL_OUT_OF_HOST_MEMORY = -6;
constexpr cl_int CL_BUILD_PROGRAM_FAILURE = -11;
constexpr cl_int CL_MAP_FAILURE = -12;
constexpr cl_int CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST = -14;
constexpr cl_int CL_INVALID_KERNEL_NAME = -46;
constexpr cl_int CL_INVALID_BUFFER_SIZE = -61;
constexpr cl_int CL_INVALID_WORK_GROUP_SIZE = -54;
constexpr cl_int CL_NV_ILLEGAL_BUFFER_ACCESS = -9999;

constexpr cl_uint CL_PLATFORM_VERSION = 0x0901;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_IMAGE_SUPPORT = 0x1016;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_TYPE = 0x1022;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_AVAILABLE = 0x1027;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DEVICE_VENDOR = 0x102C;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035;
constexpr cl_uint CL_DEVICE_IMAGE_MAX_BUFFER_SIZE = 0x1040;
constexpr cl_uint CL_DEVICE_SVM_CAPABILITIES = 0x1053;

constexpr cl_uint CL_LOCAL = 0x1;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_SYSTEM = 1 << 2;

constexpr cl_properties CL_CONTEXT_PLATFORM = 0x1084;

// cl_khr_priority_hints, of a queue
constexpr cl_ulong CL_QUEUE_PROPERTIES = 0x1093;
constexpr cl_ulong CL_QUEUE_PRIORITY_KHR = 0x1096;
constexpr cl_ulong CL_QUEUE_PRIORITY_HIGH_KHR = 1 << 0;
constexpr cl_ulong CL_QUEUE_PRIORITY_MED_KHR = 1 << 1;
constexpr cl_ulong CL_QUEUE_PRIORITY_LOW_KHR = 1 << 2;

// cl_qcom_priority_hint, of a context
constexpr cl_properties CL_CONTEXT_PRIORITY_HINT_QCOM = 0x40C9;
constexpr cl_properties CL_PRIORITY_HINT_HIGH_QCOM = 0x40CA;
constexpr cl_properties CL_PRIORITY_HINT_NORMAL_QCOM = 0x40CB;
constexpr cl_properties CL_PRIORITY_HINT_LOW_QCOM = 0x40CC;
constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;

constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_READ_ONLY = 1 << 2;
constexpr cl_bitfield CL_MEM_USE_HOST_PTR = 1 << 3;
constexpr cl_bitfield CL_MEM_ALLOC_HOST_PTR = 1 << 4;
constexpr cl_bitfield CL_MEM_COPY_HOST_PTR = 1 << 5;
constexpr cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;

constexpr cl_uint CL_MEM_OBJECT_IMAGE1D_BUFFER = 0x10F6;
constexpr cl_uint CL_RGBA = 0x10B5;
constexpr cl_uint CL_HALF_FLOAT = 0x10DD;
constexpr cl_uint CL_FLOAT = 0x10DE;

constexpr cl_bitfield CL_MAP_READ = 1 << 0;
constexpr cl_bitfield CL_MAP_WRITE = 1 << 1;

constexpr cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_uint CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;
constexpr cl_uint CL_KERNEL_NUM_ARGS = 0x1191;
constexpr cl_uint CL_KERNEL_WORK_GROUP_SIZE = 0x11B0;
constexpr cl_uint CL_KERNEL_COMPILE_WORK_GROUP_SIZE = 0x11B1;
constexpr cl_uint CL_KERNEL_LOCAL_MEM_SIZE = 0x11B2;

constexpr cl_uint CL_EVENT_COMMAND_EXECUTION_STATUS = 0x11D3;
constexpr cl_int CL_COMPLETE = 0x0;
constexpr cl_uint CL_PROFILING_COMMAND_QUEUED = 0x1280;
constexpr cl_uint CL_PROFILING_COMMAND_SUBMIT = 0x1281;
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_uint CL_PROFILING_COMMAND_END = 0x1283;

// F(position in the dispatch table of an installable client driver, name, result, parameters).
// Drivers without a loader export no functions: a pointer to this table stands in their objects.
#define TVM_STRETCH_CL_FUNCTIONS(F)                                                               \
  F(1, GetPlatformInfo, cl_int, (cl_platform_id, cl_uint, size_t, void*, size_t*))                \
  F(2, GetDeviceIDs, cl_int, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))     \
  F(3, GetDeviceInfo, cl_int, (cl_device_id, cl_uint, size_t, void*, size_t*))                    \
  F(4, CreateContext, cl_context,                                                                 \
    (const cl_properties*, cl_uint, const cl_device_id*, ContextCallback, void*, cl_int*))        \
  F(9, CreateCommandQueue, cl_command_queue, (cl_context, cl_device_id, cl_bitfield, cl_int*))    \
  F(11, ReleaseCommandQueue, cl_int, (cl_command_queue))                                          \
  F(14, CreateBuffer, cl_mem, (cl_context, cl_bitfield, size_t, void*, cl_int*))                  \
  F(18, ReleaseMemObject, cl_int, (cl_mem))                                                       \
  F(26, CreateProgramWithSource, cl_program,                                                      \
    (cl_context, cl_uint, const char**, const size_t*, cl_int*))                                  \
  F(27, CreateProgramWithBinary, cl_program,                                                      \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*,     \
     cl_int*))                                                                                    \
  F(29, ReleaseProgram, cl_int, (cl_program))                                                     \
  F(30, BuildProgram, cl_int,                                                                     \
    (cl_program, cl_uint, const cl_device_id*, const char*, ProgramCallback, void*))              \
  F(32, GetProgramInfo, cl_int, (cl_program, cl_uint, size_t, void*, size_t*))                    \
  F(33, GetProgramBuildInfo, cl_int, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*)) \
  F(34, CreateKernel, cl_kernel, (cl_program, const char*, cl_int*))                              \
  F(37, ReleaseKernel, cl_int, (cl_kernel))                                                       \
  F(38, SetKernelArg, cl_int, (cl_kernel, cl_uint, size_t, const void*))                          \
  F(39, GetKernelInfo, cl_int, (cl_kernel, cl_uint, size_t, void*, size_t*))                      \
  F(40, GetKernelWorkGroupInfo, cl_int,                                                           \
    (cl_kernel, cl_device_id, cl_uint, size_t, void*, size_t*))                                   \
  F(41, WaitForEvents, cl_int, (cl_uint, const cl_event*))                                        \
  F(42, GetEventInfo, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))                        \
  F(44, ReleaseEvent, cl_int, (cl_event))                                                         \
  F(45, GetEventProfilingInfo, cl_int, (cl_event, cl_uint, size_t, void*, size_t*))               \
  F(46, Flush, cl_int, (cl_command_queue))                                                        \
  F(47, Finish, cl_int, (cl_command_queue))                                                       \
  F(48, EnqueueReadBuffer, cl_int,                                                                \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*,          \
     cl_event*))                                                                                  \
  F(49, EnqueueWriteBuffer, cl_int,                                                               \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*,    \
     cl_event*))                                                                                  \
  F(50, EnqueueCopyBuffer, cl_int,                                                                \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*,          \
     cl_event*))                                                                                  \
  F(56, EnqueueMapBuffer, void*,                                                                  \
    (cl_command_queue, cl_mem, cl_bool, cl_bitfield, size_t, size_t, cl_uint, const cl_event*,    \
     cl_event*, cl_int*))                                                                         \
  F(58, EnqueueUnmapMemObject, cl_int,                                                            \
    (cl_command_queue, cl_mem, void*, cl_uint, const cl_event*, cl_event*))                       \
  F(59, EnqueueNDRangeKernel, cl_int,                                                             \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint,  \
     const cl_event*, cl_event*))                                                                 \
  F(81, SetEventCallback, cl_int, (cl_event, cl_int, EventCallback, void*))                       \
  F(96, CreateImage, cl_mem,                                                                      \
    (cl_context, cl_bitfield, const cl_image_format*, const cl_image_desc*, void*, cl_int*))      \
  F(105, EnqueueMarkerWithWaitList, cl_int, (cl_command_queue, cl_uint, const cl_event*, cl_event*))

// Functions that older drivers lack; null there, and in drivers without a loader.
#define TVM_STRETCH_CL_OPTIONAL_FUNCTIONS(F)                                      \
  F(CreateCommandQueueWithProperties, cl_command_queue,                           \
    (cl_context, cl_device_id, const cl_ulong*, cl_int*))                         \
  F(CreateBufferWithProperties, cl_mem,                                           \
    (cl_context, const cl_ulong*, cl_bitfield, size_t, void*, cl_int*))           \
  F(GetExtensionFunctionAddressForPlatform, void*, (cl_platform_id, const char*)) \
  F(SVMAlloc, void*, (cl_context, cl_bitfield, size_t, cl_uint))                  \
  F(SVMFree, void, (cl_context, void*))

// `api.Flush(queue)` is clFlush(queue).
struct Api {
#define TVM_STRETCH_CL_MEMBER(index, name, result, parameters) result(*name) parameters = nullptr;
  TVM_STRETCH_CL_FUNCTIONS(TVM_STRETCH_CL_MEMBER)
#undef TVM_STRETCH_CL_MEMBER
#define TVM_STRETCH_CL_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  TVM_STRETCH_CL_OPTIONAL_FUNCTIONS(TVM_STRETCH_CL_MEMBER)
#undef TVM_STRETCH_CL_MEMBER
};

}  // namespace tvm_stretch::opencl
