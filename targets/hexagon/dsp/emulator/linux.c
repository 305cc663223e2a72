// What an emulated DSP's program needs of Linux, as system calls that qemu-hexagon passes to the
// host: ../linux.c and dispatch.c need a C library, which zig would compile for a minute.
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../system.h"

#define ALIGNMENT 128  // of all memory, and the bytes before it, which hold its size

int main(int argc, char** argv);

// A system call; tests/fastrpc/shell.c makes others.
long DspCall(long number, long a, long b, long c, long d, long e) {
  register long r0 __asm__("r0") = a;
  register long r1 __asm__("r1") = b;
  register long r2 __asm__("r2") = c;
  register long r3 __asm__("r3") = d;
  register long r4 __asm__("r4") = e;
  register long r5 __asm__("r5") = 0;
  register long r6 __asm__("r6") = number;
  __asm__ volatile("trap0(#1)"
                   : "+r"(r0)
                   : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6)
                   : "memory");
  return r0;
}

// The stack begins with argc and argv; functions expect it aligned to 8 bytes.
__attribute__((naked, noreturn)) void _start(void) {
  __asm__("r0 = r29; r29 = and(r29, #-16); call tvm_stretch_start");
}

__attribute__((noreturn, used)) void tvm_stretch_start(long* stack) {
  const int code = main((int)stack[0], (char**)(stack + 1));
  while (1) DspCall(SYS_exit_group, code, 0, 0, 0, 0);
}

static char* Mapped(size_t bytes, int protection, int flags, int fd) {
  const long memory = DspCall(SYS_mmap, 0, (long)bytes, protection, flags, fd);
  return (unsigned long)memory > -4096ul ? NULL : (char*)memory;  // else an error
}

int DspMap(int fd, int writes, DspMemory* memory) {
  int64_t end = 0;  // lseek's result has 64 bits
  if (DspCall(SYS__llseek, fd, 0, 0, (long)&end, SEEK_END) < 0 || end > INT32_MAX) return 0;
  memory->data = Mapped((size_t)end, PROT_READ | (writes ? PROT_WRITE : 0), MAP_SHARED, fd);
  memory->bytes = (uint64_t)end;
  return memory->data || end == 0;
}

void DspSleep(uint32_t* word, uint32_t value, uint32_t most_ms) {
  const long most[2] = {(long)(most_ms / 1000), (long)(most_ms % 1000 * 1000000)};
  DspCall(SYS_futex, (long)word, FUTEX_WAIT, (long)value, (long)most, 0);
}

void DspWake(uint32_t* word) { DspCall(SYS_futex, (long)word, FUTEX_WAKE, 1, 0, 0); }

void DspYield(void) { DspCall(SYS_sched_yield, 0, 0, 0, 0, 0); }

uint64_t DspNow(void) {
  int64_t time[2];  // seconds and nanoseconds
  DspCall(SYS_clock_gettime64, CLOCK_MONOTONIC, (long)time, 0, 0, 0);
  return (uint64_t)time[0] * 1000000000u + (uint64_t)time[1];
}

// Pages of its own: a program allocates its tables once, and kernels rarely a workspace.
void* DspAllocateWorkspace(size_t bytes) {
  if (bytes > INT32_MAX) return NULL;
  const size_t whole = bytes + ALIGNMENT;
  char* const memory = Mapped(whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (!memory) return NULL;
  *(size_t*)(void*)memory = whole;
  return memory + ALIGNMENT;
}

void DspFreeWorkspace(void* memory) {
  if (!memory) return;
  char* const whole = (char*)memory - ALIGNMENT;
  DspCall(SYS_munmap, (long)whole, *(long*)(void*)whole, 0, 0, 0);
}

void* calloc(size_t count, size_t bytes) {
  return bytes != 0 && count > SIZE_MAX / bytes ? NULL : DspAllocateWorkspace(count * bytes);
}

void free(void* memory) { DspFreeWorkspace(memory); }

// Control register c20 of qemu-hexagon, which the real chip does not have. The assembler has no
// name for it: this word is r0 = c20.
uint32_t DspPackets(void) {
  register uint32_t count __asm__("r0");
  __asm__ volatile(".word 0x6a14c000" : "=r"(count)::"memory");
  return count;
}
