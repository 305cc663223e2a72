// Serves one client in a separate process, so that crashes and memory use stay there.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "options.h"
#include "wire.h"

namespace tvm_stretch::server {

class Session {
 public:
  // Serves a client after its greeting. The session ends after `seconds`; 0: never. `leave` is
  // called in the session's process, to close descriptors of the server.
  Session(Handle client, double seconds, const Options& options,
          const std::function<void()>& leave);
  // Kills the process, and removes its folder.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Whether it has ended; ends it when its time is up.
  bool IsOver();

  // Cancels the run with this number.
  void CancelRun(int64_t number) const;

 private:
  [[noreturn]] void Serve(const Options& options);
  void SayTimeIsUp();

  Handle client_;
  double seconds_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::string folder_;
  Handle told_, tell_;  // a pipe that sends numbers of runs to cancel to its process
  pid_t process_ = -1;
};

// Loads TVM's runtime and ours; false if that fails, with the reason on standard error.
bool LoadLibraries(const std::vector<std::string>& paths);

}  // namespace tvm_stretch::server
