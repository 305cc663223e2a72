// Areas that two processors share, the other one a thread of this file.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "errors.h"
#include "shared_areas.h"

namespace tvm_stretch {
namespace {

constexpr int64_t kRoom = 8;  // areas in the list
constexpr int64_t kBeforeAreas = 3;

// Takes areas as the kernels of targets/opencl/code/areas.py do.
class OtherTask final : public Task {
 public:
  OtherTask(int64_t* list, const std::function<void(int64_t)>* compute, Task* turn)
      : list_(list), compute_(compute) {
    turn->OnComplete([this](const Failure&) { may_begin_ = true; });
  }
  ~OtherTask() final { Join(); }
  void Reset(bool traced) final {
    Join();
    may_begin_ = false;
    Task::Reset(traced);
  }
  void Start() final {
    thread_ = std::thread([this] {
      while (!may_begin_) std::this_thread::yield();
      Complete(Attempt([this] { Work(); }));
    });
  }
  void Cancel() final {}

 private:
  void Work() {
    auto* const taken = reinterpret_cast<int32_t*>(list_);
    auto* const last = reinterpret_cast<int32_t*>(list_ + 1);
    while (__atomic_fetch_add(taken, 1, __ATOMIC_ACQ_REL) < list_[2]) {
      (*compute_)(list_[kBeforeAreas + 4 * __atomic_fetch_add(last, -1, __ATOMIC_ACQ_REL)]);
    }
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  int64_t* const list_;
  const std::function<void(int64_t)>* const compute_;
  std::atomic<bool> may_begin_{false};
  std::thread thread_;
};

struct OtherProcessor final : public Processor {
  OtherProcessor(int64_t* own, const std::function<void(int64_t)>* how, bool can_share)
      : list(own), compute(how), shares(can_share) {}
  void BeginPlan() final {}
  std::unique_ptr<Task> Bind(const RegionSpec&, const std::vector<Task*>& after) final {
    return std::make_unique<OtherTask>(list, compute, after.at(0));
  }
  bool SharesMemory() const final { return shares; }

  int64_t* const list;
  const std::function<void(int64_t)>* const compute;
  const bool shares;
};

// One step, whose areas are single rows.
class Areas : public ::testing::Test {
 protected:
  Areas() : list_(kBeforeAreas + 4 * kRoom), done_(100) {
    graph_.processors = {{"cpu", "cpu"}, {"gpu", "other"}};
    const int64_t bytes = 8 * static_cast<int64_t>(list_.size());
    graph_.tensors.resize(2);
    graph_.tensors[1] = {{bytes / 8}, {1}, {kDLInt, 64, 1}, Memory::kArena, 0, 0, bytes};
    graph_.nodes = {{"conv", "conv", {}, {0}, {}, {}}, {"conv", "conv", {}, {0, 1}, {}, {}}};
    graph_.regions = {{"r0", 0, {0}, {}, {}, {}}, {"areas of conv", 1, {1}, {}, {}, {}}};
    graph_.plans = {{"plan", 0, 1, 0, {}}};
    memory_.arena = reinterpret_cast<char*>(list_.data());
  }

  std::unique_ptr<SharedAreas> Shared(bool shares = true) {
    devices_.clear();
    devices_.push_back(std::make_unique<OtherProcessor>(list_.data(), &compute_, shares));
    return std::make_unique<SharedAreas>(graph_, memory_, devices_);
  }

  static std::vector<Area> Rows(int64_t count) {
    std::vector<Area> rows;
    for (int64_t i = 0; i < count; ++i) rows.push_back({i, i + 1, 0, 4});
    return rows;
  }

  // Offers rows, computes until none is left, and returns how many the caller computed.
  int64_t Compute(SharedAreas* shared, int64_t count, Failure* failure) {
    const std::vector<Area> rows = Rows(count);
    int64_t own = 0;
    EXPECT_TRUE(shared->Offer(0, rows));
    while (const std::optional<Area> area = shared->Take()) {
      ++done_[area->top];
      ++own;
    }
    *failure = shared->Join();
    return own;
  }

  GraphSpec graph_{};
  std::vector<int64_t> list_;
  MemoryMap memory_;
  std::vector<std::unique_ptr<Processor>> devices_;
  std::vector<std::atomic<int>> done_;
  std::function<void(int64_t)> compute_ = [this](int64_t row) { ++done_[row]; };
};

TEST_F(Areas, AreComputedOnce) {
  const auto shared = Shared();
  for (int frame = 1; frame <= 200; ++frame) {
    Failure failure;
    Compute(shared.get(), frame % 20, &failure);  // more than the list has room for, too
    EXPECT_FALSE(failure);
    EXPECT_FALSE(shared->End());
    for (int row = 0; row < 20; ++row) EXPECT_EQ(done_[row].exchange(0), row < frame % 20);
  }
}

TEST_F(Areas, ThatTheOtherProcessorTookAreAwaited) {
  std::atomic<bool> began{false};
  compute_ = [&](int64_t row) {
    began = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++done_[row];
  };
  const auto shared = Shared();
  const std::vector<Area> rows = Rows(3);
  ASSERT_TRUE(shared->Offer(0, rows));
  while (!began) std::this_thread::yield();
  int own = 0;
  while (shared->Take()) ++own;
  EXPECT_EQ(own, 2);
  EXPECT_FALSE(shared->Join());
  EXPECT_EQ(done_[2], 1) << "the last one";
}

TEST_F(Areas, AreNotAwaitedIfTheCallerTookAll) {
  graph_.regions.push_back({"areas of other", 1, {2}, {}, {}, {}});
  graph_.nodes.push_back({"conv", "other", {}, {2, 1}, {}, {}});
  graph_.tensors.resize(3);
  const auto shared = Shared();
  EXPECT_FALSE(shared->End()) << "no frame has begun";
  Failure failure;
  for (int i = 0; i < 50; ++i) {
    Compute(shared.get(), 1, &failure);
    EXPECT_FALSE(shared->End()) << "regions whose step was not offered end too";
  }
  EXPECT_EQ(done_[0], 50);
}

TEST_F(Areas, OfAFailedProcessorAreLeftToTheCaller) {
  std::atomic<bool> fails{true};
  compute_ = [&](int64_t) {
    if (fails) TVM_FFI_THROW(RuntimeError) << "device lost";
  };
  const auto shared = Shared();
  Failure failure;
  const std::vector<Area> rows = Rows(2);
  ASSERT_TRUE(shared->Offer(0, rows));
  while (__atomic_load_n(list_.data(), __ATOMIC_ACQUIRE) == 0) std::this_thread::yield();
  while (shared->Take()) continue;
  failure = shared->Join();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind(), kDeviceError);
  EXPECT_EQ(failure->message(),
            "expected processor 'gpu' to compute areas of conv, got: device lost; run it again, "
            "compile with spare=True so that the CPU takes over, or without that processor");
  EXPECT_TRUE(shared->End());
  fails = false;
  Compute(shared.get(), 5, &failure);
  EXPECT_FALSE(failure) << "the next frame works";
  EXPECT_FALSE(shared->End());
}

TEST_F(Areas, NeedMemoryThatBothAccess) {
  EXPECT_FALSE(Shared(false)->Offer(0, Rows(4)));
  EXPECT_FALSE(Shared()->Offer(7, Rows(4))) << "another result";
}

TEST_F(Areas, NeedAList) {
  graph_.tensors[1].dtype.bits = 32;
  try {
    Shared();
    FAIL() << "expected a refusal";
  } catch (const ffi::Error& error) {
    EXPECT_NE(error.message().find("a list of areas in region 'areas of conv'"), std::string::npos);
  }
}

}  // namespace
}  // namespace tvm_stretch
