"""Which taps of a window lie inside the image, and what a window without taps gives.

3x3, padding 1, 14 rows:   row 0: kernel rows 1 and 2;   1 to 12: all three;   13: 0 and 1

Windows of a tile share input: `reads_of_tile` lists it with the taps that read it, and `each_read`
is the loop nest over them, which all kernels of windows have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from tvm import tirx
from tvm.ir import Expr

from .layers import Sliding, WindowShape
from .loops import Index, const

MOST_RUNS = 3
"""Above, inside and below the image; more runs make too much code."""


@dataclass(frozen=True)
class Run:
    """Output rows or columns from ``start`` to ``end`` with the same taps in the image."""

    start: int
    end: int
    taps: range


def runs_of(cfg: Sliding, axis: int) -> list[Run]:
    """All output rows (axis 0) or columns."""
    runs: list[Run] = []
    for place in range(cfg.out_size[axis]):
        start, taps = place, cfg.taps(axis, place)
        if runs and runs[-1].taps == taps:
            start = runs.pop().start
        runs.append(Run(start, place + 1, taps))
    return runs


Reads: TypeAlias = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""The columns (or rows) of the input under a tile, relative to its first window, each with the taps
that use it as pairs of output and tap."""


def reads_of_tile(cfg: Sliding, start: int | None, width: int, axis: int = 1) -> Reads:
    """The input of a tile of neighbouring outputs, and its taps.

    Only input in the image is listed; with ``start`` None, all input of a tile anywhere.
    """
    reads: dict[int, list[tuple[int, int]]] = {}
    for p in range(width):
        taps = range(cfg.kernel[axis]) if start is None else cfg.taps(axis, start + p)
        for tap in taps:
            reads.setdefault(p * cfg.stride[axis] + tap * cfg.dilation[axis], []).append((p, tap))
    return tuple((place, tuple(reads[place])) for place in sorted(reads))


def each_read(
    reads: Reads,
    use: Callable[[int, int, int], list[tirx.Stmt]],
    fetch: Callable[[int, int], tirx.Stmt] | None = None,
) -> list[tirx.Stmt]:
    """The loop nest over the input of a tile, unrolled.

    Each input is fetched once, by its number and place, and then used for each tap, by its number,
    the output and the tap.
    """
    statements: list[tirx.Stmt] = []
    for number, (place, taps) in enumerate(reads):
        if fetch is not None:
            statements.append(fetch(number, place))
        for output, tap in taps:
            statements += use(number, output, tap)
    return statements


def least(dtype: str) -> Expr:
    """The maximum of no numbers; for floats minus infinity, unlike `te.max`."""
    return tirx.const(-inf, dtype) if "float" in str(dtype) else tirx.min_value(dtype)


def window_count(cfg: WindowShape, y: Expr, x: Expr, dtype: str) -> Expr:
    """The divisor of the average at output pixel ``(y, x)``."""
    if cfg.count_include_pad:
        rows, columns = (_taps_padded(cfg, axis, place) for axis, place in enumerate((y, x)))
    else:
        rows, columns = (taps_inside(cfg, axis, place)[1] for axis, place in enumerate((y, x)))
    return tirx.max(const(rows * columns), const(1)).astype(dtype)


def _taps_padded(cfg: WindowShape, axis: int, place: Expr) -> Index:
    """Number of taps in the image or its padding, without the border that ``ceil_mode`` adds."""
    size = cfg.padding[axis] + cfg.in_size[axis] + cfg.padding[axis + 2]
    kernel, step, stride = cfg.kernel[axis], cfg.dilation[axis], cfg.stride[axis]
    if (cfg.out_size[axis] - 1) * stride + cfg.spans[axis] <= size:
        return kernel
    return tirx.min(const(kernel), tirx.floordiv(size - place * stride + (step - 1), step))


def taps_inside(cfg: Sliding, axis: int, place: Expr) -> tuple[Index, Index]:
    """First tap inside the image for output row or column ``place``, and the number of taps."""
    kernel, size, step = cfg.kernel[axis], cfg.in_size[axis], cfg.dilation[axis]
    above = const(cfg.padding[axis]) - place * cfg.stride[axis]
    low = tirx.max(const(0), tirx.floordiv(above + (step - 1), step))
    end = tirx.min(const(kernel), tirx.floordiv(above + (size + step - 1), step))
    return low, tirx.max(const(0), end - low)


def kernel_rows(cfg: Sliding, y: Expr) -> tuple[Index, Index]:
    """As `taps_inside` for output row ``y``; constants if nothing is padded above and below."""
    if not cfg.padding[0] and not cfg.padding[2]:
        return 0, cfg.kernel[0]
    return taps_inside(cfg, 0, y)
