"""Elements of tensors at places that are known when compiling, which both frontends take.

pad of 5 pixels by 2, reflecting         ->  take(x, [2, 1, 0, 1, 2, 3, 4, 3, 2])
Col2Im and fold, x: (N, C * 3 * 3, L)    ->  take(x, indices) -> sum: each pixel's elements
MaxPool's places, x: (N, C, H, W)        ->  take(x, places) -> argmax -> take(places)

A place counts the elements of a channel. The first of equal numbers counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import ends_of, shape_of
from tvm_stretch.read.network_limits import MOST_TABLE_ELEMENTS, too_large


@dataclass(frozen=True)
class Pool:
    """The windows of a pool along each axis; ``result`` is its whole shape."""

    kernel: Sequence[int]
    stride: Sequence[int]
    before: Sequence[int]
    dilation: Sequence[int]
    result: Sequence[int]
    last_first: bool = False  # whether places count along the first axis first

    def sources(self, sizes: Sequence[int]) -> np.ndarray:
        """The place of each element of each window, (elements, windows); -1 outside."""
        rank = len(sizes)
        taps = np.indices((*self.kernel, *self.result[2:])).reshape(2 * rank, -1)
        places = [
            taps[rank + a] * self.stride[a] + taps[a] * self.dilation[a] - self.before[a]
            for a in range(rank)
        ]
        inside = np.logical_and.reduce(
            [(p >= 0) & (p < s) for p, s in zip(places, sizes, strict=True)]
        )
        flat = np.ravel_multi_index([np.where(inside, p, 0) for p in places], tuple(sizes))
        return np.where(inside, flat, -1).reshape(prod(self.kernel), -1)


def place_of_largest(
    emit: Callable[[relax.Expr], relax.Var], x: relax.Expr, pool: Pool
) -> relax.Var:
    """The places as int64, in the shape of the pool's result."""
    batch, channels, *sizes = shape_of(x)
    windows = prod(pool.result[2:])
    table_sizes = (prod(pool.kernel), windows)
    if error := too_large("a table of a pool's places", table_sizes, MOST_TABLE_ELEMENTS):
        raise error
    sources = pool.sources(sizes)
    flat = emit(relax.op.reshape(x, relax.ShapeExpr([batch, channels, prod(sizes)])))
    taken = emit(relax.op.take(flat, relax.const(sources.clip(0), "int32"), 2, mode="clip"))
    dtype = str(x.ty.dtype)
    lowest, _ = ends_of(dtype)
    inside = relax.const((sources >= 0)[None, None], "bool")
    shown = emit(relax.op.where(inside, taken, relax.const(lowest, dtype)))
    chosen = emit(relax.op.argmax(shown, 2))
    # the chosen row of the column of each window
    columns = relax.const(np.arange(windows), "int64")
    rows = emit(relax.op.multiply(chosen, relax.const(windows, "int64")))
    named = np.arange(prod(sizes)).reshape(sizes)
    if pool.last_first:
        named = named.reshape(sizes[::-1]).T
    table = relax.const(named.reshape(-1)[sources.reshape(-1)], "int64")
    places = emit(relax.op.take(table, emit(relax.op.add(rows, columns)), 0, mode="clip"))
    return emit(relax.op.reshape(places, relax.ShapeExpr(pool.result)))


def gathered(
    emit: Callable[[relax.Expr], relax.Expr], x: relax.Expr, places: Mapping[int, Any]
) -> relax.Expr:
    """The elements at the places of each axis; other axes stay as they are."""
    for axis, indices in places.items():
        x = emit(relax.op.take(x, relax.const(indices, "int32"), axis, mode="clip"))
    return x


def padded(size: int, pair: Sequence[int], mode: Any) -> Any:
    """Where each element of a padded axis comes from; ``mode`` is one of NumPy's."""
    return np.pad(np.arange(size), tuple(pair), mode)


@dataclass(frozen=True)
class Windows:
    """How windows lie on an image, for each of its axes; ``before`` and ``after`` are padding."""

    size: Sequence[int]
    kernel: Sequence[int]
    dilation: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    stride: Sequence[int]

    @property
    def counts(self) -> list[int]:
        """The number of windows along each axis."""
        axes = zip(
            self.size, self.kernel, self.dilation, self.before, self.after, self.stride, strict=True
        )
        return [1 + (s + b + a - d * (k - 1) - 1) // t for s, k, d, b, a, t in axes]

    def sources(self) -> np.ndarray:
        """The elements that fall on each pixel, one per row; missing ones are `elements`."""
        rank = len(self.size)
        taps = np.indices((*self.kernel, *self.counts)).reshape(2 * rank, -1)
        places = [
            taps[rank + a] * self.stride[a] + taps[a] * self.dilation[a] - self.before[a]
            for a in range(rank)
        ]
        within = [(p >= 0) & (p < s) for p, s in zip(places, self.size, strict=True)]
        inside = np.logical_and.reduce(within)
        pixels = np.ravel_multi_index([p[inside] for p in places], tuple(self.size))
        order = np.argsort(pixels, kind="stable")
        elements, pixels = np.flatnonzero(inside)[order], pixels[order]
        counts = np.bincount(pixels, minlength=prod(self.size))
        row = np.arange(len(pixels)) - np.repeat(np.cumsum(counts) - counts, counts)
        sources = np.full((max(counts.max(), 1), prod(self.size)), self.elements)
        sources[row, pixels] = elements
        return sources

    @property
    def elements(self) -> int:
        """The number of elements of all windows of one channel."""
        return prod(self.kernel) * prod(self.counts)


def fold(emit: Callable[[relax.Expr], relax.Var], x: relax.Expr, windows: Windows) -> relax.Var:
    """The image that the windows of ``x`` add up to; axes before the last two stay."""
    *outer, rows, _ = (int(extent) for extent in x.ty.shape.values)
    channels = rows // prod(windows.kernel)
    axis = len(outer) + 1
    x = emit(relax.op.reshape(x, relax.ShapeExpr([*outer, channels, windows.elements])))
    sources = windows.sources()
    if sources.max() == windows.elements:  # a zero for pixels with fewer summands
        x = emit(relax.op.nn.pad(x, [0] * (2 * axis) + [0, 1]))
    x = emit(relax.op.take(x, relax.const(sources, "int64"), axis))
    x = emit(relax.op.sum(x, axis) if len(sources) > 1 else relax.op.squeeze(x, axis))
    return emit(relax.op.reshape(x, relax.ShapeExpr([*outer, channels, *windows.size])))
