"""Kernels that compute only a rectangle of their output, for streams of frames.

    conv2d(data, weight, out)   ->   conv2d(data, weight, out, [top, bottom, left, right])

A frame of a video resembles the one before, and feature maps keep the pixels that did not change.
The template that writes the loop nest clips its loops. A nest may compute more pixels than asked
for, up to the ends of its register tiles: their inputs are the same, so their values are too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from .loops import Index, TileRun, const, load

RECTANGLE = "tvm_stretch.rectangle"
"""Attribute of kernels whose last parameter is the rectangle that they compute."""


@dataclass(frozen=True)
class Rectangle:
    """The pixels that a call computes."""

    buffer: tirx.Buffer  # four integers: top, bottom, left, right, without the ends

    def rows(self, first: Index, count: Index, row: int = 1, image: int = 1) -> tuple[Expr, Expr]:
        """The part of ``count`` rows from ``first`` on that the call computes.

        ``row`` pixels may be a row of the nest where ``image`` pixels are a row of the image.
        """
        low, high = load(self.buffer, 0), load(self.buffer, 1)
        low, high = low * image // row, (high * image + (row - 1)) // row
        begin = tirx.max(const(first), low)
        end = tirx.min(const(first) + const(count), high)
        return begin, tirx.max(const(0), end - begin)

    def tiles(
        self, run: TileRun[Any], body: Callable[[Index, Callable[[Expr], Expr]], tirx.Stmt]
    ) -> tirx.Stmt:
        """``body(count, place)`` for the tiles of a run that have a pixel of the rectangle.

        ``place`` maps the number of a tile among those to its number in the run.
        """
        left, right = load(self.buffer, 2), load(self.buffer, 3)
        if run.count == 1:
            meets = tirx.all(left < run.start + run.width, right > run.start)
            return tirx.IfThenElse(meets, body(1, lambda t: t), None)
        begin = tirx.max(left - run.start, const(0)) // run.width
        end = (tirx.max(right - run.start, const(0)) + (run.width - 1)) // run.width
        begin, end = (tirx.min(place, const(run.count)) for place in (begin, end))
        return body(tirx.max(const(0), end - begin), lambda t: begin + t)

    def meets(self, first: tuple[Expr, Expr], size: tuple[int, int]) -> Expr:
        """Whether the call computes a pixel of an area."""
        top, bottom, left, right = (load(self.buffer, i) for i in range(4))
        (y, x), (height, width) = first, size
        return tirx.all(y < bottom, y + height > top, x < right, x + width > left)
