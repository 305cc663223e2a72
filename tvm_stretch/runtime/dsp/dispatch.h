// Runs regions of a program on memory that was mapped; knows nothing of how commands come.
//
// A program is data of the host: nothing of it is believed before it was checked, and what was
// checked is copied, so that a host that writes over it later changes nothing.
#ifndef TVM_STRETCH_DSP_DISPATCH_H_
#define TVM_STRETCH_DSP_DISPATCH_H_

#include <tvm/ffi/c_api.h>

#include "protocol.h"

typedef int (*DspCall)(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

// The kernels that are linked with this, in the order that the host knows: codegen/dsp_code.py.
extern const DspCall dsp_kernels[];
extern const uint32_t dsp_num_kernels;

typedef struct {
  char* data;
  uint64_t bytes;
} DspMemory;

typedef struct DspProgram DspProgram;

// What went wrong, and where; see DspStatus.
typedef struct {
  uint32_t status;
  uint32_t detail;
} DspResult;

// Checks the program at `header`, of which `bytes` may be read, and makes it ready to run on
// memories that outlive it. `*program` is null unless all went well.
DspResult DspLoad(const void* header, uint64_t bytes, const DspMemory memories[kDspSegments],
                  DspProgram** program);
void DspUnload(DspProgram* program);

// Where the spans of a program begin, in bytes behind its header; its nodes have one each.
uint64_t DspSpansOffset(const DspProgram* program);

// Runs a region. With `spans`, writes those of its nodes. Adds executed packets to `*packets`.
DspResult DspInvoke(DspProgram* program, uint32_t region, DspSpan* spans, uint64_t* packets);

// What the kernel that failed last said; at most DSP_TEXT_BYTES with the zero at the end.
const char* DspKernelMessage(void);

uint64_t DspNow(void);

#endif  // TVM_STRETCH_DSP_DISPATCH_H_
