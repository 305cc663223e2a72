#include "cores.h"

#include <sched.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

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

// Old C libraries have no wrapper for it.
pid_t ThisThread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

Cores ParseCores(const std::string& text, const std::string& field) {
  Cores cores;
  const char *next = text.data(), *const end = next + text.size();
  const auto read = [&next, end](int* core) {
    const auto [stop, fault] = std::from_chars(next, end, *core);
    next = stop;
    return fault == std::errc();
  };
  while (next != end) {
    int first = -1;
    bool good = read(&first);
    int last = first;
    if (good && next != end && *next == '-') {
      ++next;
      good = read(&last);
    }
    if (good && next != end) good = *next++ == ',' && next != end;
    if (!good || first < 0 || last < first || last >= CPU_SETSIZE) {
      TVM_FFI_THROW(ValueError) << "expected a list of cores like 0,2-3 for " << field << ", got '"
                                << text << "'; correct it";
    }
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  return cores;
}

Cores ParseUsableCores(const std::string& text, const std::string& field) {
  Cores cores = ParseCores(text, field);
  if (!cores.empty() && !CoresScope(cores).active()) {
    TVM_FFI_THROW(ValueError) << "expected cores that this process may use for " << field
                              << ", got '" << text << "'; see /proc/self/status for those it may";
  }
  return cores;
}

Cores AllowedCores() {
  Cores cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

Cores Without(const Cores& cores, const Cores& taken) {
  Cores left;
  for (int core : cores) {
    if (std::find(taken.begin(), taken.end(), core) == taken.end()) left.push_back(core);
  }
  return left;
}

Cores LittleCores(const Cores& cores, const std::string& folder) {
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  std::vector<int64_t> capacities;
  for (int core : cores) {
    int64_t capacity = 0;  // if the file is missing
    std::ifstream(folder + "/cpu" + std::to_string(core) + "/cpu_capacity") >> capacity;
    capacities.push_back(capacity);
    least = std::min(least, capacity);
    most = std::max(most, capacity);
  }
  Cores little;
  for (size_t i = 0; i < cores.size(); ++i) {
    if (0 < least && least < most && capacities[i] == least) little.push_back(cores[i]);
  }
  return little;
}

namespace {

// Thread 0 is the calling one. Returns false if none of the cores may be used.
bool Move(pid_t thread, const Cores& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

}  // namespace

CoresScope::CoresScope(const Cores& cores) {
  if (cores.empty()) return;
  CPU_ZERO(&before_);
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  active_ = Move(0, cores);
}

CoresScope::~CoresScope() {
  if (active_) sched_setaffinity(0, sizeof(before_), &before_);
}

void ThreadCores::Begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  thread_ = ThisThread();
  CPU_ZERO(&before_);
  sched_getaffinity(0, sizeof(before_), &before_);
  if (!wanted_.empty()) Apply();
}

void ThreadCores::Set(const Cores& cores) {
  std::lock_guard<std::mutex> lock(mutex_);
  wanted_ = cores;
  if (thread_ != 0) Apply();
}

// If the cores went offline meanwhile, the thread stays where it is.
void ThreadCores::Apply() const {
  if (wanted_.empty()) {
    sched_setaffinity(thread_, sizeof(before_), &before_);
  } else {
    (void)Move(thread_, wanted_);
  }
}

ApartThreads::ApartThreads(const std::vector<pid_t>& threads) {
  for (pid_t thread : threads) threads_.push_back({thread, {}, {}});
}

void ApartThreads::KeepOff(int core) {
  avoided_ = core;
  for (Apart& apart : threads_) {
    cpu_set_t now;
    if (sched_getaffinity(apart.thread, sizeof(now), &now) != 0) continue;
    if (!CPU_EQUAL(&now, &apart.ours)) apart.given = now;
    apart.ours = apart.given;
    const bool is_roomy = CPU_COUNT(&apart.given) > static_cast<int>(threads_.size());
    if (core != kNoCore && is_roomy) CPU_CLR(core, &apart.ours);
    sched_setaffinity(apart.thread, sizeof(apart.ours), &apart.ours);
  }
}

}  // namespace tvm_stretch
