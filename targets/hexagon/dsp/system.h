// What a DSP's program needs of its system: of Linux with a C library (linux.c) or in an emulator
// (emulator/linux.c), or of QuRT on a chip (fastrpc/qurt.c).
#pragma once

#include <stddef.h>
#include <stdint.h>

// Nanoseconds of a monotonic clock.
uint64_t DspNow(void);

// Packets that this processor executed; always 0 on processors that do not count packets.
uint32_t DspPackets(void);

// Memory for a running kernel, aligned to 128 bytes; null if there is not enough.
void* DspAllocateWorkspace(size_t bytes);
void DspFreeWorkspace(void* memory);

typedef struct {
  char* data;
  uint64_t bytes;
} DspMemory;

// The rest is for server.c; a chip has fastrpc/skeleton.c.

// Maps a whole file, also an empty one; false if it cannot be mapped.
int DspMap(int fd, int writes, DspMemory* memory);

// Sleeps while `word` has this value, at most so long; another process wakes it.
void DspSleep(uint32_t* word, uint32_t value, uint32_t most_ms);
void DspWake(uint32_t* word);

// Lets another process use this core.
void DspYield(void);
