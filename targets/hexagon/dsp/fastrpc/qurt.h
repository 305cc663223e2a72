// QuRT, the operating system of a Hexagon chip, as far as a loaded library sees it: names, values
// and layouts of Qualcomm's published interfaces. The loader of the chip resolves the names.
//
// Firmware differs, so names that some versions lack are weak: their addresses are null there.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define OPTIONAL __attribute__((weak))

enum { kRead = 1, kWrite = 2 };                                // HAP_mmap
enum { kFlush = 0, kInvalidate = 1, kFlushInvalidate = 2 };    // qurt_mem_cache_clean
enum { kDataCache = 1, kVectors128 = 1 };                      // its type; qurt_hvx_lock
enum { kPowerHvx = 2, kPowerClient = 3, kPowerClock = 7 };     // HAP_power_set
enum { kComputeClient = 4, kPerformance = 0x10, kTurbo = 6 };  // values of its requests

// Error codes of FastRPC, as DSPs return them.
enum { kErrorNoMemory = 0x402, kErrorBadParameter = 0x40E, kErrorUnsupported = 0x414 };
#define DSP_ERROR(code) ((int)(0x80000000u | (code)))

// An argument of a call: a buffer, or a handle.
typedef union {
  struct {
    void* data;
    uint32_t bytes;
  } buffer;
  uint64_t handle;
} RemoteArgument;

// Enumerations take as few bytes as their values need in Qualcomm's compilers for the chip.
typedef struct {
  uint32_t type;
  uint32_t padding;
  union {
    uint32_t client;
    uint8_t is_on;  // HVX
    struct {
      uint8_t adjusts;
      uint8_t mode;
      uint8_t sets_latency;
      uint32_t latency_us;
      uint8_t sets_corners;
      uint8_t padding[3];
      uint8_t target, least, most;
      uint32_t reserved[3];
    } clock;
    uint64_t others[12];  // requests that are not used here are longer
  } value;
} PowerRequest;

// How a thread begins; newer versions have more fields, whose defaults are zeros.
typedef struct {
  char name[16];
  uint8_t partition, scheduling;
  uint16_t priority;  // the smaller, the sooner
  uint8_t space, bus_priority;
  uint16_t test;
  uint32_t stack_bytes;
  void* stack;
  uint16_t joinable;
  uint16_t others[15];
} ThreadAttributes;

// What a program asks of the resource manager; the manager's own record is smaller.
typedef struct {
  uint64_t words[32];
} Resources;

void* HAP_mmap(void* address, int bytes, int protection, int flags, int fd, long offset);
int HAP_munmap(void* address, int bytes);
int qurt_mem_cache_clean(uintptr_t address, uint32_t bytes, int operation, int type);
unsigned long long HAP_perf_get_time_us(void);
unsigned long long HAP_perf_get_pcycles(void) OPTIONAL;
int HAP_power_set(void* client, PowerRequest* request) OPTIONAL;
int qurt_hvx_lock(int mode) OPTIONAL;
int qurt_hvx_unlock(void) OPTIONAL;
int qurt_hvx_get_units(void) OPTIONAL;
uint32_t qurt_thread_get_id(void) OPTIONAL;
int qurt_thread_get_priority(uint32_t thread) OPTIONAL;
int qurt_thread_create(uint32_t* thread, ThreadAttributes* attributes, void (*entry)(void*),
                       void* argument) OPTIONAL;
void qurt_thread_exit(int status) OPTIONAL;
int qurt_thread_join(uint32_t thread, int* status) OPTIONAL;
int qurt_futex_wait(void* word, int value) OPTIONAL;
int qurt_futex_wake(void* word, int threads) OPTIONAL;
int compute_resource_attr_init(Resources* wanted) OPTIONAL;
int compute_resource_attr_set_vtcm_param(Resources* wanted, uint32_t bytes,
                                         uint8_t one_page) OPTIONAL;
uint32_t compute_resource_acquire(Resources* wanted, uint32_t wait_us) OPTIONAL;
void* compute_resource_attr_get_vtcm_ptr(Resources* wanted) OPTIONAL;
int compute_resource_release(uint32_t context) OPTIONAL;

// What only one call of this process has between these two: VTCM, and threads beside its own.
// Others compute meanwhile on the heap and alone.
void BeginCall(void);
void EndCall(void);
int IsOwnCall(void);

// Whether this thread computes for the call that has VTCM.
int IsInTeam(void);

// Before the library is unloaded.
void EndThreads(void);
