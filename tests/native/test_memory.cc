// Copies between strided tensors, aligned memory, fingerprints.
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "graph.h"
#include "memory.h"
#include "ports.h"

namespace tvm_stretch {
namespace {

// A tensor of floats in `data`; `offset` and `strides` count elements.
struct Strided {
  std::vector<float>& data;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t offset = 0;

  DLTensor view() {
    DLTensor tensor{};
    tensor.data = data.data();
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = DLDataType{kDLFloat, 32, 1};
    tensor.shape = shape.data();
    tensor.strides = strides.empty() ? nullptr : strides.data();
    tensor.byte_offset = static_cast<uint64_t>(offset) * sizeof(float);
    return tensor;
  }
};

std::vector<float> Counting(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

std::vector<float> Gathered(Strided tensor, size_t count) {
  std::vector<float> result(count, -1);
  CopyToContiguous(tensor.view(), reinterpret_cast<char*>(result.data()));
  return result;
}

TEST(Copy, Contiguous) {
  std::vector<float> data = Counting(6);
  EXPECT_EQ(Gathered({data, {2, 3}, {}}, 6), data);
  EXPECT_EQ(Gathered({data, {2, 3}, {3, 1}}, 6), data);
}

TEST(Copy, Transposed) {
  std::vector<float> data = Counting(6);
  EXPECT_EQ(Gathered({data, {3, 2}, {1, 3}}, 6), (std::vector<float>{0, 3, 1, 4, 2, 5}));
}

TEST(Copy, RowsOfAWiderTensor) {
  std::vector<float> data = Counting(12);
  EXPECT_EQ(Gathered({data, {2, 2}, {6, 1}, 1}, 4), (std::vector<float>{1, 2, 7, 8}));
}

TEST(Copy, Backwards) {
  std::vector<float> data = Counting(4);
  EXPECT_EQ(Gathered({data, {4}, {-1}, 3}, 4), (std::vector<float>{3, 2, 1, 0}));
}

TEST(Copy, Broadcast) {
  std::vector<float> data = Counting(2);
  EXPECT_EQ(Gathered({data, {2, 2}, {0, 1}}, 4), (std::vector<float>{0, 1, 0, 1}));
}

TEST(Copy, ScalarAndEmpty) {
  std::vector<float> data = Counting(3);
  EXPECT_EQ(Gathered({data, {}, {}, 2}, 1), (std::vector<float>{2}));
  EXPECT_EQ(Gathered({data, {3, 0}, {7, 1}}, 1), (std::vector<float>{-1}));
}

TEST(Copy, Back) {
  std::vector<float> data(12, -1);
  std::vector<float> rows = Counting(4);
  CopyFromContiguous(reinterpret_cast<const char*>(rows.data()),
                     Strided{data, {2, 2}, {6, 1}, 1}.view());
  EXPECT_EQ(data, (std::vector<float>{-1, 0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1}));
}

TEST(AlignedBuffer, IsAlignedZeroedAndWritable) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, (size_t{2} << 20) + 1}) {
    AlignedBuffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
    for (size_t i = 0; i < bytes; i += 1024) EXPECT_EQ(buffer.data()[i]++, 0);
  }
}

TEST(AlignedBuffer, TooMuchIsAnError) { EXPECT_THROW(AlignedBuffer(size_t{1} << 62), ffi::Error); }

TEST(IsUsableInPlace, NeedsAlignmentAndContiguity) {
  AlignedBuffer memory(4096);
  int64_t shape[] = {4, 4}, transposed[] = {1, 4};
  DLTensor tensor{memory.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, nullptr, 0};
  EXPECT_TRUE(IsUsableInPlace(tensor));
  tensor.byte_offset = 64;
  EXPECT_TRUE(IsUsableInPlace(tensor));
  tensor.byte_offset = 32;
  EXPECT_FALSE(IsUsableInPlace(tensor));
  tensor.byte_offset = 0;
  tensor.strides = transposed;
  EXPECT_FALSE(IsUsableInPlace(tensor));
}

TEST(Fingerprint, EveryByteAndTheLengthCount) {
  std::vector<char> data(100, 0);
  std::set<uint64_t> seen;
  for (size_t size = 0; size <= data.size(); ++size) seen.insert(Fingerprint(data.data(), size));
  EXPECT_EQ(seen.size(), 101u);
  for (char& byte : data) {
    byte = 1;
    seen.insert(Fingerprint(data.data(), data.size()));
    byte = 0;
  }
  EXPECT_EQ(seen.size(), 201u);
}

TEST(NewTensor, LargeOnesTakeTheBlocksOfFreedOnes) {
  constexpr DLDataType kFloat{kDLFloat, 32, 1};
  const auto first_of = [](const ffi::Tensor& tensor) {
    return static_cast<float*>(tensor.GetDLTensorPtr()->data);
  };
  ffi::Tensor tensor = NewTensor({1000, 1000}, kFloat);
  float* const block = first_of(tensor);
  block[999] = 42.0f;
  tensor = NewTensor({1000, 1001}, kFloat);  // another size, while the first one is in use
  EXPECT_NE(first_of(tensor), block);
  const ffi::Tensor same = NewTensor({1000000}, kFloat);
  EXPECT_EQ(first_of(same), block);
  EXPECT_EQ(block[999], 42.0f);  // new pages would be zero
  EXPECT_NE(first_of(NewTensor({1000000}, kFloat)), block);
}

TEST(NewTensor, NotAllFreedBlocksAreKept) {
  constexpr DLDataType kByte{kDLUInt, 8, 1};
  std::vector<ffi::Tensor> tensors;
  for (int64_t i = 0; i < 20; ++i) tensors.push_back(NewTensor({(1 << 20) + i * 64}, kByte));
  tensors.clear();
  NewTensor({int64_t{65} << 20}, kByte);  // too large to keep
  const ffi::Tensor last = NewTensor({(1 << 20) + 19 * 64}, kByte);
  EXPECT_NE(last.GetDLTensorPtr()->data, nullptr);
}

}  // namespace
}  // namespace tvm_stretch
