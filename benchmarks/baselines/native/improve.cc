// Simulated annealing over schedules.
//
// A change is one of: a connected group of operators goes to another processor; one operator moves
// in the sequence, perhaps to another processor too. Most start at operators without slack. The
// number of steps is given, not the time, so that the same problem has the same answer on every
// machine.

#include <cmath>
#include <random>

#include "schedule.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kReach = 40;  // how far an operator moves in the sequence
constexpr int64_t kLargestGroup = 12;
constexpr int64_t kTriesPerSort = 512;

// Gives the same numbers on every platform, unlike std::uniform_int_distribution.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t Below(int64_t bound) { return static_cast<int64_t>(engine_() % bound); }
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

class Improver {
 public:
  Improver(const Instance& instance, Schedule* schedule, uint64_t seed)
      : instance_(instance), schedule_(*schedule), random_(seed) {}

  // Writes the best schedule to `placement` and `sequence`, and returns its makespan.
  int64_t Run(int64_t steps, double heat, int64_t* placement, int64_t* sequence) {
    int64_t best = schedule_.makespan();
    const int64_t end = schedule_.steps() + steps;
    for (int64_t tries = 1; schedule_.steps() < end && tries <= steps; ++tries) {
      if (tries % kTriesPerSort == 0) schedule_.SortByStart();
      if (!Propose()) continue;
      const double left = static_cast<double>(end - schedule_.steps()) / static_cast<double>(steps);
      const double allowance = -heat * left * left * std::log(1.0 - random_.Unit());
      if (!schedule_.Try(schedule_.makespan() + static_cast<int64_t>(allowance))) continue;
      if (schedule_.makespan() < best) {
        best = schedule_.makespan();
        std::copy(schedule_.placement().begin(), schedule_.placement().end(), placement);
        std::copy(schedule_.sequence().begin(), schedule_.sequence().end(), sequence);
      }
    }
    return best;
  }

 private:
  int64_t PickOperator() {
    const std::vector<int64_t>& critical = schedule_.critical();
    if (!critical.empty() && random_.Below(10) < 7) return critical[random_.Below(critical.size())];
    return random_.Below(instance_.operators);
  }

  bool Propose() {
    const int64_t op = PickOperator();
    switch (random_.Below(4)) {
      case 0:
        return Shift(op);
      case 1: {
        const bool moved = Shift(op);
        return PlaceElsewhere(op) || moved;
      }
      default:
        return PlaceGroup(op);
    }
  }

  // Another processor that supports the operator, or -1.
  int64_t OtherProcessor(int64_t op) {
    const int64_t first = random_.Below(instance_.processors);
    for (int64_t i = 0; i < instance_.processors; ++i) {
      const int64_t p = (first + i) % instance_.processors;
      if (p != schedule_.processor(op) && instance_.Cost(op, p) >= 0) return p;
    }
    return -1;
  }

  bool PlaceElsewhere(int64_t op) {
    const int64_t processor = OtherProcessor(op);
    if (processor >= 0) schedule_.Place(op, processor);
    return processor >= 0;
  }

  // Moves the operator, and neighbours on the same processor, to another processor.
  bool PlaceGroup(int64_t op) {
    const int64_t from = schedule_.processor(op), to = OtherProcessor(op);
    if (to < 0) return false;
    int64_t wanted = 1;
    while (wanted < kLargestGroup && random_.Below(3) > 0) ++wanted;
    group_.assign(1, op);
    schedule_.Place(op, to);
    for (size_t i = 0; i < group_.size() && static_cast<int64_t>(group_.size()) < wanted; ++i) {
      // Alternating keeps chains and diamonds as likely as fans.
      const bool back = random_.Below(2) == 0;
      Grow(back ? instance_.predecessors : instance_.successors, group_[i], from, to, wanted);
      Grow(back ? instance_.successors : instance_.predecessors, group_[i], from, to, wanted);
    }
    return true;
  }

  void Grow(const Lists& neighbours, int64_t op, int64_t from, int64_t to, int64_t wanted) {
    for (int64_t i = neighbours.begin[op]; i < neighbours.begin[op + 1]; ++i) {
      const int64_t next = neighbours.values[i];
      if (static_cast<int64_t>(group_.size()) >= wanted) return;
      if (schedule_.processor(next) != from || instance_.Cost(next, to) < 0) continue;
      schedule_.Place(next, to);
      group_.push_back(next);
    }
  }

  // Moves an operator to a random position between its predecessors and its successors.
  bool Shift(int64_t op) {
    const int64_t position = schedule_.position(op);
    int64_t low = std::max<int64_t>(0, position - kReach);
    int64_t high = std::min(instance_.operators - 1, position + kReach);
    const Lists& before = instance_.predecessors;
    for (int64_t i = before.begin[op]; i < before.begin[op + 1]; ++i) {
      low = std::max(low, schedule_.position(before.values[i]) + 1);
    }
    const Lists& after = instance_.successors;
    for (int64_t i = after.begin[op]; i < after.begin[op + 1]; ++i) {
      high = std::min(high, schedule_.position(after.values[i]) - 1);
    }
    if (low >= high) return false;
    const int64_t target = low + random_.Below(high - low + 1);
    if (target == position) return false;
    schedule_.Move(op, target);
    return true;
  }

  const Instance& instance_;
  Schedule& schedule_;
  Random random_;
  std::vector<int64_t> group_;
};

}  // namespace
}  // namespace tvm_stretch

extern "C" __attribute__((visibility("default"))) int64_t tvm_stretch_improve_schedule(
    int64_t operators, int64_t processors, const int64_t* cost, int64_t tensors,
    const int64_t* producer, const int64_t* transfer, const int64_t* reads_begin,
    const int64_t* reads, const int64_t* predecessors_begin, const int64_t* predecessors,
    const int64_t* successors_begin, const int64_t* successors, int64_t caching, int64_t steps,
    double heat, uint64_t seed, int64_t* placement, int64_t* sequence) {
  const tvm_stretch::Instance instance{operators,
                                       processors,
                                       cost,
                                       tensors,
                                       producer,
                                       transfer,
                                       {reads_begin, reads},
                                       {predecessors_begin, predecessors},
                                       {successors_begin, successors},
                                       caching != 0};
  tvm_stretch::Schedule schedule(instance, placement, sequence);
  return tvm_stretch::Improver(instance, &schedule, seed).Run(steps, heat, placement, sequence);
}
