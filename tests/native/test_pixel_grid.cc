// Which pixels of an image read a pixel of another one.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "pixel_grid.h"

namespace tvm_stretch {
namespace {

TensorSpec Image(int64_t rows, int64_t columns) {
  const int64_t bytes = 4 * rows * columns;
  return {{1, 1, rows, columns},
          {rows * columns, rows * columns, columns, 1},
          {kDLFloat, 32, 1},
          Memory::kArena,
          0,
          0,
          bytes};
}

bool Covers(const Windows& windows, int64_t place, int64_t pixel) {
  const int64_t first = place * windows.step - windows.padding;
  return pixel >= first && pixel < first + windows.size;
}

TEST(PixelGrid, MarksThePixelsWhoseWindowsHaveAMark) {
  std::mt19937 random(0);
  const auto draw = [&](int low, int high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int turn = 0; turn < 300; ++turn) {
    const Windows rows{draw(1, 3), draw(0, 3), draw(1, 7)};
    const Windows columns{draw(1, 3), draw(0, 3), draw(1, 7)};
    const PixelGrid from(Image(draw(1, 9), draw(1, 20)), nullptr);
    const PixelGrid to(Image(draw(1, 9), draw(1, 20)), nullptr);
    Marks marks(from.rows() * from.columns(), 0), reached(to.rows() * to.columns(), 0);
    for (int64_t i = draw(0, 3); i > 0; --i) marks[draw(0, static_cast<int>(marks.size()) - 1)] = 1;
    to.MarkReached(from, marks, rows, columns, &reached);
    for (int64_t y = 0; y < to.rows(); ++y) {
      for (int64_t x = 0; x < to.columns(); ++x) {
        bool any = false;
        for (int64_t i = 0; i < static_cast<int64_t>(marks.size()); ++i) {
          any |= marks[i] != 0 && Covers(rows, y, i / from.columns()) &&
                 Covers(columns, x, i % from.columns());
        }
        EXPECT_EQ(reached[y * to.columns() + x] != 0, any) << turn << ": " << y << ", " << x;
      }
    }
  }
}

TEST(PixelGrid, MarksWholeTiles) {
  const PixelGrid grid(Image(6, 7), nullptr);
  Marks marks(42, 0);
  marks[1 * 7 + 2] = marks[5 * 7 + 6] = 1;
  grid.MarkTiles(4, &marks);
  for (int64_t y = 0; y < 6; ++y) {
    for (int64_t x = 0; x < 7; ++x) EXPECT_EQ(marks[y * 7 + x] != 0, (y < 4) == (x < 4));
  }
}

}  // namespace
}  // namespace tvm_stretch
