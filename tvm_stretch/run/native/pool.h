// TVM's thread pool of the calling thread: how many workers a run uses, and on which cores.
#ifndef TVM_STRETCH_POOL_H_
#define TVM_STRETCH_POOL_H_

namespace tvm_stretch {

// Called before kernels run: `threads` threads share the cores that the calling thread may use now,
// and workers keep off its present core. A worker that is woken on the core of its caller often
// stays there, and then the two take turns: the kernels are as slow as with one thread. One thread:
// the kernels are serial and the pool is never touched.
void UseThreads(int threads);

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_POOL_H_
