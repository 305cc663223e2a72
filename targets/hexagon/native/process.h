// The process that runs a DSP's program, emulated or not.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tvm_stretch::dsp {

// A file descriptor that is closed when this ends.
class File {
 public:
  explicit File(int fd = -1) : fd_(fd) {}
  ~File();
  File(File&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  File& operator=(File&& other) noexcept;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// A file in memory; throws RunError if memory is missing.
File MemoryFile(const char* name, size_t bytes);

// The path of a program that is installed beside this library: in ../bin, or in the same folder,
// where apps of phones keep programs as lib<name>.so. Else its bare name.
std::string OwnProgram(const std::string& name);

// A process that ends with the thread that started it, however the thread ends.
class ServerProcess {
 public:
  // Runs a command with `files` open as descriptors 3, 4, ... Throws DeviceError.
  ServerProcess(const std::vector<std::string>& command, const std::vector<int>& files);
  ~ServerProcess();  // kills it if it runs, and waits for its end
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.fd(); }  // readable when it has ended; -1 on old kernels
  bool HasEnded();
  void Kill();
  std::string HowItEnded() const;  // "was killed by signal 9", "ended with code 3: <last words>"

 private:
  std::string LastWords() const;

  File errors_;  // its standard error
  pid_t pid_ = -1;
  File pidfd_;
  bool has_ended_ = false;
  int status_ = -1;
};

}  // namespace tvm_stretch::dsp
