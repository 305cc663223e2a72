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

double SecondsToRefuse(const std::string& data, size_t size) {
  const std::clock_t start = std::clock();  // of this process: others on the machine do not matter
  EXPECT_TRUE(IsRefused(data, size));
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Setting up the codes of a block must not cost much more than reading it, or an upload of small
// blocks would occupy a phone. The bounds are in literals, so that they hold on any machine.
TEST(Inflate, TheSmallestBlocksCostFewLiterals) {
  const int literals = 1'000'000;
  std::vector<Field> plain = {{0, 1}, {1, 2}, {0, 7}};
  plain.insert(plain.end() - 1, 1000, {0x0c, 8});
  const std::vector<Field> fixed = {{0, 1}, {1, 2}, {0, 7}};
  std::vector<Field> own = {{0, 1}, {2, 2}, {0, 5}, {0, 5}, {14, 4}};
  // Lengths of the codes of 16, 17, 18, 0, 8 ..., 14 and 1: that of 18 has one bit, two have two.
  for (int i = 0; i < 18; ++i) own.push_back({i == 2 ? 1 : i == 3 || i == 17 ? 2 : 0, 3});
  // 138 and 118 times none, one bit for the end of a block, none for distances; then that end.
  for (Field field : {Field{127 << 1, 8}, {107 << 1, 8}, {3, 2}, {1, 2}, {0, 1}}) {
    own.push_back(field);
  }
  const double literal = SecondsToRefuse(Packed(plain, literals / 1000), literals + 1) / literals;
  // Measured with sanitizers: 500 and 1; 15,000 with a table of all codes of 15 bits.
  EXPECT_LT(SecondsToRefuse(Packed(own, 20'000), 0) / 20'000, 3000 * literal);
  EXPECT_LT(SecondsToRefuse(Packed(fixed, 300'000), 0) / 300'000, 20 * literal);
}

}  // namespace
}  // namespace tvm_stretch
