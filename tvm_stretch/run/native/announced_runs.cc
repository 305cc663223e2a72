#include "announced_runs.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "instance.h"

namespace tvm_stretch {
namespace {

struct AnnouncedRun {
  bool is_cancelled = false;
  Instance* instance = nullptr;  // since it began
};

struct Instances {
  std::mutex mutex;  // guards the members below, and keeps instances alive while they are cancelled
  std::set<Instance*> all;
  std::map<int64_t, AnnouncedRun> announced;  // until they end
  int64_t cancelled = 0;                      // number that was cancelled before its announcement
};

// The number of the next run that this thread begins.
thread_local int64_t next_number = 0;

Instances& AllInstances() {
  static Instances& instances = *new Instances();
  return instances;
}

}  // namespace

void AddInstance(Instance* instance) {
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  instances.all.insert(instance);
}

void RemoveInstance(Instance* instance) {
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  instances.all.erase(instance);
}

int64_t TakeNumber(Instance* instance) {
  if (next_number == 0) return 0;
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  const int64_t number = std::exchange(next_number, 0);
  AnnouncedRun& run = instances.announced[number];
  run.instance = instance;
  if (run.is_cancelled) instance->CancelHere();
  return number;
}

void ForgetNumber(int64_t number) {
  if (number == 0) return;
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  instances.announced.erase(number);
}

void AnnounceRun(int64_t number) {
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  instances.announced.erase(next_number);
  next_number = number;
  if (number != 0) instances.announced[number] = {number == instances.cancelled, nullptr};
}

void CancelRun(int64_t number) {
  if (number == 0) return;  // it was not announced
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  auto found = instances.announced.find(number);
  if (found == instances.announced.end()) {
    instances.cancelled = number;
    return;
  }
  found->second.is_cancelled = true;
  if (found->second.instance != nullptr) found->second.instance->CancelHere();
}

void CancelAllRuns() {
  Instances& instances = AllInstances();
  std::lock_guard<std::mutex> lock(instances.mutex);
  for (Instance* instance : instances.all) instance->Cancel();
}

}  // namespace tvm_stretch
