// Threads that keep off the core of the thread that waits for them.
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "cores.h"

namespace tvm_stretch::testing {
namespace {

// A thread that does nothing, on cores that a test may change.
class Idle {
 public:
  explicit Idle(const Cores& cores)
      : runner_([this, cores] {
          const CoresScope scope(cores);
          number_.set_value(ThisThread());
          end_.get_future().wait();
        }),
        thread(number_.get_future().get()) {}
  ~Idle() {
    end_.set_value();
    runner_.join();
  }

  Cores cores() const {
    cpu_set_t set;
    Cores found;
    if (sched_getaffinity(thread, sizeof(set), &set) != 0) return found;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) found.push_back(core);
    }
    return found;
  }
  void Use(int core) const {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    ASSERT_EQ(sched_setaffinity(thread, sizeof(set), &set), 0);
  }

 private:
  std::promise<pid_t> number_;
  std::promise<void> end_;
  std::thread runner_;

 public:
  const pid_t thread;
};

class Apart : public ::testing::Test {
 protected:
  void SetUp() override {
    if (all_.size() < 2) GTEST_SKIP() << "needs two cores";
  }

  const Cores all_ = AllowedCores();
  const Cores two_ = all_.size() < 2 ? all_ : Cores{all_[0], all_[1]};
};

TEST_F(Apart, OneThreadKeepsOffWhateverCoreIsNamedLast) {
  const Idle idle(two_);
  ApartThreads threads({idle.thread});
  EXPECT_EQ(threads.avoided(), kNoCore);
  for (int core : {0, 1, 1, 0}) {
    threads.KeepOff(two_[core]);
    EXPECT_EQ(threads.avoided(), two_[core]);
    EXPECT_EQ(idle.cores(), Cores{two_[1 - core]});
  }
  threads.KeepOff(kNoCore);
  EXPECT_EQ(idle.cores(), two_);
}

TEST_F(Apart, ThreadsDoNotCrowdOnFewerCoresThanTheyAre) {
  const Idle one(two_), other(two_), only({two_[0]});
  ApartThreads crowd({one.thread, other.thread});
  crowd.KeepOff(two_[0]);
  EXPECT_EQ(one.cores(), two_);
  EXPECT_EQ(other.cores(), two_);
  ApartThreads single({only.thread});
  single.KeepOff(two_[0]);
  EXPECT_EQ(only.cores(), Cores{two_[0]});
}

TEST_F(Apart, WhatSomebodyElseChoseStays) {
  const Idle idle(two_);
  ApartThreads threads({idle.thread});
  threads.KeepOff(two_[0]);
  idle.Use(two_[0]);  // after it was moved to the other core
  for (int core : {two_[1], two_[0], kNoCore}) {
    threads.KeepOff(core);
    EXPECT_EQ(idle.cores(), Cores{two_[0]});
  }
}

TEST_F(Apart, ThreadsThatHaveEndedAreLeftOut) {
  const Idle idle(two_);
  pid_t ended = 0;
  std::thread([&] { ended = ThisThread(); }).join();
  ApartThreads threads({ended, idle.thread});
  threads.KeepOff(two_[0]);
  EXPECT_EQ(threads.avoided(), two_[0]);
}

}  // namespace
}  // namespace tvm_stretch::testing
