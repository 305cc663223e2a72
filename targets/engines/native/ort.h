// The part of ONNX Runtime's C interface that an engine needs, declared here so that nothing has to
// be installed to build it.
//
// ONNX Runtime hands out one table of functions. A function keeps its position in the table in all
// later versions, so a position and a signature are enough to call it. tests/device/test_engine.py
// and test_npu.py call all of them in the installed library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tvm_stretch::engine {

struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtValue;
struct OrtMemoryInfo;
struct OrtAllocator;
struct OrtEpDevice;
struct OrtHardwareDevice;
struct OrtKeyValuePairs;

// The first version whose providers are libraries of their own: 1.22.
inline constexpr uint32_t kOrtApiVersion = 22;
inline constexpr int kOrtLogFatal = 4;
inline constexpr int kOrtDeviceAllocator = 0;
inline constexpr int kOrtMemTypeDefault = 0;

// Position, result, name, parameters.
#define TVM_STRETCH_ORT_FUNCTIONS(X)                                                             \
  X(2, const char*, GetErrorMessage, (const OrtStatus*))                                         \
  X(3, OrtStatus*, CreateEnv, (int, const char*, OrtEnv**))                                      \
  X(8, OrtStatus*, CreateSessionFromArray,                                                       \
    (const OrtEnv*, const void*, size_t, const OrtSessionOptions*, OrtSession**))                \
  X(9, OrtStatus*, Run,                                                                          \
    (OrtSession*, const OrtRunOptions*, const char* const*, const OrtValue* const*, size_t,      \
     const char* const*, size_t, OrtValue**))                                                    \
  X(10, OrtStatus*, CreateSessionOptions, (OrtSessionOptions**))                                 \
  X(24, OrtStatus*, SetIntraOpNumThreads, (OrtSessionOptions*, int))                             \
  X(48, OrtStatus*, CreateTensorAsOrtValue,                                                      \
    (OrtAllocator*, const int64_t*, size_t, int, OrtValue**))                                    \
  X(49, OrtStatus*, CreateTensorWithDataAsOrtValue,                                              \
    (const OrtMemoryInfo*, void*, size_t, const int64_t*, size_t, int, OrtValue**))              \
  X(51, OrtStatus*, GetTensorMutableData, (OrtValue*, void**))                                   \
  X(68, OrtStatus*, CreateMemoryInfo, (const char*, int, int, int, OrtMemoryInfo**))             \
  X(69, OrtStatus*, CreateCpuMemoryInfo, (int, int, OrtMemoryInfo**))                            \
  X(93, void, ReleaseStatus, (OrtStatus*))                                                       \
  X(94, void, ReleaseMemoryInfo, (OrtMemoryInfo*))                                               \
  X(95, void, ReleaseSession, (OrtSession*))                                                     \
  X(96, void, ReleaseValue, (OrtValue*))                                                         \
  X(100, void, ReleaseSessionOptions, (OrtSessionOptions*))                                      \
  X(130, OrtStatus*, AddSessionConfigEntry, (OrtSessionOptions*, const char*, const char*))      \
  X(131, OrtStatus*, CreateAllocator, (const OrtSession*, const OrtMemoryInfo*, OrtAllocator**)) \
  X(297, const char*, GetKeyValue, (const OrtKeyValuePairs*, const char*))                       \
  X(301, OrtStatus*, RegisterExecutionProviderLibrary, (OrtEnv*, const char*, const char*))      \
  X(303, OrtStatus*, GetEpDevices, (const OrtEnv*, const OrtEpDevice* const**, size_t*))         \
  X(304, OrtStatus*, SessionOptionsAppendExecutionProvider_V2,                                   \
    (OrtSessionOptions*, OrtEnv*, const OrtEpDevice* const*, size_t, const char* const*,         \
     const char* const*, size_t))                                                                \
  X(307, int, HardwareDevice_Type, (const OrtHardwareDevice*))                                   \
  X(312, const char*, EpDevice_EpName, (const OrtEpDevice*))                                     \
  X(314, const OrtKeyValuePairs*, EpDevice_EpMetadata, (const OrtEpDevice*))                     \
  X(316, const OrtHardwareDevice*, EpDevice_Device, (const OrtEpDevice*))

struct Api {
#define TVM_STRETCH_ORT_MEMBER(position, result, name, parameters) result(*name) parameters;
  TVM_STRETCH_ORT_FUNCTIONS(TVM_STRETCH_ORT_MEMBER)
#undef TVM_STRETCH_ORT_MEMBER
};

struct OrtApiBase {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

}  // namespace tvm_stretch::engine
