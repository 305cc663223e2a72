"""Winograd convolution F(m x m, 3 x 3) in blocked layout, for dense 3x3 convolutions of stride 1.

A block of tiles at a time, so that both intermediates stay in the cache::

    for block of tile rows:                     # parallel
      V[a*a][ic][tile]  = B^T d B               # input tiles, a = m + 2
      M[a*a][oc][tile]  = U[a*a] . V[a*a]       # a*a small matrix products, register-tiled
      out               = epilogue(A^T M A)

``U = G g G^T`` is computed once, when the artifact is loaded.  With m = 4 this needs 2.25 multiplies
per output where the direct sum needs 9 (Lavin and Gray, arXiv:1509.09308).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import te, tirx, topi
from tvm.ir import Expr

from .fused import Epilogue
from .loops import PARALLEL, UNROLLED, balanced, block, const, f32, lanes, load, loop, scratch, store
from .machine import VectorMachine

Matrix = tuple[tuple[float, ...], ...]
_INPUT: dict[int, Matrix] = {
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
_WEIGHT: dict[int, Matrix] = {
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
_OUTPUT: dict[int, Matrix] = {
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
    """A 3x3 convolution of stride 1, the size of its tiles and of its register tile."""

    batch: int
    in_channels: int
    in_size: tuple[int, int]
    out_channels: int
    padding: tuple[int, int, int, int]
    lanes: int
    tile: int
    oc_blocks: int
    pixels: int

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
    def in_blocks(self) -> int:
        """Input channel blocks."""
        return -(-self.in_channels // self.lanes)

    @property
    def out_blocks(self) -> int:
        """Output channel blocks."""
        return -(-self.out_channels // self.lanes)

    @property
    def out_groups(self) -> int:
        """Register tiles over the output channels."""
        return -(-self.out_blocks // self.oc_blocks)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Transformed weights, in the order in which the products read them."""
        width = self.oc_blocks * self.lanes
        return (self.alpha**2, self.out_groups, self.in_blocks, self.lanes, width)


# --- meaning --------------------------------------------------------------------------------------


def transform_weight(cfg: WinogradConfig, weight: te.Tensor, annotation: dict[str, str]) -> te.Tensor:
    """OIHW -> G g G^T, packed; zero where channels do not exist."""
    matrix = topi.utils.const_matrix(np.array(_WEIGHT[cfg.tile], "float32"), "G")
    ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")

    def element(k: Expr, g: Expr, b: Expr, i: Expr, o: Expr) -> Expr:
        out, channel = g * (cfg.oc_blocks * cfg.lanes) + o, b * cfg.lanes + i
        exists = tirx.all(out < cfg.out_channels, channel < cfg.in_channels)
        tap = tirx.if_then_else(exists, weight[out, channel, ky, kx], f32(0.0))
        return te.sum(tap * matrix[k // cfg.alpha, ky] * matrix[k % cfg.alpha, kx], axis=[ky, kx])

    return te.compute(cfg.weight_shape, element, name="winograd_weight", attrs=annotation)


def winograd_compute(
    cfg: WinogradConfig, data: te.Tensor, weight: te.Tensor, annotation: dict[str, str]
) -> te.Tensor:
    """The three stages as plain sums."""
    a, (rows, columns), m = cfg.alpha, cfg.tiles, cfg.tile
    top, left, _, _ = cfg.padding
    bottom = rows * m + 2 - top - cfg.in_size[0]
    right = columns * m + 2 - left - cfg.in_size[1]
    padded = topi.nn.pad(data, (0, 0, top, left, 0), (0, 0, bottom, right, 0), 0.0)
    into, outof = (
        topi.utils.const_matrix(np.array(t[m], "float32"), n) for t, n in ((_INPUT, "B"), (_OUTPUT, "A"))
    )
    i, j = te.reduce_axis((0, a), "i"), te.reduce_axis((0, a), "j")
    v = te.compute(
        (cfg.batch, a * a, cfg.in_blocks, rows * columns, cfg.lanes),
        lambda n, k, c, t, lane: te.sum(
            padded[n, c, t // columns * m + i, t % columns * m + j, lane]
            * into[k // a, i] * into[k % a, j],
            axis=[i, j],
        ),
        name="winograd_input",
        attrs=annotation,
    )
    c, ii = te.reduce_axis((0, cfg.in_blocks), "c"), te.reduce_axis((0, cfg.lanes), "ii")
    product = te.compute(
        (cfg.batch, a * a, cfg.out_blocks, rows * columns, cfg.lanes),
        lambda n, k, o, t, lane: te.sum(
            v[n, k, c, t, ii]
            * weight[k, o // cfg.oc_blocks, c, ii, o % cfg.oc_blocks * cfg.lanes + lane],
            axis=[c, ii],
        ),
        name="winograd_product",
        attrs=annotation,
    )
    p, q = te.reduce_axis((0, a), "p"), te.reduce_axis((0, a), "q")
    return te.compute(
        (cfg.batch, cfg.out_blocks, *cfg.out_size, cfg.lanes),
        lambda n, o, y, x, lane: te.sum(
            product[n, p * a + q, o, y // m * columns + x // m, lane] * outof[y % m, p] * outof[x % m, q],
            axis=[p, q],
        ),
        name="winograd_output",
        attrs=annotation,
    )


# --- templates ------------------------------------------------------------------------------------


def write_weight_transform(cfg: WinogradConfig, weight: tirx.Buffer, out: tirx.Buffer) -> tirx.Stmt:
    """The weight transform, a vector of output channels at a time."""
    width = cfg.oc_blocks * cfg.lanes
    taps, half = scratch("taps", 9, width, scope="local"), scratch("half", cfg.alpha, 3, width)

    def channel(g: Expr, b: Expr, i: Expr) -> tirx.Stmt:
        def tap(k: int, v: Expr) -> tirx.Stmt:
            o, c = g * width + v, b * cfg.lanes + i
            exists = tirx.all(o < cfg.out_channels, c < cfg.in_channels)
            return store(taps, tirx.if_then_else(exists, load(weight, o, c, k // 3, k % 3), f32(0)), k, v)

        matrix = _WEIGHT[cfg.tile]
        return block([
            *(loop(width, lambda v, k=k: tap(k, v), "v") for k in range(9)),
            *(lanes(width, lambda v, r=r, x=x: store(
                half, _combine(matrix[r], [load(taps, y * 3 + x, v) for y in range(3)]), r, x, v))
              for r in range(cfg.alpha) for x in range(3)),
            *(lanes(width, lambda v, r=r, s=s: store(
                out, _combine(matrix[s], [load(half, r, x, v) for x in range(3)]),
                r * cfg.alpha + s, g, b, i, v))
              for r in range(cfg.alpha) for s in range(cfg.alpha)),
        ])

    nest = loop(cfg.out_groups, lambda g: loop(
        cfg.in_blocks, lambda b: loop(cfg.lanes, lambda i: channel(g, b, i), "i"), "b"), "g")
    return block([tirx.AllocBuffer(taps), tirx.AllocBuffer(half), nest])


def write_winograd(
    cfg: WinogradConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
) -> tirx.Stmt:
    """The loop nest of one (fused) Winograd convolution."""
    rows, columns = cfg.tiles
    per_row = 4 * cfg.alpha**2 * columns * (cfg.in_blocks + cfg.out_blocks) * cfg.lanes
    band = max(-(-24 // columns), machine.l2_bytes // per_row)
    band = min(band, -(-rows // machine.threads))
    bands = -(-rows // band)
    band = -(-rows // bands)
    nest = _Nest(cfg, operands[0], operands[1], epilogue, band)
    kind = PARALLEL if machine.threads > 1 else 0
    return loop(cfg.batch, lambda n: loop(bands, lambda b: nest.band_of_tiles(n, b), "band", kind), "n")


@dataclass(frozen=True)
class _Nest:
    cfg: WinogradConfig
    data: tirx.Buffer
    weight: tirx.Buffer
    epilogue: Epilogue
    band: int

    def band_of_tiles(self, n: Expr, b: Expr) -> tirx.Stmt:
        cfg = self.cfg
        rows, columns = cfg.tiles
        count = self.band * columns
        square = cfg.alpha**2
        v = scratch("v", square, cfg.in_blocks, count, cfg.lanes)
        m = scratch("m", square, cfg.out_blocks, count, cfg.lanes)
        first = b * self.band
        height: int | Expr = self.band
        if rows % self.band:
            height = tirx.min(const(self.band), const(rows) - first)

        def each_tile(body: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
            return loop(height, lambda r: loop(
                columns, lambda c: body(first + r, c, r * columns + c), "column"), "row")

        return block([
            tirx.AllocBuffer(v),
            tirx.AllocBuffer(m),
            loop(cfg.in_blocks, lambda c: each_tile(lambda y, x, t: self.input_tile(n, c, y, x, t, v)), "c"),
            loop(square, lambda k: loop(cfg.out_groups, lambda g: self.products(k, g, v, m, count), "g"), "k"),
            loop(cfg.out_blocks, lambda o: each_tile(lambda y, x, t: self.output_tile(n, o, y, x, t, m)), "o"),
        ])

    def input_tile(
        self, n: Expr, c: Expr, y: Expr, x: Expr, t: Expr, v: tirx.Buffer
    ) -> tirx.Stmt:
        """``V = B^T d B`` of one tile; tiles inside the image read without tests."""
        cfg, a = self.cfg, self.cfg.alpha
        top, left = y * cfg.tile - cfg.padding[0], x * cfg.tile - cfg.padding[1]
        height, width = cfg.in_size

        def transform(inside: bool) -> tirx.Stmt:
            half = scratch("half", a, a, cfg.lanes, scope="local")

            def pixel(i: int, j: int, lane: Expr) -> Expr:
                row, column = top + i, left + j
                value = load(self.data, n, c, row, column, lane)
                if inside:
                    return value
                exists = tirx.all(row >= 0, row < height, column >= 0, column < width)
                return tirx.if_then_else(exists, value, f32(0.0))

            read = scratch("d", a, a, cfg.lanes, scope="local")
            matrix = _INPUT[cfg.tile]
            columns = [
                statement
                for j in range(a)
                for statement in (
                    *(lanes(cfg.lanes, lambda z, i=i, j=j: store(read, pixel(i, j, z), i, j, z))
                      for i in range(a)),
                    *(lanes(cfg.lanes, lambda z, r=r, j=j: store(
                        half, _combine(matrix[r], [load(read, i, j, z) for i in range(a)]), r, j, z))
                      for r in range(a)),
                )
            ]
            rows = [
                lanes(cfg.lanes, lambda z, r=r, s=s: store(
                    v, _combine(matrix[s], [load(half, r, j, z) for j in range(a)]), r * a + s, c, t, z))
                for r in range(a)
                for s in range(a)
            ]
            return block([tirx.AllocBuffer(read), tirx.AllocBuffer(half), *columns, *rows])

        fits = tirx.all(top >= 0, top + a <= height, left >= 0, left + a <= width)
        return tirx.IfThenElse(fits, transform(True), transform(False))

    def products(self, k: Expr, g: Expr, v: tirx.Buffer, m: tirx.Buffer, count: int) -> tirx.Stmt:
        """``M[k] = U[k] V[k]`` for one group of output channels."""
        cfg = self.cfg
        sizes = balanced(count, cfg.pixels)
        tail = cfg.out_blocks % cfg.oc_blocks

        def nest(blocks: int) -> tirx.Stmt:
            statements, start = [], 0
            for size in sorted(set(sizes), reverse=True):
                times = sizes.count(size)
                statements.append(loop(times, lambda i, size=size, start=start: self.register_tile(
                    k, g, i * size + start, size, blocks, v, m), "tile"))
                start += size * times
            return block(statements)

        if not tail:
            return nest(cfg.oc_blocks)
        if cfg.out_groups == 1:
            return nest(tail)
        return tirx.IfThenElse(g < cfg.out_groups - 1, nest(cfg.oc_blocks), nest(tail))

    def register_tile(
        self, k: Expr, g: Expr, t: Expr, pixels: int, blocks: int, v: tirx.Buffer, m: tirx.Buffer
    ) -> tirx.Stmt:
        cfg = self.cfg
        acc = scratch("acc", pixels * blocks * cfg.lanes, scope="local")
        cells = [(p, o) for p in range(pixels) for o in range(blocks)]
        if blocks > pixels:
            cells = [(p, o) for o in range(blocks) for p in range(pixels)]

        def at(p: int, o: int, z: Expr) -> Expr:
            return z + (p * blocks + o) * cfg.lanes

        def each(statement: Callable[[int, int, Expr], tirx.Stmt]) -> list[tirx.Stmt]:
            return [lanes(cfg.lanes, lambda z, p=p, o=o: statement(p, o, z)) for p, o in cells]

        def channel(c: Expr, ii: Expr) -> tirx.Stmt:
            return block(each(lambda p, o, z: store(
                acc,
                load(acc, at(p, o, z))
                + load(v, k, c, t + p, ii) * load(self.weight, k, g, c, ii, z + o * cfg.lanes),
                at(p, o, z),
            )))

        return block([
            tirx.AllocBuffer(acc),
            *each(lambda p, o, z: store(acc, f32(0.0), at(p, o, z))),
            loop(cfg.in_blocks, lambda c: loop(
                cfg.lanes, lambda ii: channel(c, ii), "ii", UNROLLED), "c"),
            *each(lambda p, o, z: store(m, load(acc, at(p, o, z)), k, g * cfg.oc_blocks + o, t + p, z)),
        ])

    def output_tile(
        self, n: Expr, o: Expr, y: Expr, x: Expr, t: Expr, m: tirx.Buffer
    ) -> tirx.Stmt:
        """``epilogue(A^T M A)`` of one tile; the last row and column of tiles may be cut off."""
        cfg, a, size = self.cfg, self.cfg.alpha, self.cfg.tile
        half = scratch("half", size, a, cfg.lanes, scope="local")
        matrix = _OUTPUT[size]
        columns = [
            lanes(cfg.lanes, lambda z, r=r, j=j: store(
                half, _combine(matrix[r], [load(m, i * a + j, o, t, z) for i in range(a)]), r, j, z))
            for j in range(a)
            for r in range(size)
        ]

        def pixel(r: int, s: int) -> tirx.Stmt:
            row, column = y * size + r, x * size + s
            written = lanes(cfg.lanes, lambda z: self.epilogue.store(
                (n, o, row, column, z), _combine(matrix[s], [load(half, r, j, z) for j in range(a)])))
            limits = [
                place < extent
                for place, extent, inner in zip((row, column), cfg.out_size, (r, s), strict=True)
                if extent % size and inner >= extent % size
            ]
            return tirx.IfThenElse(tirx.all(*limits), written, None) if limits else written

        pixels = [pixel(r, s) for r in range(size) for s in range(size)]
        return block([tirx.AllocBuffer(half), *columns, *pixels])


def _combine(row: Sequence[float], terms: Sequence[Expr]) -> Expr:
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
