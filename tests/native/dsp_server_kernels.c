// Kernels of a DSP's program that runs on this machine, for test_dsp.cc.
#include <stdlib.h>
#include <unistd.h>

#include "dispatch.h"

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* text);

static float* Floats(const TVMFFIAny* arg) { return ((const DLTensor*)arg->v_ptr)->data; }

static int Add(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)num_args, (void)result;
  for (int i = 0; i < 16; ++i) Floats(&args[2])[i] = Floats(&args[0])[i] + Floats(&args[1])[i];
  return 0;
}

static int Refuse(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", "refused");
  return -1;
}

static int Exit(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  _exit(3);
}

static int Hang(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  (void)self, (void)args, (void)num_args, (void)result;
  while (1) pause();
}

const DspCall dsp_kernels[] = {Add, Refuse, Exit, Hang};
const uint32_t dsp_num_kernels = 4;
