"""The first stage of a Winograd convolution: ``B^T d B`` for the tiles d of the image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Square
from tvm_stretch.targets.kernels.loops import (
    block,
    const,
    each,
    lanes,
    load,
    loop,
    scratch,
    store,
    within,
)

from .winograd_sums import INPUT, combine

if TYPE_CHECKING:
    from .winograd import WinogradConfig

Put = Callable[[Expr, Expr, Expr], tirx.Stmt]
"""Stores a value of a plane at a lane."""

Column = Callable[[Expr, Callable[[int, Expr], Expr]], tirx.Stmt]
"""Statements for a column of a tile, from the column and its elements (row, lane)."""

Columns = Callable[[Column], list[tirx.Stmt]]
"""The same for all columns."""


def input_tile(
    cfg: WinogradConfig,
    data: tirx.Buffer,
    channel: tuple[Expr, Expr],
    y: Expr,
    x: Expr,
    put: Put,
) -> tirx.Stmt:
    """``put(plane, B^T d B)`` for one tile; tiles inside the image read without tests."""
    a = cfg.alpha
    n, c = channel[0], cfg.existing_block(channel[1])
    top, left = y * cfg.tile - cfg.padding[0], x * cfg.tile - cfg.padding[1]
    height, width = cfg.in_size

    read = [scratch(f"column{j}", a, cfg.lanes, dtype=cfg.plane_type) for j in range(a)]

    zero = tirx.const(0, cfg.plane_type)

    def pixel(i: int | Expr, j: int | Expr, z: Expr) -> Expr:
        return load(data, n, c, top + i, left + j, z)

    def inside(column: Column) -> list[tirx.Stmt]:
        return [each(range(a), lambda j: column(j, lambda i, z: pixel(i, j, z)))]

    def copied(column: Column) -> list[tirx.Stmt]:
        return [column(const(j), lambda i, z, j=j: load(read[j], i, z)) for j in range(a)]

    def read_columns(low: int, high: int) -> tirx.Stmt:
        """Copy the tile with zeros outside the image; columns ``low..high`` lie inside."""

        def row(i: Expr, exists: bool) -> tirx.Stmt:
            return block(
                [
                    lanes(
                        cfg.lanes,
                        lambda z, j=j: store(
                            read[j],
                            pixel(i, j, z) if exists and low <= j < high else zero,
                            i,
                            z,
                        ),
                    )
                    for j in range(a)
                ]
            )

        def read_row(i: Expr) -> tirx.Stmt:
            inside = tirx.all(top + i >= 0, top + i < height)
            return tirx.IfThenElse(inside, row(i, True), row(i, False))

        return loop(a, read_row, "i")

    # Which columns exist is known for each tile of a row, so only the tile is tested at run
    # time.
    ranges = [_inside(k * cfg.tile - cfg.padding[1], a, width) for k in range(cfg.tiles[1])]
    border = read_columns(*ranges[-1])
    for k in range(len(ranges) - 2, -1, -1):
        if ranges[k] != ranges[k + 1]:
            border = tirx.IfThenElse(x <= k, read_columns(*ranges[k]), border)
    fits = tirx.all(top >= 0, top + a <= height, left >= 0, left + a <= width)
    at_border = within(read, [border, _transform(cfg, put, copied)])
    return tirx.IfThenElse(fits, _transform(cfg, put, inside), at_border)


def _transform(cfg: WinogradConfig, put: Put, columns: Columns) -> tirx.Stmt:
    """``put(plane, B^T d B)`` of a tile d, whose columns are given."""
    a = cfg.alpha
    half = Square("half", a, a, cfg.lanes, cfg.plane_type)
    number = partial(tirx.const, dtype=cfg.plane_type)
    matrix = INPUT[cfg.tile]

    def column(j: Expr, value: Callable[[int, Expr], Expr]) -> tirx.Stmt:
        def row(r: int, z: Expr) -> tirx.Stmt:
            return half.store(r, j, z, combine(matrix[r], [value(i, z) for i in range(a)], number))

        return block([lanes(cfg.lanes, partial(row, r)) for r in range(a)])

    def row(r: Expr, of: Callable[[int, Expr], Expr]) -> tirx.Stmt:
        def element(s: int, z: Expr) -> tirx.Stmt:
            return put(r * a + s, combine(matrix[s], [of(j, z) for j in range(a)], number), z)

        return block([lanes(cfg.lanes, partial(element, s)) for s in range(a)])

    return within(half.buffers, [*columns(column), *half.rows(row)])


def _inside(first: int, count: int, extent: int) -> tuple[int, int]:
    """First and end of ``count`` places from ``first`` that lie in ``range(extent)``."""
    return max(0, -first), max(0, min(count, extent - first))
