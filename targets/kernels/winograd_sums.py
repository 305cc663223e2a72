"""The three stages of a Winograd convolution F(m x m, 3 x 3) as plain sums.

    out = A^T [ (G g G^T) * (B^T d B) ] A       on tiles of m x m outputs

``G g G^T`` is computed once, when the artifact is loaded.  With m = 4 this needs 2.25 multiplies
per output where the direct sum needs 9 (Lavin and Gray, arXiv:1509.09308).  The template is
`winograd.py`.

The first stage of a Winograd convolution: ``B^T d B`` for the tiles d of the image.

The loop nest of the weight transform, which runs once when an artifact is loaded.

for part, register tile, input channel:
    out[a*a] = G g G^T        # a vector of output channels at a time, a = m + 2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tvm import te, tirx, topi
from tvm.ir import Expr

from .accumulators import Square
from .loops import block, const, f32, lanes, load, loop, scratch, store, unroll, vectors, within

if TYPE_CHECKING:
    from tvm_stretch.targets.cpu.kernels.winograd import WinogradConfig


Matrix = tuple[tuple[float, ...], ...]
INPUT: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
WEIGHT: dict[int, Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
OUTPUT: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: (
        (1, 1, 1, 1, 1, 0),
        (0, 1, -1, 2, -2, 0),
        (0, 1, 1, 4, 4, 0),
        (0, 1, -1, 8, -8, 1),
    ),
}


def combine(
    row: Sequence[float], terms: Sequence[Expr], number: Callable[[float], Expr] = f32
) -> Expr:
    """``sum(row[i] * terms[i])`` without multiplications by zero and one.

    A term with the factor 1 comes first. So each sum has one product, and all compilers fuse the
    same ones: of ``4 * a - 5 * b``, LLVM rounds one product, and OpenCL's compilers the other one.

    ``number`` makes a constant of the terms' type.
    """
    pairs = [pair for pair in zip(row, terms, strict=True) if pair[0] != 0]
    (factor, term), *others = sorted(pairs, key=lambda pair: pair[0] != 1)
    total = term if factor == 1 else number(factor) * term
    for factor, term in others:
        if factor in (1, -1):
            total = total + term if factor == 1 else total - term
        else:
            total = total + number(factor) * term
    return total


# --- meaning --------------------------------------------------------------------------------------


def transform_weight(
    cfg: WinogradConfig, weight: te.Tensor, annotation: dict[str, str]
) -> te.Tensor:
    """OIHW -> G g G^T, packed; zero for channels that do not exist."""
    matrix = topi.utils.const_matrix(np.array(WEIGHT[cfg.tile], "float32"), "G")
    ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")

    def element(q: Expr, k: Expr, g: Expr, b: Expr, i: Expr, o: Expr) -> Expr:
        out, row, exists = cfg.weight_place(q, g, b, i, o)
        tap = tirx.if_then_else(exists, weight[out, row, ky, kx], f32(0.0))
        return te.sum(tap * matrix[k // cfg.alpha, ky] * matrix[k % cfg.alpha, kx], axis=[ky, kx])

    return te.compute(cfg.weight_shape, element, name="winograd_weight", attrs=annotation)


def transform_input(cfg: WinogradConfig, data: te.Tensor, annotation: dict[str, str]) -> te.Tensor:
    """``B^T d B`` of every tile: the a*a planes of an image with one pixel for each tile."""
    a, (rows, columns), m = cfg.alpha, cfg.tiles, cfg.tile
    top, left, _, _ = cfg.padding
    bottom = rows * m + 2 - top - cfg.in_size[0]
    right = columns * m + 2 - left - cfg.in_size[1]
    zero = tirx.const(0, cfg.plane_type)
    padded = topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), zero)
    into = _matrix(INPUT, m, "B", cfg.plane_type)
    i, j = te.reduce_axis((0, a), "i"), te.reduce_axis((0, a), "j")
    return te.compute(
        (cfg.batch, cfg.parts * cfg.in_blocks, a * a, rows * columns, cfg.lanes),
        lambda n, c, k, t, lane: te.sum(
            padded[n, cfg.existing_block(c), t // columns * m + i, t % columns * m + j, lane]
            * into[k // a, i]
            * into[k % a, j],
            axis=[i, j],
        ),
        name="winograd_input",
        attrs=annotation,
    )


def multiply_planes(
    cfg: WinogradConfig, planes: te.Tensor, weight: te.Tensor, annotation: dict[str, str]
) -> te.Tensor:
    """``A^T [weight * planes] A``: the convolution's result."""
    a, (rows, columns), m = cfg.alpha, cfg.tiles, cfg.tile
    outof = _matrix(OUTPUT, m, "A", cfg.sum_type)
    c, ii = te.reduce_axis((0, cfg.in_blocks), "c"), te.reduce_axis((0, cfg.lanes), "ii")

    def multiply(n: Expr, k: Expr, block: Expr, t: Expr, lane: Expr) -> Expr:
        part, o = block // cfg.out_blocks, block % cfg.out_blocks
        column = o % cfg.oc_blocks * cfg.lanes + lane
        return te.sum(
            planes[n, part * cfg.in_blocks + c, k, t, ii].astype(cfg.sum_type)
            * cfg.factor(weight, (part, k, o // cfg.oc_blocks, c), ii, column),
            axis=[c, ii],
        )

    product = te.compute(
        (cfg.batch, a * a, cfg.blocks[1], rows * columns, cfg.lanes),
        multiply,
        name="winograd_product",
        attrs=annotation,
    )
    p, q = te.reduce_axis((0, a), "p"), te.reduce_axis((0, a), "q")
    return te.compute(
        (cfg.batch, cfg.blocks[1], *cfg.out_size, cfg.lanes),
        lambda n, o, y, x, lane: te.sum(
            product[n, p * a + q, o, y // m * columns + x // m, lane]
            * outof[y % m, p]
            * outof[x % m, q],
            axis=[p, q],
        ),
        name="winograd_output",
        attrs=annotation,
    )


def _matrix(matrices: dict[int, Matrix], tile: int, name: str, dtype: str) -> te.Tensor:
    return topi.utils.const_matrix(np.array(matrices[tile], dtype), name)


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
        return [unroll(range(a), lambda j: column(j, lambda i, z: pixel(i, j, z)))]

    def copied(column: Column) -> list[tirx.Stmt]:
        return [column(const(j), lambda i, z, j=j: load(read[j], i, z)) for j in range(a)]

    def read_columns(low: int, high: int) -> tirx.Stmt:
        """Copy the tile with zeros outside the image; columns ``low..high`` lie inside."""

        def row(i: Expr, exists: bool) -> tirx.Stmt:
            return block(
                *(
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
                )
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
    at_border = within(read, border, _transform(cfg, put, copied))
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

        return block(*(lanes(cfg.lanes, partial(row, r)) for r in range(a)))

    def row(r: Expr, of: Callable[[int, Expr], Expr]) -> tirx.Stmt:
        def element(s: int, z: Expr) -> tirx.Stmt:
            return put(r * a + s, combine(matrix[s], [of(j, z) for j in range(a)], number), z)

        return block(*(lanes(cfg.lanes, partial(element, s)) for s in range(a)))

    return within(half.buffers, *columns(column), *half.rows(row))


def _inside(first: int, count: int, extent: int) -> tuple[int, int]:
    """First and end of ``count`` places from ``first`` that lie in ``range(extent)``."""
    return max(0, -first), max(0, min(count, extent - first))


def write_weight_transform(cfg: WinogradConfig, weight: tirx.Buffer, out: tirx.Buffer) -> tirx.Stmt:
    """The weight transform, a vector of output channels at a time."""
    width = cfg.oc_blocks * cfg.lanes
    taps, half = vectors("taps", 9, width), vectors("half", cfg.alpha * 3, width)

    def channel(q: Expr, g: Expr, b: Expr, i: Expr) -> tirx.Stmt:
        def tap(k: int, v: Expr) -> tirx.Stmt:
            o, c, exists = cfg.weight_place(q, g, b, i, v)
            value = tirx.if_then_else(exists, load(weight, o, c, k // 3, k % 3), f32(0.0))
            return store(taps[k], value, v)

        matrix = WEIGHT[cfg.tile]
        return block(
            *(loop(width, lambda v, k=k: tap(k, v), "v") for k in range(9)),
            *(
                lanes(
                    width,
                    lambda v, r=r, x=x: store(
                        half[r * 3 + x],
                        combine(matrix[r], [load(taps[y * 3 + x], v) for y in range(3)]),
                        v,
                    ),
                )
                for r in range(cfg.alpha)
                for x in range(3)
            ),
            *(
                lanes(
                    width,
                    lambda v, r=r, s=s: store(
                        out,
                        combine(matrix[s], [load(half[r * 3 + x], v) for x in range(3)]),
                        q,
                        r * cfg.alpha + s,
                        g,
                        b,
                        i,
                        v,
                    ),
                )
                for r in range(cfg.alpha)
                for s in range(cfg.alpha)
            ),
        )

    nest = loop(
        cfg.parts,
        lambda q: loop(
            cfg.out_groups,
            lambda g: loop(
                cfg.in_blocks, lambda b: loop(cfg.lanes, lambda i: channel(q, g, b, i), "i"), "b"
            ),
            "g",
        ),
        "q",
    )
    return within([*taps, *half], nest)
