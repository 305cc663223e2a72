// Runtime functions that TVM's compiled kernels call.
#include <string.h>

#include "dispatch.h"
#include "system.h"

static char message[DSP_TEXT_BYTES];

const char* DspKernelMessage(void) { return message; }

static void Append(const char* text) {
  size_t used = strlen(message);
  while (text && *text != 0 && used < sizeof(message) - 1) message[used++] = *text++;
  message[used] = 0;
}

// Kernels call these when they fail; the message is kept for the answer.
void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t num_parts) {
  message[0] = 0;
  Append(kind);
  Append(": ");
  for (int32_t i = 0; i < num_parts; ++i) Append(parts[i]);
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* text) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1);
}

static void* AllocateWorkspace(int device_type, int device_id, uint64_t bytes, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  const uint64_t rounded = (bytes + 127) / 128 * 128;
  if (bytes == 0 || rounded < bytes || rounded > SIZE_MAX) return NULL;
  return DspAllocateWorkspace((size_t)rounded);
}

static int FreeWorkspace(int device_type, int device_id, void* memory) {
  (void)device_type, (void)device_id;
  DspFreeWorkspace(memory);
  return 0;
}

// Objects whose kernels need workspaces have weak slots of these names, which a loader would fill.
void* __TVMBackendAllocWorkspace = (void*)AllocateWorkspace;
void* __TVMBackendFreeWorkspace = (void*)FreeWorkspace;

// What compiler-rt lacks of the functions that kernels call. At 2^23, floats are whole numbers: a
// sum with it rounds as the processor does, to even numbers in ties.
float nearbyintf(float x) {
  const float whole = 0x1p23f, size = __builtin_fabsf(x);
  return size < whole ? __builtin_copysignf(size + whole - whole, x) : x;
}

double nearbyint(double x) {
  const double whole = 0x1p52, size = __builtin_fabs(x);
  return size < whole ? __builtin_copysign(size + whole - whole, x) : x;
}
