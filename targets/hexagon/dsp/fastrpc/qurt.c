// QuRT's part of a DSP's program: the clock, cycles, and memory for kernels.
#include "qurt.h"

#include <stdlib.h>

#include "../system.h"

#define ALIGNMENT 128

uint64_t DspNow(void) { return HAP_perf_get_time_us() * 1000; }

// Each packet takes a cycle or more: what a chip can count is cycles.
uint32_t DspPackets(void) { return &HAP_perf_get_pcycles ? (uint32_t)HAP_perf_get_pcycles() : 0; }

// The C library of the chip aligns to 8 bytes. The word before the memory is what to free.
void* DspAllocateWorkspace(size_t bytes) {
  if (bytes > SIZE_MAX - 2 * ALIGNMENT) return NULL;
  char* const whole = malloc(bytes + ALIGNMENT);
  if (!whole) return NULL;
  void** const memory = (void**)(((uintptr_t)whole / ALIGNMENT + 1) * ALIGNMENT);
  memory[-1] = whole;
  return memory;
}

void DspFreeWorkspace(void* memory) {
  if (memory) free(((void**)memory)[-1]);
}
