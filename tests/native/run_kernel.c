/* Runs one kernel that was linked to it: an aarch64 processor without Python.

   standard input: for each tensor the number of axes, code and bits of its type (DLPack's), the
   axes, the elements; the last is written
   standard output: the elements of the last tensor */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

int __tvm_ffi_kernel(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result);

static void* Allocate(int type, int device, uint64_t bytes, int code, int bits) {
  void* memory = NULL;
  (void)type, (void)device, (void)code, (void)bits;
  return posix_memalign(&memory, 64, bytes) ? NULL : memory;
}

static int Release(int type, int device, void* memory) {
  (void)type, (void)device;
  free(memory);
  return 0;
}

/* What TVM's loader would fill in. */
extern void *__TVMBackendAllocWorkspace, *__TVMBackendFreeWorkspace;
#pragma weak __TVMBackendAllocWorkspace
#pragma weak __TVMBackendFreeWorkspace

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; ++i) fputs(parts[i] ? parts[i] : "", stderr);
}

static int64_t Bytes(const DLTensor* tensor) {
  int64_t bytes = tensor->dtype.bits / 8;
  for (int i = 0; i < tensor->ndim; ++i) bytes *= tensor->shape[i];
  return bytes;
}

static int ReadTensor(DLTensor* tensor) {
  int64_t axes, type[2], bytes;
  if (fread(&axes, sizeof axes, 1, stdin) != 1) return 0;
  if (fread(type, sizeof(int64_t), 2, stdin) != 2) exit(2);
  memset(tensor, 0, sizeof *tensor);
  tensor->device.device_type = kDLCPU;
  tensor->ndim = (int32_t)axes;
  tensor->dtype = (DLDataType){(uint8_t)type[0], (uint8_t)type[1], 1};
  tensor->shape = malloc(axes * sizeof(int64_t));
  if (fread(tensor->shape, sizeof(int64_t), axes, stdin) != (size_t)axes) exit(2);
  bytes = Bytes(tensor);
  tensor->data = Allocate(0, 0, bytes, 0, 0);
  if (fread(tensor->data, 1, bytes, stdin) != (size_t)bytes) exit(2);
  return 1;
}

int main(void) {
  DLTensor tensors[8];
  TVMFFIAny args[8], result;
  int32_t count = 0;
  size_t bytes;
  if (&__TVMBackendAllocWorkspace) __TVMBackendAllocWorkspace = (void*)Allocate;
  if (&__TVMBackendFreeWorkspace) __TVMBackendFreeWorkspace = (void*)Release;
  for (; count < 8 && ReadTensor(&tensors[count]); ++count) {
    memset(&args[count], 0, sizeof args[count]);
    args[count].type_index = kTVMFFIDLTensorPtr;
    args[count].v_ptr = &tensors[count];
  }
  if (__tvm_ffi_kernel(NULL, args, count, &result)) return 1;
  bytes = Bytes(&tensors[count - 1]);
  return fwrite(tensors[count - 1].data, 1, bytes, stdout) != bytes;
}
