// Draws from scores: hostile rows, limits, seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "sampler.h"

namespace tvm_stretch {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::set<int64_t> Drawn(const std::vector<float>& scores, const SamplingSpec& spec) {
  Sampler sampler(spec);
  std::set<int64_t> found;
  for (int i = 0; i < 500; ++i) {
    found.insert(sampler.Draw(scores.data(), static_cast<int64_t>(scores.size())));
  }
  return found;
}

TEST(Sampler, LimitsLeaveTheGreatest) {
  const std::vector<float> scores{0, 3, 1, 3, 2};
  EXPECT_EQ(Drawn(scores, {1, 0, 1, 0, 0}).size(), 5u);
  EXPECT_EQ(Drawn(scores, {1, 1, 1, 0, 0}), (std::set<int64_t>{1}));
  EXPECT_EQ(Drawn(scores, {1, 3, 1, 0, 0}), (std::set<int64_t>{1, 3, 4}));
  EXPECT_EQ(Drawn(scores, {1, 0, 0, 0, 0}), (std::set<int64_t>{1}));
  EXPECT_EQ(Drawn(scores, {1, 0, 0.5, 0, 0}), (std::set<int64_t>{1, 3}));
  EXPECT_EQ(Drawn(scores, {1, 0, 1, 0.3, 0}), (std::set<int64_t>{1, 3, 4}));
  EXPECT_EQ(Drawn(scores, {1, 100, 1, 1, 0}), (std::set<int64_t>{1, 3}));
}

TEST(Sampler, HostileScores) {
  const SamplingSpec plain{1, 0, 1, 0, 5}, limited{1e-3, 3, 0.9, 0.1, 5};
  for (const SamplingSpec& spec : {plain, limited}) {
    EXPECT_EQ(Drawn({NAN, NAN}, spec), (std::set<int64_t>{-1}));
    EXPECT_EQ(Drawn({-kInfinity, NAN}, spec), (std::set<int64_t>{-1}));
    EXPECT_EQ(Drawn({NAN, kInfinity, 1, kInfinity}, spec), (std::set<int64_t>{1, 3}));
    EXPECT_EQ(Drawn({NAN, -kInfinity, -3e38f}, spec), (std::set<int64_t>{2}));
    EXPECT_EQ(Drawn({3e38f, -3e38f}, spec), (std::set<int64_t>{0}));
  }
}

TEST(Sampler, SeedsRepeat) {
  const std::vector<float> scores(100, 1.0f);
  Sampler one({1, 0, 1, 0, 7}), other({1, 0, 1, 0, 7}), third({1, 0, 1, 0, 8});
  std::vector<int64_t> first, again;
  bool differs = false;
  for (int i = 0; i < 50; ++i) {
    first.push_back(one.Draw(scores.data(), 100));
    EXPECT_EQ(first.back(), other.Draw(scores.data(), 100));
    differs |= first.back() != third.Draw(scores.data(), 100);
  }
  EXPECT_TRUE(differs);
  one.Restart();
  for (int i = 0; i < 50; ++i) again.push_back(one.Draw(scores.data(), 100));
  EXPECT_EQ(first, again);
}

}  // namespace
}  // namespace tvm_stretch
