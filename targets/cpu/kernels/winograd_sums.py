"""The three stages of a Winograd convolution F(m x m, 3 x 3) as plain sums.

    out = A^T [ (G g G^T) * (B^T d B) ] A       on tiles of m x m outputs

``G g G^T`` is computed once, when the artifact is loaded.  With m = 4 this needs 2.25 multiplies
per output where the direct sum needs 9 (Lavin and Gray, arXiv:1509.09308).  The template is
`winograd.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from tvm import te, tirx, topi
from tvm.ir import Expr

from tvm_stretch.targets.kernels.loops import f32

if TYPE_CHECKING:
    from .winograd import WinogradConfig

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

    ``number`` makes a constant of the terms' type.
    """
    total: Expr | None = None
    for factor, term in zip(row, terms, strict=True):
        if factor == 0:
            continue
        if total is None:
            total = term if factor == 1 else number(factor) * term
        elif factor in (1, -1):
            total = total + term if factor == 1 else total - term
        else:
            total = total + number(factor) * term
    assert total is not None
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
