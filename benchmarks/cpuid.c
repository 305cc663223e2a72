// What a process is told of its processor: everything but AVX-512 and AMX.
//
//   library of a peer, a copy        this one, preloaded
//     0F FF (was CPUID) --SIGILL-->  CPUID; leaf 7 without what AVX2 machines lack
//
// 0F FF is UD0, an invalid instruction that is as long as CPUID and that no compiler writes. So
// libraries choose as they do on a machine without AVX-512. Whether they all did is seen in the
// registers of samples: `watch_registers`.

#define _GNU_SOURCE  // names of registers
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>

enum { kMasks = 1u << 5, kUpperHalves = 1u << 6, kUpperRegisters = 1u << 7 };

static struct sigaction before;
static volatile long samples, wide_samples;

static void Hide(unsigned leaf, unsigned part, unsigned* eax, unsigned* ebx, unsigned* ecx,
                 unsigned* edx) {
  if (leaf == 7 && part == 0) {
    *eax = 0;  // no further parts: AVX-VNNI, BF16, AVX10 and their like
    *ebx &=
        ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
    *ecx &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
    *edx &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
  } else if (leaf == 7 || (leaf >= 0x1D && leaf <= 0x1E) || leaf == 0x24) {
    *eax = *ebx = *ecx = *edx = 0;
  }
}

static void Answer(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
  const unsigned char* code = (const unsigned char*)registers[REG_RIP];
  if (code[0] != 0x0F || code[1] != 0xFF) {
    sigaction(SIGILL, &before, NULL);  // another fault: it comes again, for whom it was
    return;
  }
  unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
  unsigned eax, ebx, ecx, edx;
  __cpuid_count(leaf, part, eax, ebx, ecx, edx);
  Hide(leaf, part, &eax, &ebx, &ecx, &edx);
  registers[REG_RAX] = eax;
  registers[REG_RBX] = ebx;
  registers[REG_RCX] = ecx;
  registers[REG_RDX] = edx;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void Begin(void) {
  struct sigaction action = {.sa_sigaction = Answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGILL, &action, &before);
}

// The kernel saves a thread's registers below its signal handler, and says which were in use.
static void Look(int number, siginfo_t* info, void* context) {
  (void)number;
  (void)info;
  const char* saved = (const char*)((ucontext_t*)context)->uc_mcontext.fpregs;
  uint32_t magic;
  uint64_t used;
  memcpy(&magic, saved + 464, sizeof magic);
  if (magic != 0x46505853) return;  // nothing but the oldest registers
  memcpy(&used, saved + 512, sizeof used);
  ++samples;
  if (used & (kMasks | kUpperHalves | kUpperRegisters)) ++wide_samples;
}

// Begins to look at the threads that run, every few milliseconds of CPU time.
void watch_registers(void) {
  struct sigaction action = {.sa_sigaction = Look, .sa_flags = SA_SIGINFO | SA_RESTART};
  struct itimerval often = {{0, 1000}, {0, 1000}};
  samples = wide_samples = 0;
  sigaction(SIGPROF, &action, NULL);
  setitimer(ITIMER_PROF, &often, NULL);
}

// Ends it: how many samples there were, and how many found registers of AVX-512 in use.
void registers_seen(long* all, long* wide) {
  struct itimerval never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_PROF, &never, NULL);
  *all = samples;
  *wide = wide_samples;
}
