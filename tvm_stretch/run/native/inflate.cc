#include "inflate.h"

#include <tvm/ffi/error.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

namespace tvm_stretch {
namespace {

namespace ffi = tvm::ffi;

constexpr int kLongestCode = 15;  // bits of a code
constexpr size_t kLiterals = 288, kDistances = 30, kLengthCodes = 19;
constexpr uint16_t kEndOfBlock = 256;  // of a block

[[noreturn]] void RefuseDeflated(const char* got) {
  TVM_FFI_THROW(ValueError) << "expected deflated bytes for an upload, got " << got
                            << "; send it again";
  TVM_FFI_UNREACHABLE();
}

// The bits of the input, lowest bit of each byte first; zeros after its end may be peeked at, but
// not consumed.
class BitStream {
 public:
  BitStream(const char* data, size_t bytes)
      : next_(reinterpret_cast<const uint8_t*>(data)), end_(next_ + bytes) {}

  uint32_t Peek(int count) {
    while (held_ < count && next_ != end_) {
      hold_ |= static_cast<uint64_t>(*next_++) << held_;
      held_ += 8;
    }
    return static_cast<uint32_t>(hold_ & ((uint64_t{1} << count) - 1));
  }
  void Drop(int count) {
    if (count > held_) RefuseDeflated("an end within a block");
    hold_ >>= count;
    held_ -= count;
  }
  uint32_t Take(int count) {
    const uint32_t value = Peek(count);
    Drop(count);
    return value;
  }
  void DropRestOfByte() { Drop(held_ % 8); }
  bool AtEnd() const { return next_ == end_ && held_ < 8; }

 private:
  const uint8_t* next_;
  const uint8_t* const end_;
  uint64_t hold_ = 0;
  int held_ = 0;
};

// Decodes symbols. Short codes use a table, longer ones go bit by bit: filling a table of all codes
// takes longer than reading a small block, and an attacker may send only small blocks.
class HuffmanCodes {
 public:
  explicit HuffmanCodes(const std::vector<uint8_t>& lengths) : symbols_(lengths.size()) {
    for (uint8_t length : lengths) ++count_[length];
    count_[0] = 0;
    std::array<uint32_t, kLongestCode + 1> next{}, place{};
    for (int bits = 1; bits <= kLongestCode; ++bits) {
      next[bits] = (next[bits - 1] + count_[bits - 1]) << 1;
      place[bits] = place[bits - 1] + count_[bits - 1];
      if (next[bits] + count_[bits] > uint32_t{1} << bits)
        RefuseDeflated("more codes than there can be");
    }
    for (size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      const int bits = lengths[symbol];
      if (bits == 0) continue;
      symbols_[place[bits]++] = static_cast<uint16_t>(symbol);
      const uint32_t code = Reversed(next[bits]++, bits);
      for (size_t i = code; bits <= kQuick && i < quick_.size(); i += size_t{1} << bits) {
        quick_[i] = {static_cast<uint16_t>(symbol), static_cast<uint8_t>(bits)};
      }
    }
  }

  uint16_t Next(BitStream* bits) const {
    const uint32_t seen = bits->Peek(kLongestCode);
    const Entry entry = quick_[seen % quick_.size()];
    if (entry.bits == 0) return NextOfMany(seen, bits);
    bits->Drop(entry.bits);
    return entry.symbol;
  }

 private:
  static constexpr int kQuick = 9;  // bits

  struct Entry {
    uint16_t symbol = 0;
    uint8_t bits = 0;  // 0: no code, or a longer one
  };

  // Codes of a length are numbers in a row, from twice the end of those that are one bit shorter.
  uint16_t NextOfMany(uint32_t seen, BitStream* bits) const {
    uint32_t code = 0, first = 0, place = 0;
    for (int length = 1; length <= kLongestCode; ++length, seen >>= 1) {
      code = code << 1 | (seen & 1);
      if (code - first < count_[length]) {
        bits->Drop(length);
        return symbols_[place + code - first];
      }
      place += count_[length];
      first = (first + count_[length]) << 1;
    }
    RefuseDeflated("a code that was not announced");
  }

  static uint32_t Reversed(uint32_t code, int bits) {
    uint32_t reversed = 0;
    for (int i = 0; i < bits; ++i) reversed |= (code >> i & 1) << (bits - 1 - i);
    return reversed;
  }

  std::array<uint32_t, kLongestCode + 1> count_{};  // of codes, by their length
  std::vector<uint16_t> symbols_;                   // in the order of their codes
  std::array<Entry, size_t{1} << kQuick> quick_{};
};

struct BlockCodes {
  HuffmanCodes literals;
  HuffmanCodes distances;
};

const BlockCodes& FixedCodes() {
  static const BlockCodes codes = [] {
    std::vector<uint8_t> lengths(kLiterals, 8);
    for (size_t i = 144; i < 256; ++i) lengths[i] = 9;
    for (size_t i = 256; i < 280; ++i) lengths[i] = 7;
    return BlockCodes{HuffmanCodes(lengths), HuffmanCodes(std::vector<uint8_t>(kDistances, 5))};
  }();
  return codes;
}

// A block begins with its code lengths, which are themselves coded; the lengths of that code come
// first.
BlockCodes ReadCodes(BitStream* bits) {
  constexpr uint8_t kLengthOrder[kLengthCodes] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                                  11, 4,  12, 3, 13, 2, 14, 1, 15};
  const size_t literals = 257 + bits->Take(5), distances = 1 + bits->Take(5);
  const size_t given = 4 + bits->Take(4);
  if (literals > kLiterals || distances > kDistances) RefuseDeflated("codes for too many symbols");
  std::vector<uint8_t> first(kLengthCodes);
  for (size_t i = 0; i < given; ++i) first[kLengthOrder[i]] = static_cast<uint8_t>(bits->Take(3));
  const HuffmanCodes of_lengths(first);
  std::vector<uint8_t> lengths;
  while (lengths.size() < literals + distances) {
    const uint16_t symbol = of_lengths.Next(bits);
    uint8_t length = 0;
    size_t times = 1;
    if (symbol < 16) {
      length = static_cast<uint8_t>(symbol);
    } else if (symbol == 16) {
      if (lengths.empty()) RefuseDeflated("a repetition of nothing");
      length = lengths.back();
      times = 3 + bits->Take(2);
    } else {
      times = symbol == 17 ? 3 + bits->Take(3) : 11 + bits->Take(7);
    }
    lengths.insert(lengths.end(), times, length);
  }
  if (lengths.size() != literals + distances) RefuseDeflated("more lengths than codes");
  const auto middle = lengths.begin() + static_cast<ptrdiff_t>(literals);
  return {HuffmanCodes({lengths.begin(), middle}), HuffmanCodes({middle, lengths.end()})};
}

// Base and number of extra bits of the lengths and distances of repetitions, by symbol.
struct LengthRange {
  uint16_t base;
  uint8_t bits;
};
constexpr LengthRange kRepeatRanges[] = {
    {3, 0},  {4, 0},  {5, 0},  {6, 0},   {7, 0},   {8, 0},   {9, 0},   {10, 0},  {11, 1}, {13, 1},
    {15, 1}, {17, 1}, {19, 2}, {23, 2},  {27, 2},  {31, 2},  {35, 3},  {43, 3},  {51, 3}, {59, 3},
    {67, 4}, {83, 4}, {99, 4}, {115, 4}, {131, 5}, {163, 5}, {195, 5}, {227, 5}, {258, 0}};
constexpr LengthRange kDistanceRanges[kDistances] = {
    {1, 0},     {2, 0},     {3, 0},     {4, 0},      {5, 1},      {7, 1},
    {9, 2},     {13, 2},    {17, 3},    {25, 3},     {33, 4},     {49, 4},
    {65, 5},    {97, 5},    {129, 6},   {193, 6},    {257, 7},    {385, 7},
    {513, 8},   {769, 8},   {1025, 9},  {1537, 9},   {2049, 10},  {3073, 10},
    {4097, 11}, {6145, 11}, {8193, 12}, {12289, 12}, {16385, 13}, {24577, 13}};

class Inflater {
 public:
  Inflater(const char* data, size_t bytes, size_t size) : bits_(data, bytes), size_(size) {
    out_.reserve(size);
  }

  std::string Run() {
    for (bool is_last = false; !is_last;) {
      is_last = bits_.Take(1) != 0;
      const uint32_t kind = bits_.Take(2);
      if (kind == 0) {
        Stored();
      } else if (kind == 1) {
        Compressed(FixedCodes());
      } else if (kind == 2) {
        Compressed(ReadCodes(&bits_));
      } else {
        RefuseDeflated("a kind of block that there is not");
      }
    }
    if (out_.size() != size_ || !bits_.AtEnd())
      RefuseDeflated("fewer bytes than announced, or more");
    return std::move(out_);
  }

 private:
  void Stored() {
    bits_.DropRestOfByte();
    const uint32_t length = bits_.Take(16), check = bits_.Take(16);
    if (length != (check ^ 0xffff)) RefuseDeflated("a damaged length");
    for (uint32_t i = 0; i < length; ++i) Add(static_cast<char>(bits_.Take(8)));
  }

  void Compressed(const BlockCodes& codes) {
    for (;;) {
      const uint16_t symbol = codes.literals.Next(&bits_);
      if (symbol == kEndOfBlock) return;
      if (symbol < kEndOfBlock) {
        Add(static_cast<char>(symbol));
        continue;
      }
      const size_t repeat = symbol - kEndOfBlock - 1u;
      if (repeat >= std::size(kRepeatRanges)) RefuseDeflated("a length that there is not");
      const size_t length = Read(kRepeatRanges[repeat]);
      const size_t distance = Read(kDistanceRanges[codes.distances.Next(&bits_)]);
      if (distance > out_.size()) RefuseDeflated("a repetition of what was not there");
      for (size_t i = 0; i < length; ++i) Add(out_[out_.size() - distance]);
    }
  }

  size_t Read(const LengthRange& range) { return range.base + bits_.Take(range.bits); }

  void Add(char byte) {
    if (out_.size() == size_) RefuseDeflated("more bytes than announced");
    out_.push_back(byte);
  }

  BitStream bits_;
  const size_t size_;
  std::string out_;
};

}  // namespace

std::string Inflate(const char* data, size_t bytes, size_t size) {
  return Inflater(data, bytes, size).Run();
}

}  // namespace tvm_stretch
