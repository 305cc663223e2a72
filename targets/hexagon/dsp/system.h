// What a DSP's program needs of its system: Linux (linux.c), or QuRT on a chip (fastrpc/qurt.c).
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
