"""The loop nests of a Winograd convolution, complete or without its first stage.

A band of tiles of one part is computed at a time, so that intermediates stay in the cache::

    for band of tile rows, part:                # parallel; a part is a group, after merging
      V[a*a][ic][tile]  = B^T d B               # input tiles, a = m + 2
      M[a*a][oc][tile]  = U[a*a] . V[a*a]       # a*a small matrix products, register-tiled
      out               = epilogue(A^T M A)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Accumulators, Square
from tvm_stretch.targets.kernels.channel_runs import ChannelRun, winograd_runs
from tvm_stretch.targets.kernels.fused import Epilogue, FusedKernel
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    SERIAL,
    ask_ahead,
    balanced,
    block,
    const,
    fenced_span,
    lanes,
    load,
    loop,
    scratch,
    span,
    store,
    unroll,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.winograd_sums import OUTPUT, combine, input_tile

if TYPE_CHECKING:
    from .winograd import WinogradConfig

Plane = Callable[[Expr, Expr, Expr, Expr], Expr]
"""Element (plane, channel block, tile, lane) of the transformed input of a band."""


_LEAST = 24
"""Tiles that suffice for the products' register tiles."""


def write_winograd(
    cfg: WinogradConfig,
    machine: VectorMachine,
    fused: FusedKernel,
    kind: type[WinogradNest] | None = None,  # another way to add products
) -> tirx.Stmt:
    """The loop nest of one (fused) Winograd convolution."""
    nest = _nest(cfg, machine, fused.operands, fused.epilogue, kind)
    part = fused.rectangle
    if part is None:
        return _each_band(nest, machine, [nest.v, nest.m], nest.band_of_tiles)
    rows, columns = least_area(cfg)
    nest = replace(nest, band=rows, across=columns)

    def if_asked(n: Expr, b: Expr, group: Expr) -> tirx.Stmt:
        y, x = nest.first_tile(b)
        meets = part.meets((y * cfg.tile, x * cfg.tile), (rows * cfg.tile, columns * cfg.tile))
        return tirx.IfThenElse(meets, nest.band_of_tiles(n, b, group), None)

    return _each_band(nest, machine, [nest.v, nest.m], if_asked)


def _nest(
    cfg: WinogradConfig,
    machine: VectorMachine,
    operands: tuple[tirx.Buffer, ...],
    epilogue: Epilogue,
    kind: type[WinogradNest] | None = None,
) -> WinogradNest:
    data, weight = operands[:2]
    return (kind or WinogradNest)(
        cfg, data, weight, epilogue, _band(cfg, machine), cfg.tiles[1], machine
    )


def _band(cfg: WinogradConfig, machine: VectorMachine) -> int:
    """Rows of tiles whose intermediates fit the cache and which suffice for the products."""
    rows, columns = cfg.tiles
    vectors = cfg.plane_bytes * cfg.in_blocks + 4 * cfg.out_blocks
    bytes_per_row = cfg.alpha**2 * columns * vectors * cfg.lanes
    band = max(-(-_LEAST // columns), machine.l2_bytes // bytes_per_row)
    if cfg.parts % machine.threads:
        band = min(band, -(-rows // machine.threads))
    bands = -(-rows // min(band, rows))
    return -(-rows // bands)


def least_area(cfg: WinogradConfig) -> tuple[int, int]:
    """Rows and columns of tiles that suffice, nearly a square."""
    columns = -(-cfg.tiles[1] // max(1, cfg.tiles[1] // 6))
    return min(cfg.tiles[0], -(-_LEAST // columns)), columns


def _each_band(
    nest: WinogradNest,
    machine: VectorMachine,
    planes: list[tirx.Buffer],
    body: Callable[[Expr, Expr, Expr], tirx.Stmt],
) -> tirx.Stmt:
    """``body(image, band, part)`` for all; each thread allocates memory for its planes once."""
    cfg = nest.cfg
    tasks = -(-cfg.tiles[0] // nest.band) * -(-cfg.tiles[1] // nest.across) * cfg.parts
    workers = min(machine.threads, tasks)

    def worker(n: Expr, w: Expr) -> tirx.Stmt:
        first = w * tasks // workers
        count = tasks if workers == 1 else (w + 1) * tasks // workers - first
        tasks_of_worker = span(
            first, count, lambda t: body(n, t // cfg.parts, t % cfg.parts), "task"
        )
        return within(planes, tasks_of_worker)

    kind = PARALLEL if workers > 1 else SERIAL
    return loop(cfg.batch, lambda n: loop(workers, lambda w: worker(n, w), "worker", kind), "image")


@dataclass(frozen=True)
class WinogradNest:
    """The loops of all stages."""

    cfg: WinogradConfig
    data: tirx.Buffer
    weight: tirx.Buffer
    epilogue: Epilogue
    band: int  # rows of tiles that are computed together
    across: int  # columns of tiles that are
    machine: VectorMachine

    @cached_property
    def v(self) -> tirx.Buffer:
        """The transformed inputs of a band.

        The number of vectors between planes is odd: with a power of two, the a*a values of a pixel
        would map to the same set of the first-level cache.
        """
        cfg = self.cfg
        count = self.band * self.across
        vectors = cfg.in_blocks * count | 1
        return scratch("v", cfg.alpha**2, vectors, cfg.lanes, dtype=cfg.plane_type)

    @cached_property
    def m(self) -> tirx.Buffer:
        """The products of a band."""
        cfg = self.cfg
        count = self.band * self.across
        vectors = cfg.out_blocks * count | 1
        return scratch("m", cfg.alpha**2, vectors, cfg.lanes, dtype=cfg.sum_type)

    def band_of_tiles(self, n: Expr, b: Expr, part: Expr) -> tirx.Stmt:
        """All three stages of the tiles of one band."""
        cfg = self.cfg
        count = self.band * self.across

        def transform(c: Expr, y: Expr, x: Expr, t: Expr) -> tirx.Stmt:
            return input_tile(
                self.cfg,
                self.data,
                (n, part * cfg.in_blocks + c),
                y,
                x,
                lambda k, value, z: store(self.v, value, k, c * count + t, z),
            )

        def plane(k: Expr, c: Expr, t: Expr, z: Expr) -> Expr:
            return load(self.v, k, c * count + t, z)

        inputs = loop(
            cfg.in_blocks,
            lambda c: self.each_tile(b, lambda y, x, t: transform(c, y, x, t)),
            "c",
        )
        return block(inputs, self.later_stages(n, b, part, plane))

    def each_tile(self, b: Expr, body: Callable[[Expr, Expr, Expr], tirx.Stmt]) -> tirx.Stmt:
        """``body(row, column, number)`` for every tile of a band."""
        rows, columns = self.cfg.tiles
        top, left = self.first_tile(b)

        def size(most: int, first: Expr, end: int) -> int | Expr:
            return tirx.min(const(most), const(end) - first) if end % most else most

        width = size(self.across, left, columns)
        return loop(
            size(self.band, top, rows),
            lambda r: loop(width, lambda c: body(top + r, left + c, r * self.across + c), "column"),
            "row",
        )

    def first_tile(self, b: Expr) -> tuple[Expr, Expr]:
        """Row and column of the first tile of a band."""
        bands = -(-self.cfg.tiles[1] // self.across)
        if bands == 1:
            return b * self.band, const(0)
        return b // bands * self.band, b % bands * self.across

    def later_stages(self, n: Expr, b: Expr, part: Expr, plane: Plane) -> tirx.Stmt:
        """Products and output tiles of one band."""
        cfg = self.cfg
        count = self.band * self.across
        square = cfg.alpha**2
        products = loop(
            square,
            lambda k: loop(
                cfg.out_groups, lambda g: self.products((part, k, g), plane, self.m, count), "g"
            ),
            "k",
        )
        existing: int | Expr = cfg.out_blocks
        if cfg.parts * cfg.out_blocks > cfg.blocks[1]:
            existing = tirx.min(const(existing), const(cfg.blocks[1]) - part * existing)
        outputs = loop(
            existing,
            lambda o: self.each_tile(
                b, lambda y, x, t: self.output_tile((n, part, o), y, x, o * count + t, self.m)
            ),
            "o",
        )
        return block(products, outputs)

    def products(
        self, place: tuple[Expr, Expr, Expr], plane: Plane, m: tirx.Buffer, count: int
    ) -> tirx.Stmt:
        """``M[k] = U[k] V[k]`` for one group of output channels."""
        cfg = self.cfg
        sizes = balanced(count, cfg.pixels)
        tail = cfg.out_blocks % cfg.oc_blocks

        def nest(blocks: int) -> tirx.Stmt:
            statements, start, before = [], 0, 0
            for size in sorted(set(sizes), reverse=True):
                times = sizes.count(size)
                statements.append(
                    loop(
                        times,
                        lambda i, size=size, start=start, before=before: self.register_tile(
                            place,
                            (i * size + start, count),
                            (size, blocks),
                            (plane, m),
                            (i + before, len(sizes)),
                        ),
                        "tile",
                    )
                )
                start += size * times
                before += times
            return block(*statements)

        if not tail:
            return nest(cfg.oc_blocks)
        if cfg.out_groups == 1:
            return nest(tail)
        return tirx.IfThenElse(place[2] < cfg.out_groups - 1, nest(cfg.oc_blocks), nest(tail))

    def register_tile(
        self,
        place: tuple[Expr, Expr, Expr],
        tiles: tuple[Expr, int],
        shape: tuple[int, int],
        planes: tuple[Plane, tirx.Buffer],
        turn: tuple[Expr, int],
    ) -> tirx.Stmt:
        """``turn``: index of this tile among those that read the same weights, and their number."""
        cfg, (plane, m) = self.cfg, planes
        (part, k, g), (t, count), (pixels, blocks) = place, tiles, shape
        acc = Accumulators(pixels, blocks, cfg.lanes, dtype=cfg.sum_type)

        def reduce(run: ChannelRun, c: Expr) -> tirx.Stmt:
            next_group = cfg.in_blocks * cfg.lanes**2 * cfg.oc_blocks
            ahead = ask_ahead(
                self.weight,
                (part, k, g, c, 0, next_group),
                blocks * cfg.lanes**2,
                turn,
                nearest=self.machine.asks_nearest,
            )
            channels = self.channels(
                acc, run, pixels, lambda p, z: plane(k, c, t + p, z), (part, k, g, c)
            )
            return block(*([] if run.lanes[0] else ahead), channels)

        runs = winograd_runs(cfg, blocks)
        apart = fenced_span if len(runs) > 1 else span
        return within(
            acc.buffers,
            *acc.start(),
            *(apart(run.block, run.blocks, lambda c, run=run: reduce(run, c), "c") for run in runs),
            *acc.for_each(
                lambda p, o, z, value: store(
                    m, value, k, (g * cfg.oc_blocks + o) * count + t + p, z
                )
            ),
        )

    def channels(
        self,
        acc: Accumulators,
        run: ChannelRun,
        pixels: int,
        pixel: Callable[[Expr, Expr], Expr],  # the lane of a block of inputs
        place: tuple[Expr, Expr, Expr, Expr],  # where the block's weights stand
    ) -> tirx.Stmt:
        """Add the products of a block of inputs."""
        return acc.add_products(
            range(pixels),
            lambda p, i: pixel(p, run.lane(i)),
            lambda i, o, z: load(self.weight, *place, run.lane(i), z + o * self.cfg.lanes),
            run.width,
            self.machine.broadcast_operand,
            range(*run.vectors),
        )

    def output_tile(
        self, channel: tuple[Expr, Expr, Expr], y: Expr, x: Expr, t: Expr, m: tirx.Buffer
    ) -> tirx.Stmt:
        """``epilogue(A^T M A)`` for one tile; the last row and column of tiles may be cut off."""
        cfg, a, size = self.cfg, self.cfg.alpha, self.cfg.tile
        n, part, o = channel
        half = Square("half", size, a, cfg.lanes, cfg.sum_type)
        number = partial(tirx.const, dtype=cfg.sum_type)
        matrix = OUTPUT[size]

        def element(r: int, j: Expr, z: Expr) -> tirx.Stmt:
            read = [load(m, i * a + j, t, z) for i in range(a)]
            return half.store(r, j, z, combine(matrix[r], read, number))

        def column(j: Expr) -> tirx.Stmt:
            return block(*(lanes(cfg.lanes, partial(element, r, j)) for r in range(size)))

        def pixel(r: Expr, s: int, of: Callable[[int, Expr], Expr], whole: bool) -> tirx.Stmt:
            row, column = y * size + r, x * size + s
            written = lanes(
                cfg.lanes,
                lambda z: self.epilogue.store(
                    (n, part * cfg.out_blocks + o, row, column, z),
                    combine(matrix[s], [of(j, z) for j in range(a)], number),
                ),
            )
            exists = tirx.all(row < cfg.out_size[0], column < cfg.out_size[1])
            return written if whole else tirx.IfThenElse(exists, written, None)

        def pixels(whole: bool) -> tirx.Stmt:
            def row(r: Expr, of: Callable[[int, Expr], Expr]) -> tirx.Stmt:
                return block(*(pixel(r, s, of, whole) for s in range(size)))

            return block(*half.rows(row))

        tile = pixels(True)
        if cfg.out_size[0] % size or cfg.out_size[1] % size:
            whole = tirx.all((y + 1) * size <= cfg.out_size[0], (x + 1) * size <= cfg.out_size[1])
            tile = tirx.IfThenElse(whole, tile, pixels(False))
        return within(half.buffers, unroll(range(a), column), tile)
