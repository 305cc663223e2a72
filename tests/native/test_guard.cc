// Values that kernels cannot compute with: who notices, and what is said.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "bound_graph.h"
#include "guard.h"
#include "kernels.h"

namespace tvm_stretch {
namespace {

template <typename T>
using Limits = std::numeric_limits<T>;

using Integers =
    ::testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>;

// What is said of an input with these values; "" if they are good. Values behind the last full row
// are left out, and the memory ends behind the last value.
template <typename T>
std::string Said(std::vector<T> values, std::vector<int64_t> low, std::vector<int64_t> high) {
  const int64_t columns = low.empty() ? 1 : low.size();
  const std::vector<int64_t> shape{static_cast<int64_t>(values.size()) / columns, columns};
  GraphSpec graph{};
  const DLDataType dtype{static_cast<uint8_t>(std::is_signed_v<T> ? kDLInt : kDLUInt),
                         8 * sizeof(T), 1};
  graph.tensors.push_back({shape, {columns, 1}, dtype, Memory::kInput, 0, 0, 0});
  graph.inputs.push_back({"x", 0, 0});
  const std::vector<GuardSpec> guards{{0, low, high, "x"}};
  MemoryMap memory;
  memory.inputs.push_back(reinterpret_cast<char*>(values.data()));
  BoundTensors tensors(graph, memory);
  return testing::ErrorOf([&] { Guards(guards, &tensors).Check(); });
}

template <typename T>
class Guard : public ::testing::Test {};
TYPED_TEST_SUITE(Guard, Integers);

TYPED_TEST(Guard, EveryPlaceOfManyLengths) {
  for (size_t count : {1, 2, 3, 15, 16, 17, 64, 100}) {
    const std::vector<TypeParam> good(count, 3);
    EXPECT_EQ(Said<TypeParam>(good, {0}, {3}), "");
    EXPECT_EQ(Said<TypeParam>(good, {}, {}), "");
    for (size_t place = 0; place < count; ++place) {
      const std::string at = " at [" + std::to_string(place) + ", 0]; correct the inputs";
      std::vector<TypeParam> bad = good;
      bad[place] = 4;
      EXPECT_EQ(Said(bad, {0}, {3}), "expected 0 to 3 for x, got 4" + at);
      bad[place] = 0;
      EXPECT_EQ(Said(bad, {}, {}), "expected no zero for x, got 0" + at);
    }
  }
}

TYPED_TEST(Guard, Nothing) {
  EXPECT_EQ(Said<TypeParam>({}, {0}, {3}), "");
  EXPECT_EQ(Said<TypeParam>({}, {0, 0}, {3, 3}), "");
  EXPECT_EQ(Said<TypeParam>({}, {}, {}), "");
}

// Around the bounds and at the ends of the type, also where the range has most of its numbers.
TYPED_TEST(Guard, Boundaries) {
  const TypeParam least = Limits<TypeParam>::min(), most = Limits<TypeParam>::max();
  for (int64_t extent : {1, 2, 3, 100, 127}) {
    for (bool from_both_ends : {false, true}) {
      const int64_t low = from_both_ends ? -extent : 0, high = extent - 1;
      std::vector<TypeParam> values{0, 1, least, most, TypeParam(least + 1), TypeParam(most - 1)};
      for (int64_t value : {low - 1, low, low + 1, high - 1, high, high + 1}) {
        values.push_back(static_cast<TypeParam>(value));
      }
      for (TypeParam value : values) {
        const bool good =
            std::is_signed_v<TypeParam>
                ? static_cast<int64_t>(value) >= low && static_cast<int64_t>(value) <= high
                : static_cast<uint64_t>(value) <= static_cast<uint64_t>(high);
        for (size_t zeros : {1, 20}) {  // a few values, and many
          std::vector<TypeParam> values(zeros);
          values.push_back(value);
          EXPECT_EQ(Said(values, {low}, {high}).empty(), good)
              << int64_t(value) << " in " << low << " to " << high;
        }
      }
    }
  }
}

TYPED_TEST(Guard, NoZeroButAnythingElse) {
  const TypeParam least = Limits<TypeParam>::min(), most = Limits<TypeParam>::max();
  EXPECT_EQ(Said<TypeParam>({1, most, TypeParam(most / 2 + 1), TypeParam(-1)}, {}, {}), "");
  EXPECT_EQ(Said<TypeParam>({1, least}, {}, {}).empty(), least != 0);
}

// What is prepared once looks where the caller's memory is now.
TEST(Guards, FollowTheInput) {
  GraphSpec graph{};
  graph.tensors.push_back({{1}, {1}, {kDLInt, 32, 1}, Memory::kInput, 0, 0, 0});
  graph.inputs.push_back({"x", 0, 0});
  const std::vector<GuardSpec> specs{{0, {0}, {3}, "x"}};
  int32_t good = 3, bad = 4;
  MemoryMap memory;
  memory.inputs.push_back(reinterpret_cast<char*>(&good));
  BoundTensors tensors(graph, memory);
  const Guards guards(specs, &tensors);
  EXPECT_EQ(testing::ErrorOf([&] { guards.Check(); }), "");
  tensors.BindInput(0, reinterpret_cast<char*>(&bad));
  EXPECT_EQ(testing::ErrorOf([&] { guards.Check(); }),
            "expected 0 to 3 for x, got 4 at [0]; correct the inputs");
}

// Bounds that no value of the type reaches forbid nothing.
TYPED_TEST(Guard, BoundsBeyondTheType) {
  const TypeParam least = Limits<TypeParam>::min(), most = Limits<TypeParam>::max();
  EXPECT_EQ(Said<TypeParam>({least, 0, 1, TypeParam(most / 2), most}, {INT64_MIN}, {INT64_MAX}),
            sizeof(TypeParam) == 8 && least == 0
                ? "expected -9223372036854775808 to 9223372036854775807 for x, got "
                  "18446744073709551615 at [4, 0]; correct the inputs"
                : "");
}

// Each column has a range of its own, however many rows there are.
TYPED_TEST(Guard, Columns) {
  const std::vector<int64_t> low{0, -2, 0}, high{1, 1, 9};
  for (size_t rows : {1, 2, 85, 86, 87, 300}) {
    std::vector<TypeParam> good;
    for (size_t row = 0; row < rows; ++row) good.insert(good.end(), {1, 0, 9});
    EXPECT_EQ(Said(good, low, high), "");
    for (size_t row : {size_t{0}, rows / 2, rows - 1}) {
      std::vector<TypeParam> bad = good;
      bad[3 * row + 1] = 2;
      bad.back() = 10;
      EXPECT_EQ(Said(bad, low, high), "expected -2 to 1 for x, got 2 at [" + std::to_string(row) +
                                          ", 1]; correct the inputs");
    }
  }
}

}  // namespace
}  // namespace tvm_stretch
