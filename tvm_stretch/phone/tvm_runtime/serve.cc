// TVM's side of a session whose socket is ours: `rpc.ServerLoop` and `rpc.ReturnException`.
//
// TVM's own file for them connects and listens, too, and needs headers that its wheel leaves out.
#include <sys/socket.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/rpc/minrpc/rpc_reference.h"
#include "runtime/rpc/rpc_channel.h"
#include "runtime/rpc/rpc_endpoint.h"
#include "support.h"

namespace tvm::runtime {
namespace {

// A call that a signal interrupted is made again.
template <typename Call>
size_t Transferred(const char* what, Call call) {
  ssize_t count;
  do {
    count = call();
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    TVM_FFI_THROW(RuntimeError) << "expected a connected socket to " << what << ", got "
                                << std::strerror(errno) << "; connect again";
  }
  return static_cast<size_t>(count);
}

// The socket stays its caller's.
class Socket : public RPCChannel, public support::Stream {
 public:
  explicit Socket(int socket) : socket_(socket) {}
  size_t Send(const void* data, size_t size) override {
    return Transferred("send", [&] { return send(socket_, data, size, MSG_NOSIGNAL); });
  }
  size_t Recv(void* data, size_t size) override {
    return Transferred("receive", [&] { return recv(socket_, data, size, 0); });
  }

  using Stream::Read;
  using Stream::Write;
  size_t Read(void* data, size_t size) override { return Recv(data, size); }
  size_t Write(const void* data, size_t size) override { return Send(data, size); }
  void MessageStart(uint64_t) {}  // what RPCReference asks of a channel with frames
  void MessageDone() {}

 private:
  const int socket_;
};

void Serve(int64_t socket) {
  auto channel = std::make_unique<Socket>(static_cast<int>(socket));
  RPCEndpoint::Create(std::move(channel), "SockServerLoop", "")->ServerLoop();
}

void ReturnException(int64_t socket, const ffi::String& message) {
  Socket channel(static_cast<int>(socket));
  RPCReference::ReturnException(message.c_str(), &channel);
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::GlobalDef()
      .def("rpc.ServerLoop", Serve)
      .def("rpc.ReturnException", ReturnException);
}

}  // namespace tvm::runtime
