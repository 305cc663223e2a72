// Runs regions of a program on mapped memory, independently of how commands arrive.
//
// A program is untrusted data of the host: it is checked and copied before use, so later writes of
// the host have no effect.
#pragma once

#include <tvm/ffi/c_api.h>

#include "protocol.h"
#include "system.h"

typedef int (*DspCall)(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);

// The linked kernels, in the order that the host knows: targets/hexagon/code/dsp_code.py.
extern const DspCall dsp_kernels[];
extern const uint32_t dsp_num_kernels;

typedef struct DspProgram DspProgram;

// The error and its position; see DspStatus.
typedef struct {
  uint32_t status;
  uint32_t detail;
} DspResult;

// Checks the program of at most `bytes` at `header`, and prepares it to run on memories that
// outlive it. `*program` is null on failure.
DspResult DspLoad(const void* header, uint64_t bytes, const DspMemory memories[kDspSegments],
                  DspProgram** program);
void DspUnload(DspProgram* program);

// The offset of the program's spans, in bytes after its header; there is one for each node.
uint64_t DspSpansOffset(const DspProgram* program);
uint64_t DspSpansBytes(const DspProgram* program);

// Runs a region. Writes the spans of its nodes to `spans`, unless it is null. Adds executed packets
// to `*packets`.
DspResult DspInvoke(DspProgram* program, uint32_t region, DspSpan* spans, uint64_t* packets);

// The result of DspLoad, and the places where commands leave what they report.
typedef struct {
  DspProgram* program;  // null if it is not usable
  DspResult loaded;
  DspSpan* spans;  // one for each node of the program
  char* text;      // DSP_TEXT_BYTES: the message of a failed kernel
} DspServer;

// Executes a command of the host. The answer has its check.
DspAnswer DspExecute(const DspServer* server, const DspCommand* command);

// The message of the last failed kernel; at most DSP_TEXT_BYTES with its final zero.
const char* DspKernelMessage(void);
