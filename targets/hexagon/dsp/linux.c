// Linux's part of a DSP's program with a C library: of an engine's server, and in tests. An
// emulated DSP has emulator/linux.c.
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "system.h"

uint64_t DspNow(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

int DspMap(int fd, int writes, DspMemory* memory) {
  struct stat status;
  if (fstat(fd, &status) != 0 || (uint64_t)status.st_size > SIZE_MAX / 2) return 0;
  const DspMemory mapped = {NULL, (uint64_t)status.st_size};
  *memory = mapped;
  if (mapped.bytes == 0) return 1;
  const int protection = PROT_READ | (writes ? PROT_WRITE : 0);
  memory->data = mmap(NULL, (size_t)mapped.bytes, protection, MAP_SHARED, fd, 0);
  return memory->data != MAP_FAILED;
}

void DspSleep(uint32_t* word, uint32_t value, uint32_t most_ms) {
  const struct timespec most = {most_ms / 1000, most_ms % 1000 * 1000000};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}

void DspWake(uint32_t* word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

void DspYield(void) { sched_yield(); }

void* DspAllocateWorkspace(size_t bytes) {
  void* memory = NULL;  // Android 8, where an engine's server is this, has no aligned_alloc
  return posix_memalign(&memory, 128, bytes) == 0 ? memory : NULL;
}

void DspFreeWorkspace(void* memory) { free(memory); }

uint32_t DspPackets(void) { return 0; }
