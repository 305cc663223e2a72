// A DSP as a separate process: commands come through memory that both processes have mapped.
//
//   server CONTROL BLOCK WEIGHTS SPIN_US     the first three are file descriptors
//
// On a phone fastrpc/skeleton.c takes the place of this file. The process ends on command; when its
// parent dies, the kernel kills it (native/process.cc).
#include <string.h>

#include "dispatch.h"

enum { kUsage = 64, kNoFile = 65 };  // exit codes

static int IsNumber(const char* text, uint64_t* number) {
  for (*number = 0; *text >= '0' && *text <= '9'; ++text)
    *number = *number * 10 + (uint64_t)(*text - '0');
  return *text == 0;
}

static int Map(const char* descriptor, int writes, DspMemory* memory) {
  uint64_t fd;
  return IsNumber(descriptor, &fd) && DspMap((int)fd, writes, memory);
}

// Spins for a while, then sleeps.
static uint32_t AwaitCommand(DspMailbox* mailbox, uint32_t seen, uint64_t spin_ns) {
  const uint64_t give_up = DspNow() + spin_ns;
  uint32_t* const number = &mailbox->command.number;
  uint32_t rounds = 0, now;
  while ((now = __atomic_load_n(number, __ATOMIC_ACQUIRE)) == seen) {
    if (++rounds % 16 != 0) continue;
    DspYield();  // the host may spin on the same core
    if (DspNow() < give_up) continue;
    __atomic_store_n(&mailbox->dsp_sleeps, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(number, __ATOMIC_SEQ_CST) == seen) DspSleep(number, seen, 1000);
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
  if (__atomic_load_n(&mailbox->host_sleeps, __ATOMIC_SEQ_CST)) DspWake(&slot->number);
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
  uint64_t spin_us;
  if (!Map(argv[1], 1, &control) || !Map(argv[2], 1, &memories[kDspBlock]) ||
      !Map(argv[3], 0, &memories[kDspWeights]) || !IsNumber(argv[4], &spin_us) ||
      control.bytes < DSP_PROGRAM_OFFSET + sizeof(DspProgramHeader))
    return kNoFile;
  DspMailbox* const mailbox = (DspMailbox*)(void*)control.data;
  DspServer server = {NULL, {kDspOk, 0}, NULL, mailbox->text};
  char* const header = control.data + DSP_PROGRAM_OFFSET;
  server.loaded = DspLoad(header, control.bytes - DSP_PROGRAM_OFFSET, memories, &server.program);
  if (server.loaded.status == kDspOk)
    server.spans =
        (DspSpan*)(void*)(header + sizeof(DspProgramHeader) + DspSpansOffset(server.program));
  Serve(mailbox, &server, spin_us * 1000u);
  DspUnload(server.program);
  return 0;
}
