// Waits for another thread by spinning, because waking a thread takes longer than a small region.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

namespace tvm_stretch {

// Threads that spin for each other have to yield if there are few cores. With more cores, yielding
// would only let other threads in.
inline bool HasFewCores() {
  static const bool few = std::thread::hardware_concurrency() < 4;
  return few;
}

// Spins until `done()`, at most for `duration`; returns whether it is done.
template <typename Done>
bool SpinFor(std::chrono::microseconds duration, const Done& done) {
  const auto end = std::chrono::steady_clock::now() + duration;
  do {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
    if (HasFewCores()) sched_yield();
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace tvm_stretch
