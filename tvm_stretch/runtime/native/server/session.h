// One client at work, in a process of its own: what it crashes or fills is its own.
#ifndef TVM_STRETCH_SERVER_SESSION_H_
#define TVM_STRETCH_SERVER_SESSION_H_

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "options.h"
#include "wire.h"

namespace tvm_stretch::server {

class Session {
 public:
  // Begins to serve a client that was greeted. `seconds`: after which it is ended; 0 never. `leave`
  // is called in its own process, which is to close what is not its business.
  Session(Handle client, double seconds, const Options& options,
          const std::function<void()>& leave);
  // Ends its process, and removes its folder.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Whether it is over by now; ends it when its time is up.
  bool IsOver();

  // Asks the run that its client calls by this number to stop.
  void CancelRun(int64_t number) const;

 private:
  [[noreturn]] void Serve(const Options& options);
  void SayTimeIsUp();

  Handle client_;
  double seconds_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::string folder_;
  Handle told_, tell_;  // a pipe, through which its process hears which run is to stop
  pid_t process_ = -1;
};

// Loads TVM's runtime and ours; false, and why on standard error, if they cannot be.
bool LoadLibraries(const std::vector<std::string>& paths);

}  // namespace tvm_stretch::server

#endif  // TVM_STRETCH_SERVER_SESSION_H_
