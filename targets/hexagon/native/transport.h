// The way to one DSP: a process of this machine (mailbox.h), or a phone's chip (fastrpc.h).
//
// A transport starts its DSP when it is made, and ends it when it is destroyed. It knows nothing of
// regions, failures and pauses: session.h restarts a DSP by making another transport.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "code.h"
#include "image.h"
#include "processor.h"
#include "targets/hexagon/dsp/protocol.h"

namespace tvm_stretch::dsp {

// The DSP is of no more use; thrown by transports alone.
struct DspEnded {
  std::string got;  // "a DSP that was killed by signal 9"
};

inline constexpr const char* kNoAnswer = "no answer within the deadline";

// A program with its memory, which outlive their transports.
struct DspSetup {
  const CodeSpec& code;
  const Image& image;
  const SharedBlock& block;
  const SharedBlock& weights;
  const std::atomic<bool>& stops;  // the session is closing: a DSP gets little time to answer
};

class Transport {
 public:
  using Clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;
  static constexpr milliseconds kStartDeadline{20'000};  // an emulator on a busy machine
  static constexpr milliseconds kStopDeadline{200};
  static constexpr milliseconds kHeartbeat{1'000};  // between looks at an idle DSP

  virtual ~Transport() = default;

  // Sends a command and waits for the answer, which is checked. Throws DspEnded.
  virtual DspAnswer Ask(DspOperation operation, uint32_t region, bool traced,
                        Clock::duration deadline) = 0;
  // The last command's spans, one for each node of the program, and the error of its kernel.
  virtual const DspSpan* spans() const = 0;
  virtual std::string text() const = 0;

  // Detects that an idle DSP has ended. Throws DspEnded.
  virtual void LookAfter() {}
  virtual pid_t pid() const { return -1; }
  virtual int pidfd() const { return -1; }  // readable when it has ended; -1: no such file
};

// Memory that processes and DSPs can map, zeroed. Throws RunError if there is none.
SharedBlock AllocateShared(const CodeSpec& code, size_t bytes);

// Throws DspEnded unless this answers the command of this number, undamaged.
void RefuseDamaged(const DspAnswer& answer, uint32_t number);

// Makes a transport of the code's kind. Throws DspEnded.
std::unique_ptr<Transport> StartTransport(const DspSetup& setup);

}  // namespace tvm_stretch::dsp
