// A DSP as a process of this machine, emulated or not. Commands and answers are in memory that both
// processes map; each side spins for a while, and then sleeps.
#pragma once

#include <memory>
#include <string>

#include "process.h"
#include "transport.h"

namespace tvm_stretch::dsp {

// Memory that processes can map. Throws RunError if memory is missing.
SharedBlock FileBlock(size_t bytes);

class Mailbox final : public Transport {
 public:
  explicit Mailbox(const DspSetup& setup);
  ~Mailbox() final;

  DspAnswer Ask(DspOperation operation, uint32_t region, bool traced,
                Clock::duration deadline) final;
  const DspSpan* spans() const final;
  std::string text() const final;
  void LookAfter() final;
  pid_t pid() const final { return process_->pid(); }
  int pidfd() const final { return process_->pidfd(); }

 private:
  DspAnswer AwaitAnswer(Clock::time_point deadline);
  void SleepUntilAnswered(uint32_t before, Clock::time_point deadline);
  DspMailbox* mailbox() const { return reinterpret_cast<DspMailbox*>(control_); }

  const DspSetup setup_;
  const size_t control_bytes_;
  const File control_file_;
  const File program_file_;
  char* control_ = nullptr;
  std::unique_ptr<ServerProcess> process_;
  uint32_t number_ = 0;  // of the last command
  Clock::time_point last_used_;
};

}  // namespace tvm_stretch::dsp
