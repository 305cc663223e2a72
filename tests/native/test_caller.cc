// Calls that may never return, made on another thread.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "targets/hexagon/native/caller.h"

namespace tvm_stretch::dsp {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = Caller::Clock;

const std::atomic<bool> kGoesOn{false}, kStops{true};

class Calls : public ::testing::TestWithParam<int> {};  // how long both sides spin

TEST_P(Calls, OneAfterTheOther) {
  Caller caller{microseconds(GetParam())};
  int sum = 0;  // no lock: the caller waits
  for (int i = 0; i < 200; ++i) {
    caller.Begin([&sum, i] { sum += i; });
    const auto end = Clock::now() + std::chrono::seconds(20);
    ASSERT_TRUE(caller.Await(end, kGoesOn, end));
  }
  EXPECT_EQ(sum, 199 * 100);
}

INSTANTIATE_TEST_SUITE_P(Spins, Calls, ::testing::Values(0, 50));

TEST(Caller, ACallBeyondItsDeadlineKeepsWhatItHolds) {
  auto released = std::make_shared<std::atomic<bool>>(false);
  std::weak_ptr<std::atomic<bool>> watched = released;
  {
    Caller caller{microseconds(0)};
    caller.Begin([released] {
      while (!*released) std::this_thread::yield();
    });
    const auto now = Clock::now();
    EXPECT_FALSE(caller.Await(now + milliseconds(20), kGoesOn, now));
    EXPECT_FALSE(caller.Await(now + std::chrono::hours(1), kStops, now)) << "the session closes";
  }
  *released = true;
  released.reset();
  while (!watched.expired()) std::this_thread::yield();
}

TEST(Caller, EndsWithoutACall) {
  for (int spin : {0, 50}) Caller caller{microseconds(spin)};
}

}  // namespace
}  // namespace tvm_stretch::dsp
