#include "announced_runs.h"

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "instance.h"

namespace tvm_stretch {
namespace {

struct Announcement {
  bool is_cancelled = false;
  Instance* instance = nullptr;  // since the run began
};

struct Instances {
  std::mutex mutex;  // guards the members below, and keeps instances alive while they are cancelled
  std::set<Instance*> all;
  std::map<int64_t, Announcement> announced;  // until the runs end
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
  std::lock_guard<std::mutex> lock(AllInstances().mutex);
  AllInstances().all.insert(instance);
}

void RemoveInstance(Instance* instance) {
  std::lock_guard<std::mutex> lock(AllInstances().mutex);
  AllInstances().all.erase(instance);
}

AnnouncedRun::AnnouncedRun(Instance* instance) : number_(std::exchange(next_number, 0)) {
  if (number_ == 0) return;
  std::lock_guard<std::mutex> lock(AllInstances().mutex);
  Announcement& run = AllInstances().announced[number_];
  run.instance = instance;
  if (run.is_cancelled) instance->Cancel();
}

AnnouncedRun::~AnnouncedRun() {
  if (number_ == 0) return;
  std::lock_guard<std::mutex> lock(AllInstances().mutex);
  AllInstances().announced.erase(number_);
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
  if (found->second.instance != nullptr) found->second.instance->Cancel();
}

void CancelAllRuns() {
  std::lock_guard<std::mutex> lock(AllInstances().mutex);
  for (Instance* instance : AllInstances().all) instance->Cancel();
}

}  // namespace tvm_stretch
