"""Winograd convolution F(m x m, 3 x 3) in blocked layout: configuration, weights, meaning.

    out = A^T [ (G g G^T) * (B^T d B) ] A       on tiles of m x m outputs

``G g G^T`` is computed once, when the artifact is loaded.  With m = 4 this needs 2.25 multiplies
per output where the direct sum needs 9 (Lavin and Gray, arXiv:1509.09308).  The loop nests are in
`winograd_nest.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx, topi
from tvm.ir import Expr

from .loops import const, f32

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


@dataclass(frozen=True)
class WinogradConfig:
    """A 3x3 convolution of stride 1, its Winograd tile and its register tile.

    ``merged_groups`` groups are computed as one, with zero weights between them, so that each
    starts on a channel block. If the last part has fewer groups, it has zero weights too.
    """

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    padding: tuple[int, int, int, int]
    lanes: int
    tile: int
    oc_blocks: int
    pixels: int
    groups: int = 1
    merged_groups: int = 1

    @property
    def alpha(self) -> int:
        """Side of an input tile."""
        return self.tile + 2

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        top, left, bottom, right = self.padding
        return self.in_size[0] + top + bottom - 2, self.in_size[1] + left + right - 2

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles."""
        return -(-self.out_size[0] // self.tile), -(-self.out_size[1] // self.tile)

    @property
    def parts(self) -> int:
        """Independent convolutions: groups, after merging."""
        return -(-self.groups // self.merged_groups)

    @property
    def part_widths(self) -> tuple[int, int]:
        """Input and output channels of one part."""
        widths = self.in_channels // self.groups, self.out_channels // self.groups
        return widths[0] * self.merged_groups, widths[1] * self.merged_groups

    @property
    def in_blocks(self) -> int:
        """Input channel blocks of one part."""
        return -(-self.part_widths[0] // self.lanes)

    @property
    def out_blocks(self) -> int:
        """Output channel blocks of one part."""
        return -(-self.part_widths[1] // self.lanes)

    @property
    def blocks(self) -> tuple[int, int]:
        """Input and output channel blocks of all parts."""
        return -(-self.in_channels // self.lanes), -(-self.out_channels // self.lanes)

    @property
    def out_groups(self) -> int:
        """Register tiles over the output channels of one part."""
        return -(-self.out_blocks // self.oc_blocks)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Transformed weights, in the order in which the products read them."""
        width = self.oc_blocks * self.lanes
        return (self.parts, self.alpha**2, self.out_groups, self.in_blocks, self.lanes, width)

    def weight_place(
        self, part: Expr, group: Expr, block: Expr, lane: Expr, column: Expr
    ) -> tuple[Expr, Expr, Expr]:
        """Output and input channel of a packed weight in OIHW, and whether they exist."""
        in_part, out_part = self.part_widths
        out, channel = group * (self.oc_blocks * self.lanes) + column, block * self.lanes + lane
        out_group, in_group = self.out_channels // self.groups, self.in_channels // self.groups
        row = channel - out // out_group * in_group  # channel within its own group
        exists = tirx.all(out < out_part, channel < in_part, row >= 0, row < in_group)
        out = part * out_part + out
        return out, row, tirx.all(exists, out < self.out_channels)

    def existing_block(self, block: Expr) -> Expr:
        """An input channel block; if the last part lacks it, another one (with zero weights)."""
        lacks = self.parts * self.in_blocks > self.blocks[0]
        return tirx.min(block, const(self.blocks[0] - 1)) if lacks else block


def combine(row: Sequence[float], terms: Sequence[Expr]) -> Expr:
    """``sum(row[i] * terms[i])`` without multiplications by zero and one."""
    total: Expr | None = None
    for factor, term in zip(row, terms, strict=True):
        if factor == 0:
            continue
        if total is None:
            total = term if factor == 1 else f32(factor) * term
        elif factor in (1, -1):
            total = total + term if factor == 1 else total - term
        else:
            total = total + f32(factor) * term
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


def winograd_compute(
    cfg: WinogradConfig, data: te.Tensor, weight: te.Tensor, annotation: dict[str, str]
) -> te.Tensor:
    """The three stages as plain sums."""
    return multiply_planes(cfg, transform_input(cfg, data, annotation), weight, annotation)


def transform_input(cfg: WinogradConfig, data: te.Tensor, annotation: dict[str, str]) -> te.Tensor:
    """``B^T d B`` of every tile: the a*a planes of an image with one pixel for each tile."""
    a, (rows, columns), m = cfg.alpha, cfg.tiles, cfg.tile
    top, left, _, _ = cfg.padding
    bottom = rows * m + 2 - top - cfg.in_size[0]
    right = columns * m + 2 - left - cfg.in_size[1]
    padded = topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), 0.0)
    into = _matrix(INPUT, m, "B")
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
    outof = _matrix(OUTPUT, m, "A")
    c, ii = te.reduce_axis((0, cfg.in_blocks), "c"), te.reduce_axis((0, cfg.lanes), "ii")

    def multiply(n: Expr, k: Expr, block: Expr, t: Expr, lane: Expr) -> Expr:
        part, o = block // cfg.out_blocks, block % cfg.out_blocks
        column = o % cfg.oc_blocks * cfg.lanes + lane
        return te.sum(
            planes[n, part * cfg.in_blocks + c, k, t, ii]
            * weight[part, k, o // cfg.oc_blocks, c, ii, column],
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


def _matrix(matrices: dict[int, Matrix], tile: int, name: str) -> te.Tensor:
    return topi.utils.const_matrix(np.array(matrices[tile], "float32"), name)
