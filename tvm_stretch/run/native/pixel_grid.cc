#include "pixel_grid.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "sizes.h"

namespace tvm_stretch {
namespace {

// Marks the pixels of a row that differ by more than `most`; NaN always does.
void MarkFloats(const float* one, const float* two, int64_t columns, int64_t numbers, float most,
                char* marks) {
  for (int64_t x = 0; x < columns; ++x, one += numbers, two += numbers) {
    int32_t far = 0;  // as wide as the numbers, so that compilers compare vectors of them
    for (int64_t i = 0; i < numbers; ++i) far |= !(std::fabs(one[i] - two[i]) <= most);
    marks[x] |= far != 0;
  }
}

void MarkBytes(const char* one, const char* two, int64_t columns, int64_t bytes, char* marks) {
  if (std::memcmp(one, two, columns * bytes) == 0) return;
  for (int64_t x = 0; x < columns; ++x, one += bytes, two += bytes) {
    // a call for each number of a plain image would take longer than the rest of a frame's check
    marks[x] |= bytes == 4 ? std::memcmp(one, two, 4) != 0 : std::memcmp(one, two, bytes) != 0;
  }
}

// Adds marks to others; of these every `step`-th one.
void AddMarks(const char* __restrict from, int64_t step, int64_t count, char* __restrict to) {
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] |= from[i];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] |= from[i * step];
  }
}

// Calls visit(first, end) for each run of marked pixels, or of others.
template <typename Visit>
void ForEachRun(const char* marks, int64_t columns, char wanted, const Visit& visit) {
  for (int64_t x = 0; x < columns;) {
    if (marks[x] != wanted) {
      ++x;
      continue;
    }
    const int64_t first = x;
    while (x < columns && marks[x] == wanted) ++x;
    visit(first, x);
  }
}

}  // namespace

PixelGrid::PixelGrid(const TensorSpec& tensor, char* data)
    : data_(data),
      is_float_(tensor.dtype.code == kDLFloat && tensor.dtype.bits == 32 &&
                tensor.dtype.lanes == 1),
      pixel_(tensor.bytes) {
  const int64_t item = (tensor.dtype.bits + 7) / 8 * tensor.dtype.lanes;
  const std::vector<int64_t>&shape = tensor.shape, &strides = tensor.strides;
  const int64_t numbers = Product(shape.begin(), shape.end());
  if ((shape.size() != 4 && shape.size() != 5) || numbers == 0) {
    is_regular_ = tensor.bytes == numbers * item;
    return;
  }
  const int64_t width = shape[kRowAxis + 1];
  const int64_t lanes = shape.size() == 5 ? shape[4] : 1;
  const bool is_packed = (lanes == 1 || strides.back() == 1) &&
                         (width == 1 || strides[kRowAxis + 1] == lanes) &&
                         (shape[0] == 1 || strides[0] == shape[1] * strides[1]);
  is_regular_ = is_packed;
  if (!is_packed) return;
  rows_ = shape[kRowAxis];
  columns_ = width;
  pieces_ = shape[0] * shape[1];
  pixel_ = lanes * item;
  step_ = strides[kRowAxis] * item;
  pitch_ = strides[1] * item;
}

bool PixelGrid::Matches(const PixelGrid& other, int64_t bytes) const {
  const bool alike = is_regular_ && other.is_regular_ && rows_ == other.rows_ &&
                     columns_ == other.columns_ && pixel_ == other.pixel_ && step_ == other.step_ &&
                     pitch_ == other.pitch_;
  return alike && pitch_ != 0 && bytes % pitch_ == 0;
}

void PixelGrid::Save(const Area& area, std::vector<char>* to) const {
  const int64_t columns = area.right - area.left, bytes = columns * pixel_;
  size_t next = to->size();
  to->resize(next + (area.bottom - area.top) * pieces_ * bytes);
  for (int64_t row = area.top; row < area.bottom; ++row) {
    for (int64_t piece = 0; piece < pieces_; ++piece, next += bytes) {
      std::memcpy(to->data() + next, Place(piece, row, area.left), bytes);
    }
  }
}

void PixelGrid::Compare(const Area& area, double most, const char** from, Marks* changed) const {
  const int64_t columns = area.right - area.left, bytes = columns * pixel_;
  for (int64_t row = area.top; row < area.bottom; ++row, *from += pieces_ * bytes) {
    char* marks = changed->data() + row * columns_ + area.left;
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      const char *own = Place(piece, row, area.left), *old = *from + piece * bytes;
      if (most > 0.0 && is_float_) {
        MarkFloats(reinterpret_cast<const float*>(own), reinterpret_cast<const float*>(old),
                   columns, pixel_ / 4, static_cast<float>(most), marks);
      } else {
        MarkBytes(own, old, columns, pixel_, marks);
      }
    }
    if (most == 0.0) continue;
    ForEachRun(marks, columns, 0, [&](int64_t first, int64_t end) {
      for (int64_t piece = 0; piece < pieces_; ++piece) {
        std::memcpy(Place(piece, row, area.left + first), *from + piece * bytes + first * pixel_,
                    (end - first) * pixel_);
      }
    });
  }
}

void PixelGrid::Mark(const Area& area, Marks* changed) const {
  for (int64_t row = area.top; row < area.bottom; ++row) {
    std::memset(changed->data() + row * columns_ + area.left, 1, area.right - area.left);
  }
}

void PixelGrid::MarkReached(const PixelGrid& from, const Marks& marks, const Windows& rows,
                            const Windows& columns, Marks* reached) const {
  const auto first = [](const Windows& windows, int64_t i) {
    return i * windows.step - windows.padding;
  };
  Marks read(from.columns_);  // of the rows that a row's windows cover
  for (int64_t y = 0; y < rows_; ++y) {
    std::fill(read.begin(), read.end(), 0);
    const int64_t end = std::min(from.rows_, first(rows, y) + rows.size);
    for (int64_t row = std::max<int64_t>(0, first(rows, y)); row < end; ++row) {
      AddMarks(marks.data() + row * from.columns_, 1, from.columns_, read.data());
    }
    if (std::memchr(read.data(), 1, read.size()) == nullptr) continue;
    char* own = reached->data() + y * columns_;
    for (int64_t i = -columns.padding; i < columns.size - columns.padding; ++i) {
      // the pixels whose windows have a column of the image at this place
      const int64_t before = i < 0 ? (-i + columns.step - 1) / columns.step : 0;
      const int64_t least = from.columns_ - 1 - i;
      const int64_t after = least < 0 ? 0 : std::min(columns_, least / columns.step + 1);
      if (before >= after) continue;
      AddMarks(read.data() + before * columns.step + i, columns.step, after - before, own + before);
    }
  }
}

void PixelGrid::MarkTiles(int64_t side, Marks* marks) const {
  Marks row(columns_);  // of the rows of a tile
  for (int64_t top = 0; top < rows_; top += side) {
    const int64_t end = std::min(rows_, top + side);
    std::fill(row.begin(), row.end(), 0);
    for (int64_t y = top; y < end; ++y) {
      AddMarks(marks->data() + y * columns_, 1, columns_, row.data());
    }
    for (int64_t x = 0; x < columns_; x += side) {
      const int64_t count = std::min(side, columns_ - x);
      if (std::memchr(&row[x], 1, count) != nullptr) std::memset(&row[x], 1, count);
    }
    for (int64_t y = top; y < end; ++y) {
      std::copy(row.begin(), row.end(), marks->begin() + y * columns_);
    }
  }
}

void PixelGrid::Take(const char* image, double most, bool all, Marks* changed) const {
  if (all) std::fill(changed->begin(), changed->end(), 1);
  const int64_t bytes = columns_ * pixel_;
  for (int64_t row = 0; row < rows_; ++row) {
    char* marks = changed->data() + row * columns_;
    for (int64_t piece = 0; piece < pieces_ && !all; ++piece) {
      const char *own = Place(piece, row, 0), *other = image + (own - data_);
      if (most > 0.0 && is_float_) {
        MarkFloats(reinterpret_cast<const float*>(own), reinterpret_cast<const float*>(other),
                   columns_, pixel_ / 4, static_cast<float>(most), marks);
      } else {
        MarkBytes(own, other, columns_, pixel_, marks);
      }
    }
    if (std::memchr(marks, 1, columns_) == nullptr) continue;
    for (int64_t piece = 0; piece < pieces_; ++piece) {
      char* own = Place(piece, row, 0);
      const char* other = image + (own - data_);
      if (all) {
        std::memcpy(own, other, bytes);
        continue;
      }
      ForEachRun(marks, columns_, 1, [&](int64_t first, int64_t end) {
        std::memcpy(own + first * pixel_, other + first * pixel_, (end - first) * pixel_);
      });
    }
  }
}

double PixelGrid::Largest() const {
  if (!is_float_ || !is_regular_) return 0.0;
  float largest = 0.0f;
  for (int64_t piece = 0; piece < pieces_; ++piece) {
    for (int64_t row = 0; row < rows_; ++row) {
      const auto* numbers = reinterpret_cast<const float*>(Place(piece, row, 0));
      for (int64_t i = 0; i < columns_ * pixel_ / 4; ++i) {
        largest = std::max(largest, std::fabs(numbers[i]));
      }
    }
  }
  return largest;
}

}  // namespace tvm_stretch
