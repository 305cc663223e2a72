// Calls from Python threads that are still in progress when the interpreter ends.
//
// When a daemon thread returns to an interpreter that is ending, the interpreter ends the thread by
// pthread_exit. Frames of tvm-ffi on its stack do not support that, and the process aborts. So the
// thread blocks here instead, as Python itself does from 3.14 on.
#ifndef TVM_STRETCH_CALLS_H_
#define TVM_STRETCH_CALLS_H_

namespace tvm_stretch {

// Marks a call of the current thread as in progress.
class CallScope {
 public:
  CallScope();
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
};

// From now on only the calling thread may return from a call or begin one. Cancels runs in
// progress; when this returns, they have ended, unless one takes too long.
void EndCalls();

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_CALLS_H_
