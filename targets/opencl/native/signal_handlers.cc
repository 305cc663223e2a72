#include "signal_handlers.h"

#include <array>
#include <csignal>
#include <mutex>

namespace tvm_stretch::opencl {
namespace {

struct Kept {
  std::mutex mutex;  // guards the members below
  int open = 0;
  std::array<struct sigaction, NSIG> handlers{};
};

Kept& TheKept() {
  static Kept& kept = *new Kept();
  return kept;
}

}  // namespace

KeepsSignalHandlers::KeepsSignalHandlers() {
  Kept& kept = TheKept();
  std::lock_guard<std::mutex> lock(kept.mutex);
  if (kept.open++ > 0) return;
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, nullptr, &kept.handlers[static_cast<size_t>(number)]);
  }
}

KeepsSignalHandlers::~KeepsSignalHandlers() {
  Kept& kept = TheKept();
  std::lock_guard<std::mutex> lock(kept.mutex);
  if (--kept.open > 0) return;
  for (int number = 1; number < NSIG; ++number) {
    const struct sigaction& before = kept.handlers[static_cast<size_t>(number)];
    struct sigaction now{};
    if (sigaction(number, nullptr, &now) != 0) continue;  // reserved by the C library
    if (now.sa_sigaction != before.sa_sigaction) sigaction(number, &before, nullptr);
  }
}

}  // namespace tvm_stretch::opencl
