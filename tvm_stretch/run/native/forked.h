// A forked child keeps only the calling thread. That thread still refers to its pool of TVM, whose
// worker threads do not exist in the child, so work for the pool would wait forever.
#ifndef TVM_STRETCH_FORKED_H_
#define TVM_STRETCH_FORKED_H_

#include <functional>

namespace tvm_stretch {

// Whether the calling thread began in the parent process.
bool IsForkedThread();

// Calls the function on a thread that this process started, always the same one, which has a pool
// of its own. Rethrows what the function throws. For the forked thread only.
void OnThreadOfThisProcess(const std::function<void()>& action);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_FORKED_H_
