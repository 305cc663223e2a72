"""The loop nest of a direct convolution, register-tiled.

One output tile is ``pixels`` neighbours of a row times ``oc_blocks`` vectors of output channels; it
stays in registers during the whole reduction::

    for band of rows, oc_group:                 # parallel
      for y, tile of the row:                   # rows are cut into balanced tiles: 14 -> 5 + 5 + 4
        acc[pixels][oc_blocks] = 0
        for ic_block, ky in the rows that exist:
          for kx, ic_lane, pixel, oc_block:     # unrolled but kx; taps outside are omitted
            acc += broadcast(data) * weight     # for a plain image, its few channels innermost
        out = epilogue(acc)

Padding is free: whether a tap of a tile lies outside the image is known when the tile is written.
1x1 convolutions and dense layers are the same nest over one long row of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Accumulators
from tvm_stretch.targets.kernels.channel_runs import ChannelRun, channel_runs, whole_run
from tvm_stretch.targets.kernels.fused import Epilogue, Rectangle
from tvm_stretch.targets.kernels.loops import (
    PARALLEL,
    Index,
    TileRun,
    ask_ahead,
    balanced,
    block,
    const,
    fenced_span,
    lanes,
    line_numbers,
    load,
    loop,
    scratch,
    span,
    store,
    within,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.window_taps import kernel_rows, runs_of

from .conv_tiles import (
    Blocking,
    Reduction,
    RowOfTiles,
    RunOfTiles,
    Tap,
    Taps,
    Tile,
    column_segments,
    row_tiles,
)

if TYPE_CHECKING:
    from .conv import ConvConfig


def write_nest(nest: ConvNest) -> tirx.Stmt:
    """All tiles of all bands and groups, divided among the threads."""
    cfg, machine = nest.cfg, nest.machine
    bands = -(-nest.cut.rows // nest.cut.band)
    full, tail = divmod(cfg.out_blocks, cfg.oc_blocks)

    def groups(n: Expr, first: int, count: int, blocks: int) -> tirx.Stmt:
        if machine.threads == 1:
            return loop(
                bands,
                lambda b: span(first, count, lambda g: nest.group(n, g, b, blocks), "g"),
                "band",
            )
        return loop(
            count * bands,
            lambda t: nest.group(n, t % count + first, t // count, blocks),
            "task",
            PARALLEL,
        )

    def image(n: Expr) -> tirx.Stmt:
        nests = [groups(n, 0, full, cfg.oc_blocks)] if full else []
        if tail:  # last, because the group before it has prefetched its weights
            nests.append(groups(n, full, 1, tail))
        return block(*nests)

    return loop(cfg.batch, image, "n")


@dataclass(frozen=True)
class ConvNest:
    """Writes the tiles of one convolution."""

    cfg: ConvConfig
    cut: Blocking
    data: tirx.Buffer
    weight: tirx.Buffer
    epilogue: Epilogue
    machine: VectorMachine
    part: Rectangle | None = field(default=None, kw_only=True)

    @property
    def sum_type(self) -> str:
        """The type of the sums."""
        return str(self.epilogue.anchor.dtype)

    def group(self, n: Expr, g: Expr, band: Expr, blocks: int) -> tirx.Stmt:
        """One group of output channels over one band of rows."""
        cut, part, runs = self.cut, self.part, row_tiles(self.cfg, self.cut.width)
        *starts, per_row = accumulate((run.count for run in runs), initial=0)
        first, count = cut.rows_of(band)
        if part is not None:
            first, count = part.rows(first, count, *cut.joined)

        def tiles(y: Expr, run_of: RunOfTiles) -> tirx.Stmt:
            def tile_at(t: Expr, r: TileRun[Taps], before: int) -> Tile:
                x, turn = t * r.width + r.start, (y - first) * per_row + before + t
                return Tile(n, g, y, x, blocks, r.work, turn)

            def run(r: TileRun[Taps], before: int) -> tirx.Stmt:
                if part is None or cut.chunks > 1 or cut.joined != (1, 1):
                    return run_of(r.count, lambda t: tile_at(t, r, before))
                return part.tiles(r, lambda n, of: run_of(n, lambda t: tile_at(of(t), r, before)))

            return block(*(run(r, before) for r, before in zip(runs, starts, strict=True)))

        if cut.chunks == 1:
            return span(first, count, lambda y: tiles(y, self.run), "y")
        return self.in_chunks(n, g, (first, count), blocks, tiles)

    def in_chunks(
        self, n: Expr, g: Expr, rows: tuple[Expr, int | Expr], blocks: int, tiles: RowOfTiles
    ) -> tirx.Stmt:
        """A group whose sums are kept in memory between chunks of the reduction."""
        cfg, cut, (first, count) = self.cfg, self.cut, rows
        width = blocks * cfg.lanes
        sums = scratch("partial", cut.band, cut.width, width, dtype=self.sum_type)

        def partials(tiles: Index, at: Callable[[Expr], Tile], c: Expr, y: Expr) -> tirx.Stmt:
            return loop(tiles, lambda t: self.partial_tile(at(t), c, sums, y - first), "tile")

        def chunk(c: Expr) -> tirx.Stmt:
            def row(y: Expr) -> tirx.Stmt:
                return tiles(y, lambda count, at: partials(count, at, c, y))

            return span(first, count, row, "y")

        def finish(y: Expr, x: Expr) -> tirx.Stmt:
            return block(
                *(
                    lanes(
                        cfg.lanes,
                        lambda v, o=o: self.epilogue.store(
                            self.result_place(n, g * cfg.oc_blocks + o, self.pixel(y, x), v),
                            load(sums, y - first, x, v + o * cfg.lanes),
                        ),
                    )
                    for o in range(blocks)
                )
            )

        return block(
            tirx.AllocBuffer(sums),
            loop(
                cut.band * cut.width * blocks,
                lambda i: lanes(
                    cfg.lanes,
                    lambda v: store(
                        sums,
                        tirx.const(0, self.sum_type),
                        i // (cut.width * blocks),
                        i // blocks % cut.width,
                        i % blocks * cfg.lanes + v,
                    ),
                ),
                "i",
            ),
            loop(cut.chunks, chunk, "chunk"),
            span(first, count, lambda y: loop(cut.width, lambda x: finish(y, x), "x"), "y"),
        )

    def run(self, count: Index, at: Callable[[Expr], Tile]) -> tirx.Stmt:
        """Consecutive tiles with the same work."""
        return loop(count, lambda t: self.whole_tile(at(t)), "tile")

    def whole_tile(self, tile: Tile) -> tirx.Stmt:
        """Clear the accumulators, reduce over all channels, pass the tile to the epilogue."""
        reduce, finish = self.whole(tile)
        return self.tile(tile, reduce, None, finish)

    def whole(
        self, tile: Tile
    ) -> tuple[list[Reduction], Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]]:
        """The reduction over all channels, and the function that passes a sum to the epilogue."""
        group = tile.group * self.cfg.oc_blocks

        def finish(p: Expr, o: Expr, v: Expr, value: Expr) -> tirx.Stmt:
            pixel = self.pixel(tile.y, tile.x + p)
            return self.epilogue.store(self.result_place(tile.n, group + o, pixel, v), value)

        runs = self.runs(tile.blocks)
        if runs is None:
            whole = whole_run(self.cfg, tile.blocks)
            reduce: list[Reduction] = [(whole, const(0), self.blocks_to_read(tile, None))]
        else:
            reduce = [(run, const(run.block), run.blocks) for run in runs]
        return reduce, finish

    def runs(self, vectors: int) -> list[ChannelRun] | None:
        """The channels that ``vectors`` read; None if they differ between tiles."""
        return channel_runs(self.cfg, vectors)

    def partial_tile(self, tile: Tile, chunk: Expr, sums: tirx.Buffer, y: Expr) -> tirx.Stmt:
        """Add one chunk of the reduction to the partial sums."""

        def place(p: Expr, o: Expr, v: Expr) -> tuple[Expr, ...]:
            return y, tile.x + p, v + o * self.cfg.lanes

        return self.tile(
            tile,
            [
                (
                    whole_run(self.cfg, tile.blocks),
                    chunk * self.cut.chunk,
                    self.blocks_to_read(tile, chunk),
                )
            ],
            lambda p, o, v: load(sums, *place(p, o, v)),
            lambda p, o, v, value: store(sums, value, *place(p, o, v)),
        )

    def blocks_to_read(self, tile: Tile, chunk: Expr | None) -> int | Expr:
        """Input channel blocks of this chunk that exist."""
        cfg, cut = self.cfg, self.cut
        limits: list[int | Expr] = [cfg.reduce_blocks if chunk is None else cut.chunk]
        if chunk is not None and cfg.reduce_blocks % cut.chunk:
            limits.append(const(cfg.reduce_blocks) - chunk * cut.chunk)
        if cfg.groups > cfg.merged_groups and cfg.in_blocks % cfg.reduce_blocks:
            start = cfg.first_block(tile.group * cfg.oc_blocks)
            limits.append(
                const(cfg.in_blocks) - start - (0 if chunk is None else chunk * cut.chunk)
            )
        count = limits[0]
        for limit in limits[1:]:
            count = tirx.min(const(count), limit)
        return count if len(limits) == 1 else tirx.max(const(0), count)

    def tile(
        self,
        tile: Tile,
        reduce: Sequence[Reduction],
        start: Callable[[Expr, Expr, Expr], Expr] | None,
        finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt],
    ) -> tirx.Stmt:
        """Sums in registers: start values, reduction over channel blocks, finish."""
        acc = Accumulators(len(tile.taps), tile.blocks, self.cfg.lanes, dtype=self.sum_type)
        begun, finished = acc.start(start or self.begin(tile)), self.finished(acc, finish)
        return within(acc.buffers, *begun, *self.reduction(tile, reduce, acc), *finished)

    def begin(self, _tile: Tile) -> Callable[[Expr, Expr, Expr], Expr] | None:
        """The initial sum of each pixel, vector and lane; None for 0."""
        return None

    def finished(
        self, acc: Accumulators, finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Finish all sums."""
        return acc.for_each(finish)

    def reduction(
        self, tile: Tile, reduce: Sequence[Reduction], acc: Accumulators
    ) -> list[tirx.Stmt]:
        """All products of a tile; none if all its taps lie in the padding."""
        cfg = self.cfg
        segments = column_segments(tile.taps)
        low, count = kernel_rows(cfg, tile.y)
        # If this loop were unrolled, LLVM would keep pixels that two taps share in registers, and
        # spill the accumulators.
        columns = fenced_span if cfg.kernel[1] > 1 else span

        def taps(add: Callable[[Tap], tirx.Stmt]) -> tirx.Stmt:
            def row(ky: Expr) -> tirx.Stmt:
                return block(
                    *(
                        columns(lo, hi - lo, lambda kx, on=on: add((ky, kx, on)), "kx")
                        for lo, hi, on in segments
                    )
                )

            return span(low, count, row, "ky")

        _, first, reads = reduce[0]
        if not segments:
            return []
        if cfg.data_block == 1 and isinstance(reads, int):
            return [taps(partial(self.plain_tap, acc, tile, first, reads))]
        apart = fenced_span if len(reduce) > 1 else span
        return [
            apart(
                begin, blocks, lambda ic, run=run: taps(partial(self.tap, acc, tile, run, ic)), "ic"
            )
            for run, begin, blocks in reduce
        ]

    def plain_tap(
        self, acc: Accumulators, tile: Tile, first: Expr, reads: int, tap: Tap
    ) -> tirx.Stmt:
        """Add the products of all channels of a plain image, which has few, under one tap."""
        width, (ky, kx, active) = self.cfg.lanes, tap
        return acc.add_products(
            active,
            lambda p, i: load(self.data, *self.input_place(tile, (p, ky, kx), first + i, i)),
            lambda i, o, v: load(self.weight, tile.group, first + i, ky, kx, 0, v + o * width),
            reads,
            by_element=False,
        )

    def tap(self, acc: Accumulators, tile: Tile, run: ChannelRun, ic: Expr, tap: Tap) -> tirx.Stmt:
        """Add the products of a run of channels under one tap."""
        width, (ky, kx, active) = self.cfg.lanes, tap
        channel = self.cfg.first_block(tile.group * self.cfg.oc_blocks) + ic
        ahead = [] if run.lanes[0] else self.weights_ahead(tile, ic, ky, kx)
        products = acc.add_products(
            active,
            lambda p, i: load(
                self.data, *self.input_place(tile, (p, ky, kx), channel, run.lane(i))
            ),
            lambda i, o, v: load(self.weight, tile.group, ic, ky, kx, run.lane(i), v + o * width),
            run.width,
            self.machine.broadcast_operand,
            range(*run.vectors),
        )
        return block(*ahead, products)

    def weights_ahead(self, tile: Tile, ic: Expr, ky: Expr, kx: Expr) -> list[tirx.Stmt]:
        """Prefetch this tile's share of the weights of a tap that come next in memory.

        Otherwise the first of the tiles that share weights waits for memory, and the others leave
        it idle. If only one tile reads the weights, it needs the whole bandwidth, so nothing is
        prefetched. Shares are computed for the rows that have all taps; what rows at the border
        omit, other rows prefetch in their next turn.
        """
        cfg, cut = self.cfg, self.cut
        per_row = len(balanced(cut.width, cfg.pixels))
        runs = runs_of(cfg, 0)
        borders = sum(run.end - run.start for run in runs if len(run.taps) < cfg.kernel[0])
        if 2 * borders > cut.band:  # each of the other rows would have to prefetch too much
            borders = 0
        turns = (cut.band - borders) * per_row
        turn = tile.turn % turns if borders else tile.turn
        inner = cfg.weight_shape[4:]
        count = prod(inner)
        if turns == 1 or turns > 2 * -(-count // line_numbers(self.weight)):
            return []
        ahead = min(cut.chunk, cfg.reduce_blocks) * cfg.kernel[0] * cfg.kernel[1] * count
        place = (tile.group, ic, ky, kx, *(0 for _ in inner[1:]), ahead)
        nearest = self.machine.asks_nearest
        return ask_ahead(self.weight, place, count, (turn, turns), nearest=nearest)

    def pixel(self, y: Expr, x: Expr) -> tuple[Expr, Expr]:
        """Row and column of the output for the nest's row ``y`` and pixel ``x``."""
        if not self.cfg.pointwise or self.cut.width == self.cfg.out_size[1]:
            return y, x
        place, width = y * self.cut.width + x, self.cfg.out_size[1]
        return place // width, place % width

    def result_place(
        self, n: Expr, vector: Expr, pixel: tuple[Expr, Expr], lane: Expr
    ) -> tuple[Expr, ...]:
        """Index of an output element of a pixel."""
        return (n, vector, *pixel, lane)

    def input_place(
        self, tile: Tile, tap: tuple[Expr, Expr, Expr], channel: Expr, lane: Expr
    ) -> tuple[int | Expr, ...]:
        """Index of the input element under one tap of one pixel."""
        p, ky, kx = tap
        cfg = self.cfg
        row, column = self.pixel(tile.y, tile.x + p)
        if not cfg.pointwise:
            row = row * cfg.stride[0] + ky * cfg.dilation[0] - cfg.padding[0]
            column = column * cfg.stride[1] + kx * cfg.dilation[1] - cfg.padding[1]
        place = (tile.n, channel, row, column)
        return (*place, lane) if cfg.data_block > 1 else place
