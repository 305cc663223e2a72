#include "mailbox.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "errors.h"
#include "memory.h"
#include "spin.h"

namespace tvm_stretch::dsp {
namespace {

constexpr std::chrono::milliseconds kPingDeadline{2'000};
constexpr std::chrono::milliseconds kLook{
    10};  // interval at which a sleeping thread checks the DSP

void Futex(uint32_t* word, int operation, uint32_t value, const timespec* timeout) {
  syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

uint32_t Load(uint32_t* word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
void Store(uint32_t* word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }

char* MapShared(const File& file, size_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  if (mapped == MAP_FAILED) RefuseMemory(bytes);
  return static_cast<char*>(mapped);
}

size_t ControlBytes(const Image& image) {
  return DSP_PROGRAM_OFFSET + image.bytes.size() + image.nodes.size() * sizeof(DspSpan);
}

std::vector<std::string> Command(const CodeSpec& code) {
  std::vector<std::string> command = code.emulator;
  if (!code.server.empty()) command.push_back(OwnProgram(code.server));
  for (const char* word : {"/proc/self/fd/3", "4", "5", "6"}) command.emplace_back(word);
  command.push_back(std::to_string(code.spin.count()));
  return command;
}

}  // namespace

SharedBlock FileBlock(size_t bytes) {
  auto file = std::make_shared<File>(MemoryFile("tvm_stretch_dsp_weights", bytes));
  if (bytes == 0) return {nullptr, 0, file->fd(), std::shared_ptr<char>(file, nullptr)};
  char* const data = MapShared(*file, bytes);
  std::shared_ptr<char> owner(data, [file, bytes](char* memory) { munmap(memory, bytes); });
  return {data, bytes, file->fd(), owner};
}

Mailbox::Mailbox(const DspSetup& setup)
    : setup_(setup),
      control_bytes_(ControlBytes(setup.image)),
      control_file_(MemoryFile("tvm_stretch_dsp_control", control_bytes_)),
      program_file_(MemoryFile("tvm_stretch_dsp_program", setup.code.program.size())),
      control_(MapShared(control_file_, control_bytes_)) {
  const std::string& program = setup.code.program;
  const ssize_t written = pwrite(program_file_.fd(), program.data(), program.size(), 0);
  if (written != static_cast<ssize_t>(program.size())) RefuseMemory(program.size());
  std::memcpy(control_ + DSP_PROGRAM_OFFSET, setup.image.bytes.data(), setup.image.bytes.size());
  try {
    process_ = std::make_unique<ServerProcess>(
        Command(setup.code),
        std::vector<int>{program_file_.fd(), control_file_.fd(), setup.block.fd, setup.weights.fd});
  } catch (const ffi::Error& error) {
    munmap(control_, control_bytes_);
    throw DspEnded{error.message()};
  }
}

Mailbox::~Mailbox() {
  process_.reset();  // unfinished work is lost
  munmap(control_, control_bytes_);
}

const DspSpan* Mailbox::spans() const {
  const char* after = control_ + DSP_PROGRAM_OFFSET + setup_.image.bytes.size();
  return reinterpret_cast<const DspSpan*>(after);
}

std::string Mailbox::text() const {
  return std::string(mailbox()->text, strnlen(mailbox()->text, DSP_TEXT_BYTES));
}

void Mailbox::LookAfter() {
  if (process_->HasEnded()) throw DspEnded{setup_.code.noun() + " that " + process_->HowItEnded()};
  if (Clock::now() - last_used_ >= kHeartbeat) Ask(kDspPing, 0, false, kPingDeadline);
}

DspAnswer Mailbox::Ask(DspOperation operation, uint32_t region, bool traced,
                       Clock::duration deadline) {
  DspCommand command{number_ + 1, static_cast<uint32_t>(operation), region, traced ? 1u : 0u, 0};
  command.check = DspCommandCheck(&command);
  DspCommand* const slot = &mailbox()->command;
  slot->operation = command.operation;
  slot->region = command.region;
  slot->traced = command.traced;
  slot->check = command.check;
  number_ = command.number;
  last_used_ = Clock::now();
  Store(&slot->number, number_);
  if (Load(&mailbox()->dsp_sleeps) != 0) Futex(&slot->number, FUTEX_WAKE, 1, nullptr);
  const DspAnswer answer = AwaitAnswer(last_used_ + deadline);
  RefuseDamaged(answer, number_);
  last_used_ = Clock::now();
  return answer;
}

DspAnswer Mailbox::AwaitAnswer(Clock::time_point deadline) {
  uint32_t* const slot = &mailbox()->answer.number;
  const uint32_t before = number_ - 1;
  const auto answered = [&] { return Load(slot) != before; };
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now());
  if (!SpinFor(std::min(setup_.code.spin, left), answered)) SleepUntilAnswered(before, deadline);
  DspAnswer answer;
  std::memcpy(&answer, &mailbox()->answer, sizeof(answer));
  return answer;
}

void Mailbox::SleepUntilAnswered(uint32_t before, Clock::time_point deadline) {
  uint32_t* const slot = &mailbox()->answer.number;
  const timespec look{0, static_cast<long>(std::chrono::nanoseconds(kLook).count())};
  Store(&mailbox()->host_sleeps, 1);
  while (Load(slot) == before) {
    Futex(slot, FUTEX_WAIT, before, &look);
    if (Load(slot) != before) break;
    if (process_->HasEnded()) {
      if (Load(slot) != before) break;  // it answered before it ended
      throw DspEnded{setup_.code.noun() + " that " + process_->HowItEnded()};
    }
    if (setup_.stops) deadline = std::min<Clock::time_point>(deadline, last_used_ + kStopDeadline);
    if (Clock::now() > deadline) throw DspEnded{kNoAnswer};
  }
  Store(&mailbox()->host_sleeps, 0);
}

}  // namespace tvm_stretch::dsp
