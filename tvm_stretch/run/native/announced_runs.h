// The instances and announced runs of this process, so that other threads can cancel them.
#ifndef TVM_STRETCH_ANNOUNCED_RUNS_H_
#define TVM_STRETCH_ANNOUNCED_RUNS_H_

#include <cstdint>

namespace tvm_stretch {

class Instance;

// Instances whose runs can be cancelled.
void AddInstance(Instance* instance);
void RemoveInstance(Instance* instance);

// Gives the number that this thread announced to the run that begins, which may be cancelled
// already; 0 if there was no announcement.
int64_t TakeNumber(Instance* instance);
void ForgetNumber(int64_t number);

// Gives the next run of this thread a number by which others can cancel it. 0 withdraws an
// announcement.
void AnnounceRun(int64_t number);

// Cancels the run of this number, before or after it began, and no other run. Any thread. Only the
// last number that was not announced yet is remembered.
void CancelRun(int64_t number);

// Cancels all runs in progress in this process.
void CancelAllRuns();

}  // namespace tvm_stretch

#endif  // TVM_STRETCH_ANNOUNCED_RUNS_H_
