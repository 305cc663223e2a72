#include "session.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <thread>

namespace tvm_stretch::server {
namespace {

namespace ffi = tvm::ffi;

// Detects after 35 s that a client has vanished, for example with its network, or does not read.
void NoticeItsEnd(int socket) {
  const int yes = 1, idle = 20, every = 5, tries = 3, unheard = 1000 * (idle + every * tries);
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unheard, sizeof(unheard));
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries));
}

std::string NewFolder() {
  const char* place = std::getenv("TMPDIR");
  std::string path = (place != nullptr && *place != 0 ? place : "/tmp");
  path += "/tvm_stretch_rpc.XXXXXX";
  return mkdtemp(path.data()) == nullptr ? "" : path;
}

void Remove(const std::string& path) {
  struct stat about{};
  if (lstat(path.c_str(), &about) != 0) return;
  if (!S_ISDIR(about.st_mode)) {
    unlink(path.c_str());
    return;
  }
  if (DIR* folder = opendir(path.c_str())) {
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") Remove(path + "/" + name);
    }
    closedir(folder);
  }
  rmdir(path.c_str());
}

// The path of a session's file; refuses names that lead out of the folder.
std::string PathIn(const std::string& folder, const ffi::String& name) {
  const std::string text(name);
  if (text.find('/') != std::string::npos || text == "..") {
    TVM_FFI_THROW(ValueError) << "expected a name without folders for a file of the session, got '"
                              << text << "'; give its name only";
  }
  return folder + "/" + text;
}

// While the session's thread runs a network, it does not read from its client.
void CancelWhenTold(int pipe) {
  for (int64_t number = 0; read(pipe, &number, sizeof(number)) == sizeof(number);) {
    const auto cancel = ffi::Function::GetGlobal("tvm_stretch.cancel_run");
    if (cancel) (*cancel)(number);
  }
}

void ProvideFilesIn(const std::string& folder) {
  auto work = [folder](ffi::String name) { return ffi::String(PathIn(folder, name)); };
  auto load = [folder](ffi::String name) {
    // By its name, so that errors come as data from a library with another C++ library inside.
    static const auto open = ffi::Function::GetGlobalRequired("ffi.ModuleLoadFromFile");
    return open(ffi::String(PathIn(folder, name))).cast<ffi::Module>();
  };
  ffi::Function::SetGlobal("tvm.rpc.server.workpath", ffi::Function::FromTyped(work), true);
  ffi::Function::SetGlobal("tvm.rpc.server.load_module", ffi::Function::FromTyped(load), true);
}

}  // namespace

bool LoadLibraries(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      std::fprintf(stderr, "expected a library of this device, got: %s; see --library\n",
                   dlerror());
      return false;
    }
  }
  if (ffi::Function::GetGlobal("rpc.ServerLoop")) return true;
  std::fprintf(stderr, "expected TVM's runtime among the libraries, got others; see --library\n");
  return false;
}

Session::Session(Handle client, double seconds, const Options& options,
                 const std::function<void()>& leave)
    : client_(std::move(client)), seconds_(seconds), folder_(NewFolder()) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {  // writing never blocks
    told_ = Handle(ends[0]);
    tell_ = Handle(ends[1]);
    fcntl(ends[0], F_SETFL, 0);
  }
  if (folder_.empty()) {
    std::fprintf(stderr, "no folder for a session: %s\n", std::strerror(errno));
    return;
  }
  NoticeItsEnd(client_.get());
  process_ = fork();
  if (process_ == 0) {
    leave();
    Serve(options);
  }
  if (process_ > 0) setpgid(process_, process_);
}

// Runs in the session's process.
void Session::Serve(const Options& options) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  signal(SIGXFSZ, SIG_IGN);  // writing beyond the limit fails instead
  signal(SIGCHLD, SIG_DFL);
  const auto most = static_cast<rlim_t>(options.upload_limit);
  const rlimit limit{most, most}, no_core{0, 0};
  setrlimit(RLIMIT_FSIZE, &limit);
  setrlimit(RLIMIT_CORE, &no_core);
  setenv("TVM_STRETCH_STORE", (options.store.empty() ? folder_ : options.store).c_str(), 1);
  setenv("TVM_STRETCH_STORE_BYTES", std::to_string(options.store_limit).c_str(), 1);
  int status = chdir(folder_.c_str());
  const std::string folder = folder_;
  // On another thread, because the executor treats a fork's first thread as the parent's.
  std::thread([&] {
    try {
      ProvideFilesIn(folder);
      std::thread(CancelWhenTold, told_.get()).detach();
      ffi::Function::GetGlobalRequired("rpc.ServerLoop")(static_cast<int64_t>(client_.get()));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "session: %s\n", error.what());
      status = 1;
    }
  }).join();
  _exit(status);
}

bool Session::IsOver() {
  if (process_ <= 0) return true;
  if (waitpid(process_, nullptr, WNOHANG) == process_) {
    kill(-process_, SIGKILL);  // and its children
    process_ = -1;
    return true;
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun_;
  if (seconds_ <= 0 || taken.count() < seconds_) return false;
  SayTimeIsUp();
  return true;
}

void Session::CancelRun(int64_t number) const {
  if (write(tell_.get(), &number, sizeof(number)) != sizeof(number)) std::perror("cancel");
}

// Sends TVM's own message, which its client understands.
void Session::SayTimeIsUp() {
  kill(process_, SIGSTOP);  // so that its own data does not mix with it
  pollfd taker{client_.get(), POLLOUT, 0};
  if (poll(&taker, 1, 0) != 1) return;  // it does not read, and writing would block
  std::ostringstream text;
  text << "RPCSessionTimeoutError: Your " << seconds_
       << "s session has expired, try to increase the \"session_timeout\" value.";
  try {
    ffi::Function::GetGlobalRequired("rpc.ReturnException")(static_cast<int64_t>(client_.get()),
                                                            ffi::String(text.str()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());  // the client has disconnected
  }
}

Session::~Session() {
  if (process_ > 0) {
    kill(-process_, SIGKILL);
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  if (!folder_.empty()) Remove(folder_);
}

}  // namespace tvm_stretch::server
