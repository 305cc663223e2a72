#include "process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <tvm/ffi/error.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.h"
#include "memory.h"

namespace tvm_stretch::dsp {
namespace {

constexpr int kFirstFile = 3;  // after the standard ones
constexpr size_t kLastWords = 800;

int Call(long number, long a, long b, long c) { return static_cast<int>(syscall(number, a, b, c)); }

// Resets signal handlers: none may run in the child, which shares the host's memory until exec.
void ForgetHandlers() {
  struct sigaction action{};
  for (int number = 1; number < NSIG; ++number) {
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};  // SIG_DFL
    sigaction(number, &action, nullptr);
  }
}

// Runs in the child between vfork and exec: only system calls, and only on its own descriptors.
// Returns only on failure.
void Become(char* const* words, int* files, size_t num_files, int errors, pid_t parent) {
  const int above = kFirstFile + static_cast<int>(num_files) + 1;
  errors = fcntl(errors, F_DUPFD, above);
  for (size_t i = 0; i < num_files; ++i) files[i] = fcntl(files[i], F_DUPFD, above);
  const int nothing = open("/dev/null", O_RDWR);
  if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0 || dup2(errors, 2) < 0) return;
  for (size_t i = 0; i < num_files; ++i) {
    if (dup2(files[i], kFirstFile + static_cast<int>(i)) < 0) return;
  }
#ifdef SYS_close_range
  Call(SYS_close_range, above - 1, ~0u, 0);  // old kernels lack it; the descriptors then stay open
#endif
  ForgetHandlers();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  setpgid(0, 0);  // keeps Ctrl-C from the child
  // The kernel kills the child when its parent thread ends, for whatever reason.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) return;
  execvp(words[0], words);
}

}  // namespace

File::~File() {
  if (fd_ >= 0) close(fd_);
}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

File MemoryFile(const char* name, size_t bytes) {
  File file(Call(SYS_memfd_create, reinterpret_cast<long>(name), MFD_CLOEXEC, 0));
  if (file.fd() < 0 || ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0) RefuseMemory(bytes);
  return file;
}

std::string OwnProgram(const std::string& name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&OwnProgram), &info) == 0) return name;
  const std::string library = info.dli_fname;
  const std::string folder = library.substr(0, library.rfind('/') + 1);
  for (const std::string& path :
       {folder + "../bin/" + name, folder + name, folder + "lib" + name + ".so"}) {
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return name;
}

ServerProcess::ServerProcess(const std::vector<std::string>& command, const std::vector<int>& files)
    : errors_(MemoryFile("tvm_stretch_dsp_errors", 0)) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::vector<int> own_files = files;
  const pid_t parent = getpid();
  volatile int error = 0;  // written by the child, which shares this memory until exec
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = vfork();
  if (pid_ == 0) {
    Become(words.data(), own_files.data(), own_files.size(), errors_.fd(), parent);
    error = errno;
    _exit(127);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid_ > 0 && error == 0) {
#ifdef SYS_pidfd_open
    pidfd_ = File(Call(SYS_pidfd_open, pid_, 0, 0));  // has close-on-exec
#endif
    return;
  }
  const std::string reason = std::strerror(pid_ < 0 ? errno : error);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
  throw ffi::Error(kDeviceError,
                   "expected a program that can be started, got '" + command[0] + "' (" + reason +
                       "); install it (qemu-hexagon is in the package qemu-user) or correct PATH",
                   "");
}

ServerProcess::~ServerProcess() { Kill(); }

bool ServerProcess::HasEnded() {
  if (has_ended_) return true;
  const pid_t found = waitpid(pid_, &status_, WNOHANG);
  has_ended_ = found == pid_ || (found < 0 && errno == ECHILD);
  return has_ended_;
}

void ServerProcess::Kill() {
  if (HasEnded()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  has_ended_ = true;
}

std::string ServerProcess::HowItEnded() const {
  std::string how = "ended";
  if (status_ != -1 && WIFSIGNALED(status_)) {
    how = "was killed by signal " + std::to_string(WTERMSIG(status_));
  } else if (status_ != -1 && WIFEXITED(status_)) {
    how = "ended with code " + std::to_string(WEXITSTATUS(status_));
  }
  const std::string words = LastWords();
  return words.empty() ? how : how + ": " + words;
}

std::string ServerProcess::LastWords() const {
  const off_t end = lseek(errors_.fd(), 0, SEEK_END);
  std::string words(kLastWords, '\0');
  const off_t start = end > static_cast<off_t>(kLastWords) ? end - kLastWords : 0;
  const ssize_t got = pread(errors_.fd(), words.data(), kLastWords, start);
  words.resize(got > 0 ? got : 0);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  const size_t line = words.rfind('\n');
  return line == std::string::npos ? words : words.substr(line + 1);
}

}  // namespace tvm_stretch::dsp
