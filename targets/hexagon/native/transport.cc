#include "transport.h"

#include "cdsprpc.h"
#include "fastrpc.h"
#include "mailbox.h"

namespace tvm_stretch::dsp {

void RefuseDamaged(const DspAnswer& answer, uint32_t number) {
  if (answer.number == number && answer.check == DspAnswerCheck(&answer) &&
      answer.status <= kDspKernelFailed) {
    return;
  }
  throw DspEnded{"an answer that something wrote over"};
}

SharedBlock AllocateShared(const CodeSpec& code, size_t bytes) {
  // Without the library, sessions report the missing file.
  return code.by_fastrpc && WhyNoCdsprpc().empty() ? RpcBlock(bytes) : FileBlock(bytes);
}

std::unique_ptr<Transport> StartTransport(const DspSetup& setup) {
  if (setup.code.by_fastrpc) return std::make_unique<FastRpc>(setup);
  return std::make_unique<Mailbox>(setup);
}

}  // namespace tvm_stretch::dsp
