#include "fastrpc.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "caller.h"
#include "cdsprpc.h"
#include "errors.h"
#include "memory.h"
#include "own_folder.h"
#include "process.h"

namespace tvm_stretch::dsp {
namespace {

constexpr std::chrono::milliseconds kKillDeadline{1'000};  // then a call is left alone

// Values of the library's interface.
constexpr int kSystemHeap = 25;
constexpr uint32_t kCached = 1;
constexpr int kMapDelayed = 3;  // until the DSP asks for it
constexpr int kAlreadyMapped[] = {0x1a, static_cast<int>(0x8000041a)};
constexpr uint32_t kUnsignedProcess = 2, kKillProcess = 6, kCloseSession = 7;
constexpr uint32_t kLatencyControl = 1;

// The process on the DSP, which all transports of this process share. There is no lock, because a
// call that never returns would hold it.
struct Domain {
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> is_lost{false};  // its handles have to be closed before another can begin
};

Domain& TheDomain() {
  static Domain& domain = *new Domain;
  return domain;
}

int ControlDomain(uint32_t request) {
  int32_t domain = Cdsprpc::kDomain;
  return TheCdsprpc().remote_session_control(request, &domain, sizeof(domain));
}

// The DSP asks this process for files, and looks in these folders. Others of this process may have
// set the variables, and default folders have the DSP's own libraries.
void AddToSearchPath(const std::string& folder) {
  static std::once_flag once;
  std::call_once(once, [&folder] {
    for (const char* name : {"DSP_LIBRARY_PATH", "ADSP_LIBRARY_PATH"}) {
      const char* before = std::getenv(name);
      const std::string others =
          before != nullptr ? before : "/vendor/dsp/cdsp;/vendor/dsp;/vendor/lib/rfsa/adsp;/dsp";
      setenv(name, (folder + ";" + others).c_str(), 1);
    }
  });
}

// Writes the library for the DSP, whose name says its content, and returns the name.
std::string WriteLibrary(const std::string& program) {
  const std::string folder = OwnFolder();
  const uint64_t digest = Fingerprint(program.data(), program.size());
  const std::string name = "libtvm_stretch_" + std::to_string(digest) + "_skel.so";
  const std::string path = folder + "/" + name;
  AddToSearchPath(folder);
  if (access(path.c_str(), R_OK) == 0) return name;
  static std::atomic<int> count{0};
  const std::string unfinished = path + "." + std::to_string(count++);
  const File file(open(unfinished.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0755));
  const ssize_t written = write(file.fd(), program.data(), program.size());
  if (written != static_cast<ssize_t>(program.size()) ||
      rename(unfinished.c_str(), path.c_str()) != 0) {
    unlink(unfinished.c_str());
    throw DspEnded{"no room for its library in " + folder + " (" + std::strerror(errno) +
                   "); make room there, or set TMPDIR"};
  }
  return name;
}

// Clocks of CPU and DSP begin at different times: the spans move into the middle of the call.
void MoveSpans(Transport::Clock::time_point begin, std::vector<DspSpan>* spans) {
  const auto nanoseconds = [](Transport::Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  int64_t first = INT64_MAX, last = 0;
  for (const DspSpan& span : *spans) {
    if (span.end == 0) continue;  // of another region
    first = std::min(first, static_cast<int64_t>(span.start));
    last = std::max(last, static_cast<int64_t>(span.end));
  }
  const int64_t middle = (nanoseconds(begin) + nanoseconds(Transport::Clock::now())) / 2;
  const int64_t shift = middle - first / 2 - last / 2;
  for (DspSpan& span : *spans) {
    if (span.end != 0) span.start += shift, span.end += shift;
  }
}

}  // namespace

SharedBlock RpcBlock(size_t bytes) {
  if (bytes == 0) return {};
  const Cdsprpc& library = TheCdsprpc();
  void* const data = library.rpcmem_alloc(kSystemHeap, kCached, static_cast<int>(bytes));
  const int fd = data == nullptr ? -1 : library.rpcmem_to_fd(data);
  if (fd < 0) {
    if (data != nullptr) library.rpcmem_free(data);
    throw ffi::Error(kRunError,
                     "expected " + std::to_string(bytes) +
                         " bytes of memory that CPU and DSP share, got none from rpcmem; run fewer "
                         "or smaller networks on the DSP",
                     "");
  }
  std::memset(data, 0, bytes);
  const auto free = [&library, fd, bytes](char* memory) {
    if (library.fastrpc_munmap != nullptr) {
      library.fastrpc_munmap(Cdsprpc::kDomain, fd, memory, bytes);
    }
    library.rpcmem_free(memory);
  };
  return {static_cast<char*>(data), bytes, fd, {static_cast<char*>(data), free}};
}

// A handle of the DSP, and the buffers of its calls. Methods return the library's codes.
class Connection {
 public:
  explicit Connection(const DspSetup& setup)
      : memories_{setup.block, setup.weights},
        program_(setup.image.bytes),
        spans_(setup.image.nodes.size()),
        library_name_(WriteLibrary(setup.code.program)) {
    program_.resize(program_.size() + spans_.size() * sizeof(DspSpan));
  }

  int Open() {
    if (TheDomain().is_lost.exchange(false)) ControlDomain(kCloseSession);  // may be unknown
    generation_ = TheDomain().generation.load();
    struct {
      int32_t domain = Cdsprpc::kDomain, is_on = 1;
    } allowed;
    if (int code = rpc_.remote_session_control(kUnsignedProcess, &allowed, sizeof(allowed))) {
      return code;
    }
    const std::string name =
        "file:///" + library_name_ + "?tvm_stretch_skel_handle_invoke&_modver=1.0&_dom=cdsp";
    const int code = rpc_.remote_handle64_open(name.c_str(), &handle_);
    is_open_ = code == 0;
    return code;
  }

  int Load() {
    DspShared shared{};
    for (int i = 0; i < kDspSegments; ++i) {
      const SharedBlock& memory = memories_[i];
      shared.fd[i] = memory.fd;
      shared.bytes[i] = static_cast<uint32_t>(memory.bytes);
      if (int code = Register(memory)) return code;
    }
    struct {
      uint32_t is_on = 1, microseconds = 100;
    } latency;
    if (rpc_.remote_handle64_control != nullptr) {  // else calls only take longer
      rpc_.remote_handle64_control(handle_, kLatencyControl, &latency, sizeof(latency));
    }
    RpcArgument arguments[] = {{&shared, sizeof(shared)}, {program_.data(), program_.size()}};
    return rpc_.remote_handle64_invoke(handle_, DspScalars(kDspLoad, 2, 0, 0, 0), arguments);
  }

  int Execute() {
    RpcArgument arguments[] = {{&command, sizeof(command)},
                               {&answer, sizeof(answer)},
                               {text_, sizeof(text_)},
                               {spans_.data(), spans_.size() * sizeof(DspSpan)}};
    if (!command.traced) arguments[3].bytes = 0;
    std::fill(spans_.begin(), spans_.end(), DspSpan{});
    const auto begin = Transport::Clock::now();
    const int code =
        rpc_.remote_handle64_invoke(handle_, DspScalars(kDspExecute, 1, 3, 0, 0), arguments);
    if (command.traced) MoveSpans(begin, &spans_);
    return code;
  }

  int Close() {
    if (!is_open_) return 0;
    is_open_ = false;
    return rpc_.remote_handle64_close(handle_);
  }

  // The process on the DSP has ended: the first to notice has its handles closed.
  void LoseProcess() const {
    uint64_t expected = generation_;
    if (TheDomain().generation.compare_exchange_strong(expected, expected + 1)) {
      TheDomain().is_lost = true;
    }
  }

  const DspSpan* spans() const { return spans_.data(); }
  std::string text() const { return std::string(text_, strnlen(text_, sizeof(text_))); }

  DspCommand command{};
  DspAnswer answer{};
  int result = 0;  // of the last call

 private:
  // Instances share weights, which are registered once. Firmware without the call needs none.
  int Register(const SharedBlock& memory) const {
    if (memory.bytes == 0 || rpc_.fastrpc_mmap == nullptr) return 0;
    const int code =
        rpc_.fastrpc_mmap(Cdsprpc::kDomain, memory.fd, memory.data, 0, memory.bytes, kMapDelayed);
    return code == kAlreadyMapped[0] || code == kAlreadyMapped[1] ? 0 : code;
  }

  const Cdsprpc& rpc_ = TheCdsprpc();
  const SharedBlock memories_[kDspSegments];
  std::string program_;
  std::vector<DspSpan> spans_;
  char text_[DSP_TEXT_BYTES] = {};
  const std::string library_name_;
  uint64_t handle_ = 0;
  std::atomic<uint64_t> generation_{0};  // of the process on the DSP
  bool is_open_ = false;
};

FastRpc::FastRpc(const DspSetup& setup) : setup_(setup) {
  try {
    connection_ = std::make_shared<Connection>(setup);
    caller_ = std::make_unique<Caller>(setup.code.spin);
  } catch (const ffi::Error& error) {
    throw DspEnded{error.message()};
  }
  const auto deadline = std::max<Clock::duration>(kStartDeadline, setup.code.deadline);
  try {
    Call("remote_handle64_open", &Connection::Open, deadline);
    Call("remote_handle64_invoke", &Connection::Load, deadline);
  } catch (const DspEnded&) {
    Close();
    throw;
  }
}

FastRpc::~FastRpc() { Close(); }

void FastRpc::Close() {
  if (!caller_->Await(Clock::now(), setup_.stops, Clock::now())) return;  // it is left alone
  caller_->Begin([connection = connection_] { connection->Close(); });
  caller_->Await(Clock::now() + kStopDeadline, setup_.stops, Clock::now() + kStopDeadline);
}

void FastRpc::Call(const char* name, int (Connection::*call)(), Clock::duration deadline) {
  const auto begin = Clock::now();
  caller_->Begin([connection = connection_, call] { connection->result = (*connection.*call)(); });
  if (!caller_->Await(begin + deadline, setup_.stops, begin + kStopDeadline)) {
    std::thread([] { ControlDomain(kKillProcess); }).detach();  // which makes the call return
    connection_->LoseProcess();
    const auto end = Clock::now() + kKillDeadline;
    caller_->Await(end, setup_.stops, end);
    throw DspEnded{kNoAnswer};
  }
  if (connection_->result == 0) return;
  if (connection_->result == Cdsprpc::kConnectionReset) connection_->LoseProcess();
  throw DspEnded{RpcError(name, connection_->result)};
}

DspAnswer FastRpc::Ask(DspOperation operation, uint32_t region, bool traced,
                       Clock::duration deadline) {
  DspCommand& command = connection_->command;
  command = {++number_, static_cast<uint32_t>(operation), region, traced ? 1u : 0u, 0};
  command.check = DspCommandCheck(&command);
  Call("remote_handle64_invoke", &Connection::Execute, deadline);
  RefuseDamaged(connection_->answer, number_);
  return connection_->answer;
}

const DspSpan* FastRpc::spans() const { return connection_->spans(); }
std::string FastRpc::text() const { return connection_->text(); }

}  // namespace tvm_stretch::dsp
