// Feeds programs from the standard input to dispatch.c, for tests/native/test_dsp_server.py.
//
//   case:   u64 block bytes, u64 weights bytes, u32 region, u32 program bytes, program
//   answer: u32 status and detail of loading, u32 status and detail of the region
//
// Kernel 0 touches the first and the last byte of its tensors, kernel 1 fails. Every memory is as
// long as stated and no byte longer, so that the address sanitizer sees what leaves it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* text);

static volatile char seen;

static int Touch(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)result;
  for (int32_t i = 0; i < num_args; ++i) {
    const DLTensor* tensor = args[i].v_ptr;
    int64_t last = 0;
    int is_empty = 0;
    for (int32_t d = 0; d < tensor->ndim; ++d) is_empty |= tensor->shape[d] == 0;
    if (is_empty) continue;
    for (int32_t d = 0; d < tensor->ndim; ++d) last += (tensor->shape[d] - 1) * tensor->strides[d];
    const int64_t item = (tensor->dtype.bits + 7) / 8 * tensor->dtype.lanes;
    char* data = tensor->data;
    seen = data[0];
    seen = data[(last + 1) * item - 1];
    if (i + 1 == num_args) data[0] = data[(last + 1) * item - 1] = seen;
  }
  return 0;
}

static int Refuse(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  char text[2 * DSP_TEXT_BYTES];  // longer than what is kept
  memset(text, 'x', sizeof(text) - 1);
  text[sizeof(text) - 1] = 0;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
  return -1;
}

const DspCall dsp_kernels[] = {Touch, Refuse};
const uint32_t dsp_num_kernels = 2;

static char* Exactly(uint64_t bytes) { return bytes == 0 ? NULL : calloc(1, bytes); }

int main(void) {
  struct {
    uint64_t block, weights;
    uint32_t region, bytes;
  } head;
  while (fread(&head, sizeof(head), 1, stdin) == 1) {
    char* image = Exactly(head.bytes);
    if (head.bytes != 0 && fread(image, head.bytes, 1, stdin) != 1) return 1;
    const DspMemory memories[] = {{Exactly(head.block), head.block},
                                  {Exactly(head.weights), head.weights}};
    DspProgram* program = NULL;
    DspResult results[2] = {DspLoad(image, head.bytes, memories, &program), {0, 0}};
    if (program) {
      DspSpan* spans = (DspSpan*)(image + sizeof(DspProgramHeader) + DspSpansOffset(program));
      uint64_t packets = 0;
      results[1] = DspInvoke(program, head.region, spans, &packets);
      if (results[1].status == kDspKernelFailed && strlen(DspKernelMessage()) >= DSP_TEXT_BYTES)
        return 2;
    }
    DspUnload(program);
    fwrite(results, sizeof(results), 1, stdout);
    fflush(stdout);
    free(image);
    free(memories[0].data);
    free(memories[1].data);
  }
  return 0;
}
