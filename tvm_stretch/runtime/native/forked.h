// Processes that were forked: their first thread has TVM's thread pool of the thread that forked,
// without the pool's threads, so work for it would wait forever.
#ifndef TVM_STRETCH_FORKED_H_
#define TVM_STRETCH_FORKED_H_

#include <functional>

namespace tvm_stretch {

// Whether the calling thread began as another process's.
bool IsForkedThread();

// Calls the function on a thread that this process began itself, which has a pool of its own. It is
// always the same one. What the function throws is thrown. For the forked thread only.
void OnThreadOfThisProcess(const std::function<void()>& action);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_FORKED_H_
