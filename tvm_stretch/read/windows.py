"""Adds overlapping windows into an image: ONNX's Col2Im, torch's fold.

    x: (N, C * 3 * 3, L)   ->   take(x, constant indices)   ->   sum   ->   (N, C, H, W)

Each pixel is the sum of the elements that fall on it, whose indices are known when compiling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax


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
        found = np.full((max(counts.max(), 1), prod(self.size)), self.elements)
        found[row, pixels] = elements
        return found

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
