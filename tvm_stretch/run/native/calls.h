// Calls from Python threads that are still in progress when the interpreter ends.
//
// When a daemon thread returns to an interpreter that is ending, the interpreter ends the thread by
// pthread_exit. Frames of tvm-ffi on its stack do not support that, and the process aborts. So the
// thread blocks here instead, as Python itself does from 3.14 on.
#pragma once

#include <functional>

namespace tvm_stretch {

// A forked child keeps only the calling thread. That thread still refers to its pool of TVM, whose
// worker threads do not exist in the child, so work for the pool would wait forever.

// Whether the calling thread began in the parent process.
bool IsForkedThread();

// Calls the function on a thread that this process started, always the same one, which has a pool
// of its own. Rethrows what the function throws. For the forked thread only.
void OnThreadOfThisProcess(const std::function<void()>& action);

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
