// QuRT's part of a DSP's program: the clock, cycles, and memory for kernels.
#include "qurt.h"

#include <stdlib.h>

#include "../system.h"

#define ALIGNMENT 128

uint64_t DspNow(void) { return HAP_perf_get_time_us() * 1000; }

// Each packet takes a cycle or more: what a chip can count is cycles.
uint32_t DspPackets(void) { return &HAP_perf_get_pcycles ? (uint32_t)HAP_perf_get_pcycles() : 0; }

// VTCM is the chip's memory beside the vector units. The call that has it allocates from its start,
// and begins there again when nothing is in use; other threads, and what does not fit, use the
// heap.
#define VTCM_BYTES (256u << 10)  // all that a v66 has

static struct {
  char* data;
  uint32_t thread, context, used, in_use;
} vtcm;
static int kernels_allocate;

void BorrowVtcm(void) {
  uint32_t nobody = 0;
  Resources wanted;
  if (!kernels_allocate || !&compute_resource_acquire || !&qurt_thread_get_id) return;
  if (!__atomic_compare_exchange_n(&vtcm.thread, &nobody, qurt_thread_get_id(), 0, __ATOMIC_ACQUIRE,
                                   __ATOMIC_RELAXED))
    return;
  if (compute_resource_attr_init(&wanted) == 0 &&
      compute_resource_attr_set_vtcm_param(&wanted, VTCM_BYTES, 1) == 0)
    vtcm.context = compute_resource_acquire(&wanted, 0);
  if (vtcm.context) vtcm.data = compute_resource_attr_get_vtcm_ptr(&wanted);
}

static int HasVtcm(void) {
  return &qurt_thread_get_id &&
         __atomic_load_n(&vtcm.thread, __ATOMIC_RELAXED) == qurt_thread_get_id();
}

void ReturnVtcm(void) {
  if (!HasVtcm()) return;
  if (vtcm.context) compute_resource_release(vtcm.context);
  vtcm.data = NULL;
  vtcm.context = vtcm.used = vtcm.in_use = 0;
  __atomic_store_n(&vtcm.thread, 0, __ATOMIC_RELEASE);
}

// The C library of the chip aligns to 8 bytes. The word before the memory is what to free.
void* DspAllocateWorkspace(size_t bytes) {
  kernels_allocate = 1;
  if (HasVtcm() && vtcm.data && bytes <= VTCM_BYTES - vtcm.used) {
    void* const memory = vtcm.data + vtcm.used;
    vtcm.used += bytes, ++vtcm.in_use;  // kernels ask for multiples of the alignment
    return memory;
  }
  if (bytes > SIZE_MAX - 2 * ALIGNMENT) return NULL;
  char* const whole = malloc(bytes + ALIGNMENT);
  if (!whole) return NULL;
  void** const memory = (void**)(((uintptr_t)whole / ALIGNMENT + 1) * ALIGNMENT);
  memory[-1] = whole;
  return memory;
}

void DspFreeWorkspace(void* memory) {
  const uintptr_t offset = (uintptr_t)memory - (uintptr_t)vtcm.data;
  if (!memory) return;
  if (!HasVtcm() || !vtcm.data || offset >= VTCM_BYTES)
    free(((void**)memory)[-1]);
  else if (--vtcm.in_use == 0)
    vtcm.used = 0;
}
