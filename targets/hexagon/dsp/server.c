// A DSP as a separate process: commands come through memory that both processes have mapped.
//
//   server CONTROL BLOCK WEIGHTS SPIN_US     the first three are file descriptors
//
// On a phone fastrpc/skeleton.c takes the place of this file. The process ends on command; when its
// parent dies, the kernel kills it (native/process.cc).
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "dispatch.h"
#include "system.h"

enum { kUsage = 64, kNoFile = 65, kNoRoom = 66 };  // exit codes

static int Map(const char* descriptor, int protection, DspMemory* memory) {
  char* end = NULL;
  const long fd = strtol(descriptor, &end, 10);
  struct stat status;
  if (*end != 0 || fd < 0 || fstat((int)fd, &status) != 0) return kNoFile;
  memory->bytes = (uint64_t)status.st_size;
  memory->data = NULL;
  if (memory->bytes == 0) return 0;
  if (memory->bytes > SIZE_MAX / 2) return kNoRoom;
  void* data = mmap(NULL, (size_t)memory->bytes, protection, MAP_SHARED, (int)fd, 0);
  if (data == MAP_FAILED) return kNoRoom;
  memory->data = data;
  return 0;
}

static void Futex(uint32_t* word, int operation, uint32_t value, const struct timespec* timeout) {
  syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

// Spins for a while, then sleeps.
static uint32_t AwaitCommand(DspMailbox* mailbox, uint32_t seen, uint64_t spin_ns) {
  const uint64_t give_up = DspNow() + spin_ns;
  uint32_t* const number = &mailbox->command.number;
  const int few_cores = sysconf(_SC_NPROCESSORS_ONLN) < 4;
  uint32_t rounds = 0, now;
  while ((now = __atomic_load_n(number, __ATOMIC_ACQUIRE)) == seen) {
    if (++rounds % 16 != 0) continue;
    if (few_cores) sched_yield();  // the host may spin on the same core
    if (DspNow() < give_up) continue;
    __atomic_store_n(&mailbox->dsp_sleeps, 1, __ATOMIC_SEQ_CST);
    const struct timespec second = {1, 0};
    if (__atomic_load_n(number, __ATOMIC_SEQ_CST) == seen) Futex(number, FUTEX_WAIT, seen, &second);
    __atomic_store_n(&mailbox->dsp_sleeps, 0, __ATOMIC_SEQ_CST);
  }
  return now;
}

static void Answer(DspMailbox* mailbox, const DspAnswer* answer) {
  DspAnswer* const slot = &mailbox->answer;
  slot->status = answer->status;
  slot->detail = answer->detail;
  slot->packets = answer->packets;
  slot->nanoseconds = answer->nanoseconds;
  slot->check = answer->check;
  __atomic_store_n(&slot->number, answer->number, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&mailbox->host_sleeps, __ATOMIC_SEQ_CST))
    Futex(&slot->number, FUTEX_WAKE, 1, NULL);
}

static void Serve(DspMailbox* mailbox, const DspServer* server, uint64_t spin_ns) {
  uint32_t seen = 0;
  while (1) {
    DspCommand command;
    seen = AwaitCommand(mailbox, seen, spin_ns);
    memcpy(&command, &mailbox->command, sizeof(command));
    command.number = seen;
    const DspAnswer answer = DspExecute(server, &command);
    Answer(mailbox, &answer);
    if (command.operation == kDspShutDown && answer.status == kDspOk) return;
  }
}

int main(int argc, char** argv) {
  if (argc != 5) return kUsage;
  DspMemory control, memories[kDspSegments];
  int code = Map(argv[1], PROT_READ | PROT_WRITE, &control);
  if (code == 0) code = Map(argv[2], PROT_READ | PROT_WRITE, &memories[kDspBlock]);
  if (code == 0) code = Map(argv[3], PROT_READ, &memories[kDspWeights]);
  if (code != 0) return code;
  if (control.bytes < DSP_PROGRAM_OFFSET + sizeof(DspProgramHeader)) return kNoFile;
  DspMailbox* const mailbox = (DspMailbox*)(void*)control.data;
  DspServer server = {NULL, {kDspOk, 0}, NULL, mailbox->text};
  char* const header = control.data + DSP_PROGRAM_OFFSET;
  server.loaded = DspLoad(header, control.bytes - DSP_PROGRAM_OFFSET, memories, &server.program);
  if (server.loaded.status == kDspOk)
    server.spans =
        (DspSpan*)(void*)(header + sizeof(DspProgramHeader) + DspSpansOffset(server.program));
  Serve(mailbox, &server, strtoull(argv[4], NULL, 10) * 1000u);
  DspUnload(server.program);
  return 0;
}
