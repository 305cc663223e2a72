// QuRT's part of a DSP's program: the clock, cycles, and memory for kernels. team.c has threads.
#include "qurt.h"

#include <stdlib.h>

#include "../system.h"

#define ALIGNMENT 128

uint64_t DspNow(void) { return HAP_perf_get_time_us() * 1000; }

// Each packet takes a cycle or more: what a chip can count is cycles.
uint32_t DspPackets(void) { return &HAP_perf_get_pcycles ? (uint32_t)HAP_perf_get_pcycles() : 0; }

static uint32_t owner;  // the thread of the call that has VTCM and the team

// VTCM is the chip's memory beside the vector units. Memory is taken from its start, which is where
// it begins again when nothing is in use; what does not fit comes from the heap.
#define VTCM_BYTES (256u << 10)  // all that a v66 has

static struct {
  char* data;
  uint32_t context, used, in_use, lock;
} vtcm;
static int kernels_allocate;

void BeginCall(void) {
  uint32_t no_thread = 0;
  Resources wanted;
  if (!&qurt_thread_get_id || !__atomic_compare_exchange_n(&owner, &no_thread, qurt_thread_get_id(),
                                                           0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;
  if (!kernels_allocate || !&compute_resource_acquire) return;
  if (compute_resource_attr_init(&wanted) == 0 &&
      compute_resource_attr_set_vtcm_param(&wanted, VTCM_BYTES, 1) == 0)
    vtcm.context = compute_resource_acquire(&wanted, 0);
  if (vtcm.context) vtcm.data = compute_resource_attr_get_vtcm_ptr(&wanted);
}

int IsOwnCall(void) {
  return &qurt_thread_get_id && __atomic_load_n(&owner, __ATOMIC_RELAXED) == qurt_thread_get_id();
}

void EndCall(void) {
  if (!IsOwnCall()) return;
  if (vtcm.context) compute_resource_release(vtcm.context);
  vtcm.data = NULL;
  vtcm.context = vtcm.used = vtcm.in_use = 0;
  __atomic_store_n(&owner, 0, __ATOMIC_RELEASE);
}

// Takes bytes of VTCM, or returns what was taken; null if too few are left.
static void* Vtcm(uint32_t bytes, void* returned) {
  char* memory = NULL;
  while (__atomic_exchange_n(&vtcm.lock, 1, __ATOMIC_ACQUIRE)) continue;
  if (returned) {
    if (--vtcm.in_use == 0) vtcm.used = 0;
  } else if (bytes <= VTCM_BYTES - vtcm.used) {
    memory = vtcm.data + vtcm.used;
    vtcm.used += bytes, ++vtcm.in_use;  // kernels ask for multiples of the alignment
  }
  __atomic_store_n(&vtcm.lock, 0, __ATOMIC_RELEASE);
  return memory;
}

// The C library of the chip aligns to 8 bytes. The word before the memory is what to free.
void* DspAllocateWorkspace(size_t bytes) {
  kernels_allocate = 1;
  if (bytes > SIZE_MAX - 2 * ALIGNMENT) return NULL;
  void* const near = vtcm.data && IsInTeam() ? Vtcm((uint32_t)bytes, NULL) : NULL;
  if (near) return near;
  char* const whole = malloc(bytes + ALIGNMENT);
  if (!whole) return NULL;
  void** const memory = (void**)(((uintptr_t)whole / ALIGNMENT + 1) * ALIGNMENT);
  memory[-1] = whole;
  return memory;
}

void DspFreeWorkspace(void* memory) {
  if (!memory) return;
  char* const data = vtcm.data;
  if (data && (uintptr_t)memory - (uintptr_t)data < VTCM_BYTES)
    Vtcm(0, memory);
  else
    free(((void**)memory)[-1]);
}
