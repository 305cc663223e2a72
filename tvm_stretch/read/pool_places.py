"""The places of the largest numbers of a pool's windows: MaxPool's second result.

    x: (N, C, H, W)   ->   take(x, constant places)   ->   argmax   ->   take(constant places)

A place counts the elements of a channel. The first of equal numbers counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
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
    lowest = -np.inf if "float" in dtype else np.iinfo(dtype).min
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
