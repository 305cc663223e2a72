// A schedule for local search, which changes it step by step.
//
// The schedule is one sequence of all operators (topological) and a processor for each: every
// processor runs its operators in the order of the sequence, as early as possible, and receives
// tensors of other processors before it computes (the rules:
// tvm_stretch/plan/scheduling/problem.py).
#pragma once

#include <cstdint>
#include <vector>

namespace tvm_stretch {

// Concatenated lists of integers: the i-th list is values[begin[i]] to values[begin[i + 1] - 1].
struct Lists {
  const int64_t* begin;
  const int64_t* values;
};

struct Instance {
  int64_t operators;
  int64_t processors;
  const int64_t* cost;  // [operator][processor]; negative: unsupported
  int64_t tensors;
  const int64_t* producer;  // [tensor]
  const int64_t* transfer;  // [tensor][from][to]
  Lists reads;              // tensors that an operator reads
  Lists predecessors;
  Lists successors;
  bool caching;

  int64_t Cost(int64_t op, int64_t processor) const { return cost[op * processors + processor]; }
};

class Schedule {
 public:
  Schedule(const Instance& instance, const int64_t* placement, const int64_t* sequence);

  // Changes. They take effect with Try; Undo takes back all since the last Try that succeeded.
  void Place(int64_t op, int64_t processor);
  void Move(int64_t op, int64_t position);

  // Runs the changed schedule. Keeps it and returns true if its makespan is at most `limit`;
  // otherwise takes the changes back.
  bool Try(int64_t limit);

  // Sorts the sequence by start, which gives Move the most room and changes no time.
  void SortByStart();

  int64_t makespan() const { return makespan_; }
  int64_t steps() const { return steps_; }
  int64_t position(int64_t op) const { return position_[op]; }
  int64_t processor(int64_t op) const { return placement_[op]; }
  int64_t at(int64_t position) const { return sequence_[position]; }
  int64_t start(int64_t op) const { return start_[op]; }
  int64_t finish(int64_t op) const { return finish_[op]; }
  // Operators without slack: delaying one of them delays the end.
  const std::vector<int64_t>& critical() const { return critical_; }
  const std::vector<int64_t>& placement() const { return placement_; }
  const std::vector<int64_t>& sequence() const { return sequence_; }

 private:
  struct Change {
    enum { kPlace, kMove } kind;
    int64_t op;
    int64_t before;  // processor or position
  };
  void Touch(int64_t position);
  void MoveWithoutUndo(int64_t op, int64_t position);
  void Undo();
  bool Run(int64_t limit);
  int64_t Receive(int64_t op, int64_t processor, int64_t* ready);
  bool IsReceived(int64_t tensor, int64_t processor) const;
  void Keep();
  void UpdateTails();

  const Instance& instance_;
  std::vector<int64_t> placement_, sequence_, position_;
  // The schedule that was kept last.
  std::vector<int64_t> start_, finish_, tail_, critical_;
  std::vector<int64_t> free_;  // [position][processor]: when it is free before that position
  std::vector<int64_t> peak_;  // [position]: the last finish before that position
  std::vector<int64_t>
      receiver_;  // [tensor][processor]: the operator that receives it there, or -1
  std::vector<int64_t> least_tail_;  // lower bound from an operator's finish to the end
  int64_t makespan_ = 0;
  int64_t steps_ = 0;
  // The schedule being tried; an entry is valid if its stamp is the current one.
  std::vector<int64_t> new_start_, new_finish_, new_free_, stamp_, received_stamp_;
  int64_t current_stamp_ = 0;
  int64_t from_, to_;  // positions that changed
  std::vector<Change> changes_;
};

}  // namespace tvm_stretch
