// What the fake libcdsprpc.so and its DSP share: one call at a time, through a file that both map.
#pragma once

#include <stdint.h>

#include "../../targets/hexagon/dsp/system.h"

#define MOST_ARGUMENTS 8
#define ARENA_BYTES (64u << 20)
#define SPIN_NS 50000
#define MOST_FILES 32768

enum { kLoadLibrary = 1, kInvokeLibrary = 2, kMapped = 3 };

typedef struct {
  uint32_t offset;  // in the arena
  uint32_t bytes;
} Piece;

typedef struct {
  uint32_t number;  // a futex: the CPU writes it last
  uint32_t kind;
  uint32_t scalars;
  uint64_t handle;
  Piece arguments[MOST_ARGUMENTS];
  char pad0[128];
  uint32_t answered;  // a futex: the DSP writes it last
  int32_t result;
  uint64_t opened;          // the handle of an opened library
  uint32_t mapped;          // bytes of the CPU that the DSP has mapped
  uint32_t lent, returned;  // how often VTCM was
  uint32_t written;         // whether kernels wrote to it
  uint32_t threads;         // that live beside the first
  uint32_t most_locks;      // of HVX that threads had at once
  char pad1[128];
  uint32_t cpu_sleeps, dsp_sleeps;
  char pad2[128];
  char path[1024];                    // of a library to load
  uint8_t is_registered[MOST_FILES];  // descriptors that the DSP may map
  // The arena follows.
} Channel;

static inline uint32_t Load(uint32_t* word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

static inline void Publish(uint32_t* word, uint32_t value, uint32_t* sleeps) {
  __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
  if (Load(sleeps)) DspWake(word);
}

// Spins for a while, then sleeps for at most a hundredth of a second; whether the word has changed.
static inline int WaitForChange(uint32_t* word, uint32_t before, uint32_t* sleeps) {
  const uint64_t give_up = DspNow() + SPIN_NS;
  uint32_t rounds = 0;
  while (Load(word) == before) {
    if (++rounds % 16 != 0) continue;
    DspYield();
    if (DspNow() < give_up) continue;
    __atomic_store_n(sleeps, 1, __ATOMIC_SEQ_CST);
    if (Load(word) == before) DspSleep(word, before, 10);
    __atomic_store_n(sleeps, 0, __ATOMIC_SEQ_CST);
    return Load(word) != before;
  }
  return 1;
}
