// Deflated uploads of strangers: refused, or as many bytes as they announced. What zlib writes is
// tested from Python (tests/unit/test_uploads.py).
#include <gtest/gtest.h>
#include <tvm/ffi/error.h>

#include <random>
#include <string>

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

}  // namespace
}  // namespace tvm_stretch
