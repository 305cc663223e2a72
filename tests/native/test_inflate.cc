// Deflated uploads of strangers: refused, or as many bytes as they announced. What zlib writes is
// tested from Python (tests/unit/test_uploads.py).
#include <gtest/gtest.h>
#include <tvm/ffi/error.h>

#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "inflate.h"

namespace tvm_stretch {
namespace {

// "abcabcabc", as zlib writes it in fixed codes.
const unsigned char kFixed[] = {0x4b, 0x4c, 0x4a, 0x4e, 0x4, 0x23, 0x0};

bool IsRefused(const std::string& data, size_t size) {
  try {
    EXPECT_EQ(Inflate(data.data(), data.size(), size).size(), size);
    return false;
  } catch (const tvm::ffi::Error& error) {
    EXPECT_EQ(error.kind(), "ValueError");
    return true;
  }
}

TEST(Inflate, FixedCodes) {
  const std::string data(reinterpret_cast<const char*>(kFixed), sizeof(kFixed));
  EXPECT_EQ(Inflate(data.data(), data.size(), 9), "abcabcabc");
  EXPECT_TRUE(IsRefused(data, 8));
  EXPECT_TRUE(IsRefused(data + "x", 9));
  for (size_t end = 0; end < data.size(); ++end) EXPECT_TRUE(IsRefused(data.substr(0, end), 9));
}

TEST(Inflate, RandomBytes) {
  std::mt19937 dice(0);
  int refused = 0;
  for (int i = 0; i < 800; ++i) {
    std::string data(dice() % 200, 0);
    for (char& byte : data) byte = static_cast<char>(dice());
    if (!data.empty()) data[0] = static_cast<char>((data[0] & ~7) | (i % 4) << 1 | 1);
    refused += IsRefused(data, dice() % 1000);
  }
  EXPECT_GT(refused, 750);
}

using Field = std::pair<uint32_t, int>;  // bits, and how many

std::string Packed(const std::vector<Field>& block, int times) {
  std::string data;
  int used = 0;  // bits of the last byte
  for (int i = 0; i < times; ++i) {
    for (const auto& [bits, count] : block) {
      for (int bit = 0; bit < count; ++bit, used = (used + 1) % 8) {
        if (used == 0) data.push_back(0);
        data.back() = static_cast<char>(data.back() | (bits >> bit & 1) << used);
      }
    }
  }
  return data;
}

// Of 10 and of 92 bits, with codes of their own: what is set up for each must not cost more than
// reading it. Processor time, so that others on the machine do not matter.
TEST(Inflate, AMillionOfTheSmallestBlocksTakeNoTime) {
  const std::vector<Field> fixed = {{0, 1}, {1, 2}, {0, 7}};
  std::vector<Field> own = {{0, 1}, {2, 2}, {0, 5}, {0, 5}, {14, 4}};
  // Lengths of the codes of 16, 17, 18, 0, 8 ..., 14 and 1: that of 18 has one bit, two have two.
  for (int i = 0; i < 18; ++i) own.push_back({i == 2 ? 1 : i == 3 || i == 17 ? 2 : 0, 3});
  // 138 and 118 times none, one bit for the end of a block, none for distances; then that end.
  for (Field field : {Field{127 << 1, 8}, {107 << 1, 8}, {3, 2}, {1, 2}, {0, 1}}) {
    own.push_back(field);
  }
  for (const auto& block : {fixed, own}) {
    const int times = block == fixed ? 1'000'000 : 60'000;
    const std::clock_t start = std::clock();
    EXPECT_TRUE(IsRefused(Packed(block, times), 0));  // none is the last
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 3.0);
  }
}

}  // namespace
}  // namespace tvm_stretch
