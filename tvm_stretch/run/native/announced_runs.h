// The instances and announced runs of this process, so that other threads can cancel them.
#pragma once

#include <cstdint>

namespace tvm_stretch {

class Instance;

// Instances whose runs can be cancelled.
void AddInstance(Instance* instance);
void RemoveInstance(Instance* instance);

// The run that begins has the number that this thread announced; it may be cancelled already.
class AnnouncedRun {
 public:
  explicit AnnouncedRun(Instance* instance);
  ~AnnouncedRun();

 private:
  const int64_t number_;  // 0 if there was no announcement
};

// Gives the next run of this thread a number by which others can cancel it. 0 withdraws an
// announcement.
void AnnounceRun(int64_t number);

// Cancels the run of this number, before or after it began, and no other run. Any thread. Only the
// last number that was not announced yet is remembered.
void CancelRun(int64_t number);

// Cancels all runs in progress in this process.
void CancelAllRuns();

}  // namespace tvm_stretch
