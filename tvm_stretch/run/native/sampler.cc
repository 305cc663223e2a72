#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tvm_stretch {
namespace {

using Weighted = std::pair<double, int64_t>;

// The lower index is the greater one of equal weights.
bool IsGreater(const Weighted& one, const Weighted& other) {
  return one.first != other.first ? one.first > other.first : one.second < other.second;
}

double SumOf(const std::vector<Weighted>& all) {
  double sum = 0;
  for (const Weighted& one : all) sum += one.first;
  return sum;
}

void KeepGreatest(std::vector<Weighted>* all, size_t count) {
  if (count == 0 || count >= all->size()) return;
  std::nth_element(all->begin(), all->begin() + static_cast<ptrdiff_t>(count), all->end(),
                   IsGreater);
  all->resize(count);
  std::sort(all->begin(), all->end(), IsGreater);
}

// Leaves the fewest weights, the greatest first, that reach a share of the sum. A heap gives them
// one by one, because most rows need few.
void KeepShare(std::vector<Weighted>* all, double share) {
  if (share >= 1) return;
  const auto is_less = [](const Weighted& one, const Weighted& other) {
    return IsGreater(other, one);
  };
  std::make_heap(all->begin(), all->end(), is_less);
  std::vector<Weighted> kept;
  double missing = share * SumOf(*all);
  for (auto end = all->end(); kept.empty() || (missing > 0 && end != all->begin());) {
    std::pop_heap(all->begin(), end--, is_less);
    kept.push_back(*end);
    missing -= end->first;
  }
  all->swap(kept);
}

}  // namespace

// SplitMix64 by Steele, Lea and Flood: any state is as good as another one.
double Sampler::Uniform() {
  uint64_t bits = state_ += 0x9e3779b97f4a7c15;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

int64_t Sampler::Draw(const float* scores, int64_t width) {
  float best = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < width; ++i) best = scores[i] > best ? scores[i] : best;
  if (std::isinf(best) && best < 0) return -1;
  all_.clear();
  for (int64_t i = 0; i < width; ++i) {
    const double below = std::isinf(best) ? (scores[i] == best ? 0 : -INFINITY)
                                          : (double{scores[i]} - best) / spec_.temperature;
    if (below > -700) all_.emplace_back(std::exp(below), i);  // false for NaN
  }
  KeepGreatest(&all_, static_cast<size_t>(spec_.top_k));
  KeepShare(&all_, spec_.top_p);
  const double least = spec_.min_p;  // the greatest weight is 1
  const auto is_small = [least](const Weighted& one) { return one.first < least; };
  all_.erase(std::remove_if(all_.begin(), all_.end(), is_small), all_.end());
  double rest = Uniform() * SumOf(all_);
  for (const Weighted& one : all_) {
    if (rest < one.first) return one.second;
    rest -= one.first;
  }
  return all_.back().second;  // because the differences were rounded
}

}  // namespace tvm_stretch
