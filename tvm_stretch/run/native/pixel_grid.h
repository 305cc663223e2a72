// The pixels of a tensor: NCHW or NCHW[c] images have rows and columns, other tensors are one
// pixel.
#pragma once

#include <cstdint>
#include <vector>

#include "graph.h"

namespace tvm_stretch {

// Rows top to bottom - 1, columns left to right - 1.
struct Area {
  int64_t top, bottom, left, right;
};

using Marks = std::vector<char>;  // for each pixel, row by row

// The windows of one axis: their step, the padding before the first pixel, and their size.
struct Windows {
  int64_t step, padding, size;
};

class PixelGrid {
 public:
  // The dimension of rows, which that of columns follows.
  static constexpr size_t kRowAxis = 2;

  PixelGrid(const TensorSpec& tensor, char* data);

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  Area whole() const { return {0, rows_, 0, columns_}; }
  // Whether the tensor is an image, or contiguous; otherwise pixels cannot be copied and compared.
  bool is_regular() const { return is_regular_; }
  // Whether the pixels of both lie at the same places if `bytes` are between their first ones.
  bool Matches(const PixelGrid& other, int64_t bytes) const;

  // Appends the pixels of an area, and marks those that differ from appended ones by more than
  // `most`; takes back those that do not, if `most` is not 0. `from` advances to the next area.
  void Save(const Area& area, std::vector<char>* to) const;
  void Compare(const Area& area, double most, const char** from, Marks* changed) const;

  void Mark(const Area& area, Marks* changed) const;

  // Marks the pixels whose windows on another image have a marked pixel.
  void MarkReached(const PixelGrid& from, const Marks& marks, const Windows& rows,
                   const Windows& columns, Marks* reached) const;

  // Marks all pixels of square tiles that have a marked pixel.
  void MarkTiles(int64_t side, Marks* marks) const;

  // Copies the pixels that differ from an image of the same layout by more than `most`, or all
  // pixels, and marks them.
  void Take(const char* image, double most, bool all, Marks* changed) const;

  // The largest absolute number; 0 if the numbers are not float32.
  double Largest() const;

 private:
  char* Place(int64_t piece, int64_t row, int64_t column) const {
    return data_ + piece * pitch_ + row * step_ + column * pixel_;
  }

  char* data_;
  bool is_float_;
  bool is_regular_ = true;
  int64_t rows_ = 1, columns_ = 1;
  int64_t pieces_ = 1;  // of a pixel: its blocks of channels in all images
  int64_t pixel_;       // bytes of a piece
  int64_t step_ = 0;    // bytes from a row to the next
  int64_t pitch_ = 0;   // bytes from a piece to the next
};

}  // namespace tvm_stretch
