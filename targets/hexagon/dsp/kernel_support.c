#include "kernel_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"

static char message[DSP_TEXT_BYTES];

const char* DspKernelMessage(void) { return message; }

static void Append(const char* text) {
  const size_t used = strlen(message);
  if (text) snprintf(message + used, sizeof(message) - used, "%s", text);
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
  return aligned_alloc(128, (size_t)rounded);
}

static int FreeWorkspace(int device_type, int device_id, void* memory) {
  (void)device_type, (void)device_id;
  free(memory);
  return 0;
}

// Objects whose kernels need workspaces have weak slots of these names, which a loader would fill.
void* __TVMBackendAllocWorkspace = (void*)AllocateWorkspace;
void* __TVMBackendFreeWorkspace = (void*)FreeWorkspace;

#if defined(__hexagon__) && defined(DSP_COUNTS_PACKETS)
// Control register c20 of qemu-hexagon, which the real chip does not have. The assembler has no
// name for it: this word is r0 = c20.
uint32_t DspPackets(void) {
  register uint32_t count __asm__("r0");
  __asm__ volatile(".word 0x6a14c000" : "=r"(count)::"memory");
  return count;
}
#else
uint32_t DspPackets(void) { return 0; }
#endif
