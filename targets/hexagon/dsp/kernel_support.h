// Runtime functions that TVM's compiled kernels call, and the counter of executed packets.
#pragma once

#include <stdint.h>

// Packets that this processor executed; always 0 on processors that do not count packets.
uint32_t DspPackets(void);
