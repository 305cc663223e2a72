// What stands for the headers that TVM's wheel leaves out, where the runtime is built from source.
#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <string>
#include <vector>

#include "tvm_stretch/phone/tvm_runtime/support.h"

namespace {

namespace support = tvm::support;
namespace ffi = tvm::ffi;

// The bytes of a session come and go in pieces of any size.
TEST(RingBuffer, GivesBytesInTheirOrder) {
  std::mt19937 random(1);
  std::deque<char> expected;
  support::RingBuffer buffer;
  for (int step = 0; step < 20000; ++step) {
    const size_t size = random() % (step % 100 == 0 ? 5000 : 60);
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    switch (random() % 4) {
      case 0:
        buffer.Write(bytes.data(), size);
        expected.insert(expected.end(), bytes.begin(), bytes.end());
        break;
      case 1: {  // the socket has less than was asked for
        const size_t part = size / 2;
        const size_t received = buffer.WriteWithCallback(
            [&](void* data, size_t most) {
              EXPECT_EQ(most, size);
              std::memcpy(data, bytes.data(), part);
              return part;
            },
            size);
        EXPECT_EQ(received, part);
        expected.insert(expected.end(), bytes.begin(), bytes.begin() + static_cast<long>(part));
        break;
      }
      case 2: {
        const size_t count = std::min(size, expected.size());
        std::string got(count, '\0');
        buffer.Read(got.data(), count);
        for (char byte : got) {
          ASSERT_EQ(byte, expected.front());
          expected.pop_front();
        }
        break;
      }
      default: {  // the socket takes less than there is
        buffer.ReadWithCallback(
            [&](const void* data, size_t most) {
              const size_t taken = most / 2;
              for (size_t i = 0; i < taken; ++i) {
                EXPECT_EQ(static_cast<const char*>(data)[i], expected.front());
                expected.pop_front();
              }
              return taken;
            },
            size);
      }
    }
    ASSERT_EQ(buffer.bytes_available(), expected.size());
  }
  std::string more(expected.size() + 1, '\0');
  EXPECT_THROW(buffer.Read(more.data(), more.size()), ffi::Error);
}

TEST(Stream, ReadsWhatItWrote) {
  std::string bytes;
  support::BytesOutStream out(&bytes);
  const std::vector<std::string> names = {"", "a", std::string("b\0c", 3)};
  const ffi::Array<ffi::String> texts = {"x", "yz"};
  out.Write(names);
  out.Write(texts);
  out.Write(DLDataType{2, 32, 4});
  out.Write(int16_t{-2});
  EXPECT_EQ(bytes.size(), 8 + 24 + 4 + 8 + 16 + 3 + 4 + 2);
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    support::BytesInStream in(part);
    std::vector<std::string> got;
    ffi::Array<ffi::String> words;
    DLDataType type{};
    int16_t number = 0;
    const bool complete = in.Read(&got) && in.Read(&words) && in.Read(&type) && in.Read(&number);
    ASSERT_EQ(complete, size == bytes.size());
    if (!complete) continue;
    EXPECT_EQ(got, names);
    EXPECT_EQ(std::string(words[1]), "yz");
    EXPECT_EQ(type.lanes, 4);
    EXPECT_EQ(number, -2);
  }
}

TEST(Stream, BelievesNoCount) {  // of 2^60 elements
  const std::string bytes(
      "\0\0\0\0\0\0\0\x10"
      "abc",
      11);
  support::BytesInStream in(bytes);
  std::string text;
  EXPECT_FALSE(in.Read(&text));
}

TEST(Base64, ComesBack) {
  for (size_t size = 0; size < 9; ++size) {
    std::string text, bytes(size, '\xf0');
    support::BytesOutStream inner(&text);
    support::Base64OutStream out(&inner);
    out.Write(bytes.data(), size);
    out.Finish();
    support::BytesInStream encoded(text);
    support::Base64InStream in(&encoded);
    in.InitPosition();
    std::string got(size + 1, '\0');
    EXPECT_EQ(in.Read(got.data(), got.size()), size);
    EXPECT_EQ(got.substr(0, size), bytes);
  }
}

TEST(Arena, AlignsAndForgets) {
  support::Arena arena;
  for (size_t count : {1, 3, 1000}) {
    double* numbers = arena.allocate_<double>(count);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(numbers) % alignof(double), 0);
    numbers[count - 1] = 1;
  }
  arena.RecycleAll();
}

TEST(Words, AreComparedAndCounted) {
  EXPECT_TRUE(support::StartsWith("abc", "ab") && !support::StartsWith("a", "ab"));
  EXPECT_TRUE(support::IsNumber("012") && !support::IsNumber("") && !support::IsNumber("1a"));
}

}  // namespace
