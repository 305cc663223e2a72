#include "preparing.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include "cores.h"

namespace tvm_stretch {
namespace {

// Transforms of weights are limited by memory, which few cores use up.
constexpr size_t kMostHelpers = 3;

bool Overlap(const TensorSpec& one, const TensorSpec& other) {
  return one.memory == Memory::kPrepared && other.memory == Memory::kPrepared &&
         one.offset < other.offset + other.bytes && other.offset < one.offset + one.bytes;
}

bool DependsOn(const GraphSpec& graph, const NodeSpec& later, const NodeSpec& earlier) {
  const auto meet = [&graph](const std::vector<int64_t>& some, const std::vector<int64_t>& others) {
    return std::any_of(some.begin(), some.end(), [&](int64_t one) {
      return std::any_of(others.begin(), others.end(), [&](int64_t other) {
        return Overlap(graph.tensors[one], graph.tensors[other]);
      });
    });
  };
  return meet(later.inputs, earlier.outputs) || meet(later.outputs, earlier.outputs) ||
         meet(later.outputs, earlier.inputs);
}

}  // namespace

Preparation::Preparation(const GraphSpec& graph, const KernelTable& kernels, BoundTensors* tensors,
                         std::function<void()> check)
    : is_serial_(graph.threads == 1), check_(std::move(check)), done_(graph.prepare.size()) {
  for (size_t node = 0; node < graph.prepare.size(); ++node) {
    nodes_.emplace_back(graph.prepare, std::vector<int64_t>{static_cast<int64_t>(node)}, kernels,
                        tensors);
    std::vector<size_t>& after = after_.emplace_back();
    for (size_t earlier = 0; earlier < node; ++earlier) {
      if (DependsOn(graph, graph.prepare[node], graph.prepare[earlier])) after.push_back(earlier);
    }
  }
}

void Preparation::Run() {
  // Kernels of several threads have a pool that belongs to the calling thread.
  const size_t most = is_serial_ ? kMostHelpers : 1;
  const size_t helpers = std::min(std::max<size_t>(AllowedCores().size(), 1) - 1, most);
  std::vector<std::thread> threads;
  try {
    while (threads.size() < helpers) {
      threads.emplace_back([this] {
        Check();
        if (is_serial_) Work();
      });
    }
  } catch (const std::exception&) {
    // There is no thread or no memory left: this one does the work.
  }
  Work();
  Check();
  for (std::thread& thread : threads) thread.join();
  if (failure_) throw *failure_;
}

void Preparation::Check() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(checking_, true)) return;  // another thread does it
  }
  Finish(Attempt(check_), nullptr);
}

void Preparation::Work() {
  const std::atomic<bool> never{false};
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (next_ == nodes_.size()) return;
    const size_t node = next_++;
    changed_.wait(lock, [&] { return failure_ || IsReady(node); });
    if (failure_) return;
    lock.unlock();
    Finish(Attempt([&] { nodes_[node].Run(never, nullptr); }), &node);
  }
}

bool Preparation::IsReady(size_t node) const {
  return std::all_of(after_[node].begin(), after_[node].end(),
                     [this](size_t earlier) { return done_[earlier]; });
}

void Preparation::Finish(Failure failure, const size_t* node) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (node != nullptr) done_[*node] = true;
  if (!failure_) failure_ = std::move(failure);
  changed_.notify_all();
}

}  // namespace tvm_stretch
