// Linux's part of a DSP's program; qemu-hexagon passes its system calls to the host.
#include <stdlib.h>
#include <time.h>

#include "system.h"

uint64_t DspNow(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void* DspAllocateWorkspace(size_t bytes) {
  void* memory = NULL;  // Android 8, where an engine's server is this, has no aligned_alloc
  return posix_memalign(&memory, 128, bytes) == 0 ? memory : NULL;
}

void DspFreeWorkspace(void* memory) { free(memory); }

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
