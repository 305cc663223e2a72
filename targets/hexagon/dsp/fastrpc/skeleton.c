// A DSP of a phone: the entry that FastRPC calls when the host opens, calls and closes a handle.
//
//   remote_handle64_open("file:///<library>?tvm_stretch_skel_handle_invoke&_modver=1.0&_dom=cdsp")
//       -> the DSP loads the library, and calls the entry with method 0
//
// protocol.h has the other methods. A handle runs one program on two pieces of the host's memory,
// which stay mapped until it is closed. Each call comes on a thread of the host's thread.
#include <stdlib.h>
#include <string.h>

#include "../dispatch.h"
#include "../system.h"
#include "qurt.h"

typedef struct {
  DspMemory memories[kDspSegments];
  DspServer server;
} Skeleton;

static uint32_t open_handles;

static void Unload(Skeleton* skeleton) {
  if (skeleton->server.program) DspUnload(skeleton->server.program);
  skeleton->server.program = NULL;
  for (int i = 0; i < kDspSegments; ++i) {
    DspMemory* const memory = &skeleton->memories[i];
    if (memory->data) HAP_munmap(memory->data, (int)memory->bytes);
    memory->data = NULL;
    memory->bytes = 0;
  }
}

// The chip runs at full speed while a handle is open. A request that fails costs time, no results.
static void RequestPower(Skeleton* skeleton) {
  if (!&HAP_power_set) return;
  PowerRequest request = {kPowerClient, 0, {kComputeClient}};
  HAP_power_set(skeleton, &request);
  memset(&request, 0, sizeof(request));
  request.type = kPowerClock;
  request.value.clock.mode = kPerformance;
  request.value.clock.sets_latency = request.value.clock.sets_corners = 1;
  request.value.clock.latency_us = 100;
  request.value.clock.target = kTurbo;
  HAP_power_set(skeleton, &request);
  memset(&request, 0, sizeof(request));
  request.type = kPowerHvx;
  request.value.is_on = 1;
  HAP_power_set(skeleton, &request);
}

static int Open(RemoteArgument* arguments) {
  Skeleton* const skeleton = calloc(1, sizeof(Skeleton));
  if (!skeleton) return DSP_ERROR(kErrorNoMemory);
  skeleton->server.loaded.status = kDspBadProgram;
  RequestPower(skeleton);
  __atomic_add_fetch(&open_handles, 1, __ATOMIC_RELAXED);
  arguments[2].handle = (uintptr_t)skeleton;  // the length of the name and the name come first
  return 0;
}

static int Close(Skeleton* skeleton) {
  Unload(skeleton);
  free(skeleton);
  if (__atomic_sub_fetch(&open_handles, 1, __ATOMIC_ACQ_REL) == 0) EndThreads();
  return 0;
}

static int Map(const DspShared* shared, Skeleton* skeleton) {
  for (int i = 0; i < kDspSegments; ++i) {
    if (shared->bytes[i] == 0) continue;
    if (shared->bytes[i] > INT32_MAX) return 0;
    void* const data = HAP_mmap(NULL, (int)shared->bytes[i], kRead | kWrite, 0, shared->fd[i], 0);
    if (data == (void*)-1 || data == NULL) return 0;
    skeleton->memories[i].data = data;
    skeleton->memories[i].bytes = shared->bytes[i];
  }
  return 1;
}

// A program that does not fit is told by the next command, as the host expects it.
static int Load(Skeleton* skeleton, const RemoteArgument* arguments) {
  if (arguments[0].buffer.bytes != sizeof(DspShared)) return DSP_ERROR(kErrorBadParameter);
  Unload(skeleton);
  const DspResult unmapped = {kDspNoMemory, 0};
  skeleton->server.loaded = unmapped;
  if (!Map(arguments[0].buffer.data, skeleton)) return 0;
  skeleton->server.loaded = DspLoad(arguments[1].buffer.data, arguments[1].buffer.bytes,
                                    skeleton->memories, &skeleton->server.program);
  const DspMemory* const weights = &skeleton->memories[kDspWeights];
  if (weights->data)
    qurt_mem_cache_clean((uintptr_t)weights->data, (uint32_t)weights->bytes, kFlushInvalidate,
                         kDataCache);
  return 0;
}

// FastRPC keeps caches of buffers coherent, and knows nothing of memory that stays mapped.
static void CleanBlock(const Skeleton* skeleton, int operation) {
  const DspMemory* const block = &skeleton->memories[kDspBlock];
  if (block->data)
    qurt_mem_cache_clean((uintptr_t)block->data, (uint32_t)block->bytes, operation, kDataCache);
}

static int Execute(Skeleton* skeleton, RemoteArgument* arguments) {
  DspCommand command;
  if (arguments[0].buffer.bytes != sizeof(command) ||
      arguments[1].buffer.bytes != sizeof(DspAnswer) || arguments[2].buffer.bytes != DSP_TEXT_BYTES)
    return DSP_ERROR(kErrorBadParameter);
  memcpy(&command, arguments[0].buffer.data, sizeof(command));
  DspServer server = skeleton->server;
  server.text = arguments[2].buffer.data;
  server.spans = arguments[3].buffer.data;
  if (command.traced && server.program && arguments[3].buffer.bytes < DspSpansBytes(server.program))
    return DSP_ERROR(kErrorBadParameter);
  const int computes = command.operation == kDspInvoke;
  if (computes && &qurt_hvx_lock) qurt_hvx_lock(kVectors128);
  if (computes) BeginCall(), CleanBlock(skeleton, kFlushInvalidate);
  const DspAnswer answer = DspExecute(&server, &command);
  if (computes) CleanBlock(skeleton, kFlush), EndCall();
  if (computes && &qurt_hvx_unlock) qurt_hvx_unlock();
  memcpy(arguments[1].buffer.data, &answer, sizeof(answer));
  return 0;
}

__attribute__((visibility("default"))) int tvm_stretch_skel_handle_invoke(
    uint64_t handle, uint32_t scalars, RemoteArgument* arguments) {
  Skeleton* skeleton = (Skeleton*)(uintptr_t)handle;
  if (scalars == DspScalars(0, 2, 0, 0, 1)) return Open(arguments);
  if (scalars == DspScalars(1, 0, 0, 1, 0)) return Close((Skeleton*)(uintptr_t)arguments[0].handle);
  if (!skeleton) return DSP_ERROR(kErrorBadParameter);
  if (scalars == DspScalars(kDspLoad, 2, 0, 0, 0)) return Load(skeleton, arguments);
  if (scalars == DspScalars(kDspExecute, 1, 3, 0, 0)) return Execute(skeleton, arguments);
  return DSP_ERROR(kErrorUnsupported);
}
