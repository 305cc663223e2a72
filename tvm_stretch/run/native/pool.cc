#include "pool.h"

#include <sched.h>
#include <sys/types.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <string>
#include <utility>
#include <vector>

#include "cores.h"

namespace tvm_stretch {
namespace {

namespace ffi = tvm::ffi;

// As kernels call it, with TVM's signatures; 0 tasks: one for each thread in use.
using PoolTask = int (*)(int number, const void* environment, void* data);
using PoolLaunch = int (*)(PoolTask task, void* data, int tasks);

PoolLaunch FindLaunch() {
  PoolLaunch found = nullptr;
  ffi::Module::VisitContextSymbols([&found](const ffi::String& name, void* symbol) {
    if (name == "__TVMBackendParallelLaunch") found = reinterpret_cast<PoolLaunch>(symbol);
  });
  return found;
}

class Pool {
 public:
  void Use(int threads) {
    std::pair<int, Cores> wanted{threads, AllowedCores()};
    if (wanted != configured_) {
      workers_.KeepOff(kNoCore);
      Configure(threads, wanted.second);
      configured_ = std::move(wanted);
      FindWorkers(threads);
    }
    const int core = sched_getcpu();
    if (core != workers_.avoided()) workers_.KeepOff(core);
  }

 private:
  // Nothing is pinned, so several instances do not end up on the same core, and an outer `taskset`
  // is respected.
  static void Configure(int threads, const Cores& allowed) {
    ffi::Array<ffi::String> cores;
    for (int core : allowed) cores.push_back(std::to_string(core));
    constexpr int kThreadsShareAllCores = -3;
    static const ffi::Function configure =
        ffi::Function::GetGlobalRequired("runtime.config_threadpool");
    configure(kThreadsShareAllCores, threads, cores);
  }

  // TVM gives each thread of its pool one task of a launch.
  void FindWorkers(int threads) {
    static const PoolLaunch launch = FindLaunch();
    workers_ = ApartThreads();
    if (launch == nullptr) return;
    std::vector<pid_t> found(threads);  // by number of the task
    const PoolTask tell = [](int number, const void*, void* data) {
      (*static_cast<std::vector<pid_t>*>(data))[number] = ThisThread();
      return 0;
    };
    if (launch(tell, &found, 0) != 0) return;
    std::vector<pid_t> workers;
    for (pid_t thread : found) {
      if (thread != 0 && thread != ThisThread()) workers.push_back(thread);
    }
    workers_ = ApartThreads(workers);
  }

  std::pair<int, Cores> configured_{1, {}};
  ApartThreads workers_;  // those that kernels use
};

}  // namespace

void UseThreads(int threads) {
  if (threads == 1) return;
  thread_local Pool pool;
  pool.Use(threads);
}

}  // namespace tvm_stretch
