// Calls that come from Python, which ends while threads of it are in the middle of one.
//
// A daemon thread that wants to return to an interpreter which is ending is ended there, by
// pthread_exit; the frames of tvm-ffi on its stack do not survive that, and the process aborts. So
// it stays here instead, as Python itself keeps such threads from 3.14 on.
#ifndef TVM_STRETCH_CALLS_H_
#define TVM_STRETCH_CALLS_H_

namespace tvm_stretch {

// Around whatever the caller's thread does here.
class CallScope {
 public:
  CallScope();
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
};

// From now on no other thread than the calling one returns from a call, nor begins one. Runs that
// are in progress are cancelled; when this returns, they have ended, unless one takes too long.
void EndCalls();

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_CALLS_H_
