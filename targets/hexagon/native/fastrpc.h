// The DSP of a phone, called by FastRPC: each command is a call that returns with the answer.
//
//   open the library of the DSP's side (dsp/fastrpc/skeleton.c) -> share the memory, send the
//   program
//   -> a call for each command -> close
//
// All handles of a process belong to one process on the DSP, which may end at any time: then each
// call returns an error, and a new transport starts another process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport.h"

namespace tvm_stretch::dsp {

// Memory of the driver, which CPU and DSP map. Throws RunError if there is none.
SharedBlock RpcBlock(size_t bytes);

class Connection;
class Caller;

class FastRpc final : public Transport {
 public:
  explicit FastRpc(const DspSetup& setup);
  ~FastRpc() final;

  DspAnswer Ask(DspOperation operation, uint32_t region, bool traced,
                Clock::duration deadline) final;
  const DspSpan* spans() const final;
  std::string text() const final;

 private:
  void Close();
  void Call(const char* name, int (Connection::*call)(), Clock::duration deadline);

  const DspSetup setup_;
  std::shared_ptr<Connection> connection_;  // a call that does not return keeps it
  std::unique_ptr<Caller> caller_;
  uint32_t number_ = 0;  // of the last command
};

}  // namespace tvm_stretch::dsp
