// What kernels that TVM compiled ask of whoever calls them, and what counts their instructions.
#ifndef TVM_STRETCH_DSP_KERNEL_SUPPORT_H_
#define TVM_STRETCH_DSP_KERNEL_SUPPORT_H_

#include <stdint.h>

// Packets that this processor executed; always 0 where nothing counts them.
uint32_t DspPackets(void);

#endif  // TVM_STRETCH_DSP_KERNEL_SUPPORT_H_
