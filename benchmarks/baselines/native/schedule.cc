#include "schedule.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tvm_stretch {

Schedule::Schedule(const Instance& instance, const int64_t* placement, const int64_t* sequence)
    : instance_(instance),
      placement_(placement, placement + instance.operators),
      sequence_(sequence, sequence + instance.operators),
      position_(instance.operators),
      start_(instance.operators),
      finish_(instance.operators),
      tail_(instance.operators),
      free_((instance.operators + 1) * instance.processors),
      peak_(instance.operators + 1),
      receiver_(instance.tensors * instance.processors, -1),
      least_tail_(instance.operators),
      new_start_(instance.operators),
      new_finish_(instance.operators),
      new_free_(instance.processors),
      stamp_(instance.operators),
      received_stamp_(instance.tensors * instance.processors),
      from_(0),
      to_(instance.operators - 1) {
  for (int64_t k = 0; k < instance.operators; ++k) position_[sequence_[k]] = k;
  for (int64_t k = instance.operators - 1; k >= 0; --k) {
    const int64_t op = sequence_[k];
    int64_t cheapest = std::numeric_limits<int64_t>::max();
    for (int64_t p = 0; p < instance.processors; ++p) {
      const int64_t cost = instance.Cost(op, p);
      if (cost >= 0) cheapest = std::min(cheapest, cost);
    }
    for (int64_t i = instance.predecessors.begin[op]; i < instance.predecessors.begin[op + 1];
         ++i) {
      int64_t& tail = least_tail_[instance.predecessors.values[i]];
      tail = std::max(tail, cheapest + least_tail_[op]);
    }
  }
  Try(std::numeric_limits<int64_t>::max());
}

void Schedule::Touch(int64_t position) {
  from_ = std::min(from_, position);
  to_ = std::max(to_, position);
}

void Schedule::Place(int64_t op, int64_t processor) {
  changes_.push_back({Change::kPlace, op, placement_[op]});
  placement_[op] = processor;
  Touch(position_[op]);
}

void Schedule::Move(int64_t op, int64_t position) {
  changes_.push_back({Change::kMove, op, position_[op]});
  Touch(position_[op]);
  Touch(position);
  MoveWithoutUndo(op, position);
}

void Schedule::MoveWithoutUndo(int64_t op, int64_t position) {
  const int64_t step = position > position_[op] ? 1 : -1;
  for (int64_t k = position_[op]; k != position; k += step) {
    sequence_[k] = sequence_[k + step];
    position_[sequence_[k]] = k;
  }
  sequence_[position] = op;
  position_[op] = position;
}

void Schedule::Undo() {
  for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
    if (change->kind == Change::kPlace) {
      placement_[change->op] = change->before;
    } else {
      MoveWithoutUndo(change->op, change->before);
    }
  }
}

bool Schedule::Try(int64_t limit) {
  const bool keep = Run(limit);
  if (keep) {
    Keep();
  } else {
    Undo();
  }
  changes_.clear();
  from_ = instance_.operators;
  to_ = -1;
  return keep;
}

// A receive before the first change is still valid; a later one counts only if this trial made it.
bool Schedule::IsReceived(int64_t tensor, int64_t processor) const {
  const int64_t slot = tensor * instance_.processors + processor;
  if (received_stamp_[slot] == current_stamp_) return true;
  const int64_t receiver = receiver_[slot];
  return receiver >= 0 && position_[receiver] < from_;
}

// Returns the time that the operator spends receiving; raises `ready` to the finish of its inputs.
int64_t Schedule::Receive(int64_t op, int64_t processor, int64_t* ready) {
  const int64_t processors = instance_.processors;
  int64_t total = 0;
  for (int64_t i = instance_.reads.begin[op]; i < instance_.reads.begin[op + 1]; ++i) {
    const int64_t tensor = instance_.reads.values[i];
    const int64_t producer = instance_.producer[tensor];
    const bool tried = stamp_[producer] == current_stamp_;
    *ready = std::max(*ready, tried ? new_finish_[producer] : finish_[producer]);
    const int64_t source = placement_[producer];
    if (source == processor || (instance_.caching && IsReceived(tensor, processor))) continue;
    total += instance_.transfer[(tensor * processors + source) * processors + processor];
    received_stamp_[tensor * processors + processor] = current_stamp_;
  }
  return total;
}

bool Schedule::Run(int64_t limit) {
  const int64_t processors = instance_.processors;
  ++current_stamp_;
  if (from_ >= instance_.operators) return makespan_ <= limit;
  if (peak_[from_] > limit) return false;
  std::copy_n(&free_[from_ * processors], processors, new_free_.begin());
  for (int64_t k = from_; k < instance_.operators; ++k) {
    ++steps_;
    const int64_t op = sequence_[k];
    const int64_t processor = placement_[op];
    int64_t ready = new_free_[processor];
    const int64_t receive = Receive(op, processor, &ready);
    const int64_t end = ready + receive + instance_.Cost(op, processor);
    // After the changes the old tail holds, unless other operators now receive. In that case this
    // may refuse a good schedule, but never accepts a bad one.
    const int64_t rest = k > to_ ? tail_[op] : least_tail_[op];
    if (end + rest > limit) return false;
    new_start_[op] = ready;
    new_finish_[op] = end;
    new_free_[processor] = end;
    stamp_[op] = current_stamp_;
  }
  return true;
}

// Makes the tried schedule the current one.
void Schedule::Keep() {
  const int64_t processors = instance_.processors;
  for (int64_t k = from_; k < instance_.operators; ++k) {
    const int64_t op = sequence_[k];
    start_[op] = new_start_[op];
    finish_[op] = new_finish_[op];
    for (int64_t p = 0; p < processors; ++p)
      free_[(k + 1) * processors + p] = free_[k * processors + p];
    free_[(k + 1) * processors + placement_[op]] = finish_[op];
    peak_[k + 1] = std::max(peak_[k], finish_[op]);
    for (int64_t i = instance_.reads.begin[op]; i < instance_.reads.begin[op + 1]; ++i) {
      const int64_t tensor = instance_.reads.values[i];
      for (int64_t p = 0; p < processors; ++p) {
        int64_t& receiver = receiver_[tensor * processors + p];
        if (receiver >= 0 && position_[receiver] >= k) receiver = -1;
      }
      int64_t& here = receiver_[tensor * processors + placement_[op]];
      if (here < 0) here = op;
    }
  }
  makespan_ = peak_[instance_.operators];
  UpdateTails();
}

// Computes, from last to first, the time after each operator's finish, and operators without slack.
void Schedule::UpdateTails() {
  steps_ += instance_.operators;
  std::vector<int64_t>& tail_of = new_free_;  // [processor]: time from its next operator's start on
  std::fill(tail_of.begin(), tail_of.end(), 0);
  critical_.clear();
  for (int64_t k = instance_.operators - 1; k >= 0; --k) {
    const int64_t op = sequence_[k];
    int64_t tail = tail_of[placement_[op]];
    for (int64_t i = instance_.successors.begin[op]; i < instance_.successors.begin[op + 1]; ++i) {
      const int64_t next = instance_.successors.values[i];
      tail = std::max(tail, finish_[next] - start_[next] + tail_[next]);
    }
    tail_[op] = tail;
    tail_of[placement_[op]] = finish_[op] - start_[op] + tail;
    if (finish_[op] + tail == makespan_) critical_.push_back(op);
  }
}

void Schedule::SortByStart() {
  std::vector<int64_t> sorted = sequence_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [this](int64_t a, int64_t b) { return start_[a] < start_[b]; });
  for (size_t k = 0; k < sorted.size(); ++k) {
    sequence_[k] = sorted[k];
    position_[sorted[k]] = static_cast<int64_t>(k);
  }
  from_ = 0;
  to_ = instance_.operators - 1;
  Try(std::numeric_limits<int64_t>::max());
}

}  // namespace tvm_stretch
