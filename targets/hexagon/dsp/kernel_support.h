// Runtime functions that TVM's compiled kernels call, and the counter of executed packets.
#ifndef TVM_STRETCH_DSP_KERNEL_SUPPORT_H_
#define TVM_STRETCH_DSP_KERNEL_SUPPORT_H_

#include <stdint.h>

// Packets that this processor executed; always 0 on processors that do not count packets.
uint32_t DspPackets(void);

#endif  // TVM_STRETCH_DSP_KERNEL_SUPPORT_H_
