// An OpenCL driver that refuses or forgets convolutions: the real one, but for some work-groups.
//
//   REFUSED_ITEMS=64     launches of such groups fail with CL_INVALID_WORK_GROUP_SIZE
//   FORGOTTEN_ITEMS=32   they succeed and compute nothing
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t (*Enqueue)(void*, void*, uint32_t, const size_t*, const size_t*, const size_t*,
                           uint32_t, void* const*, void**);
typedef int32_t (*KernelInfo)(void*, uint32_t, size_t, void*, size_t*);
typedef int32_t (*Marker)(void*, uint32_t, void* const*, void**);

static size_t Items(const char* name) {
  const char* text = getenv(name);
  return text == NULL ? 0 : strtoul(text, NULL, 10);
}

static int IsConvolution(void* kernel) {
  char name[256] = "";
  KernelInfo ask = (KernelInfo)dlsym(RTLD_NEXT, "clGetKernelInfo");
  ask(kernel, 0x1190, sizeof(name), name, NULL);  // CL_KERNEL_FUNCTION_NAME
  return strncmp(name, "conv2d", 6) == 0;
}

int32_t clEnqueueNDRangeKernel(void* queue, void* kernel, uint32_t axes, const size_t* first,
                               const size_t* all, const size_t* group, uint32_t count,
                               void* const* events, void** event) {
  size_t items = 1;
  for (uint32_t i = 0; i < axes && group != NULL; ++i) items *= group[i];
  if (items == Items("REFUSED_ITEMS") && IsConvolution(kernel)) return -54;
  if (items == Items("FORGOTTEN_ITEMS") && IsConvolution(kernel)) {
    Marker mark = (Marker)dlsym(RTLD_NEXT, "clEnqueueMarkerWithWaitList");
    return mark(queue, count, events, event);
  }
  Enqueue next = (Enqueue)dlsym(RTLD_NEXT, "clEnqueueNDRangeKernel");
  return next(queue, kernel, axes, first, all, group, count, events, event);
}
