"""The loop nest of convolutions and dense layers of 8-bit numbers.

The nest is that of `conv_nest.py`: a tile of pixels and vectors of output channels, whose int32
sums stay in registers; each step multiplies a word of four input channels of each pixel
(`dots.py`). Taps in the padding are omitted, which is right for a zero point of 0; otherwise
`integer_blocks.py` pads before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from .accumulators import Accumulators, Sum
from .channel_runs import ChannelRun, channel_runs, whole_run
from .conv_nest import ConvNest
from .conv_tiles import Blocking, Reduction, Tile, blocking, column_segments
from .dots import WORD
from .loops import block, fenced_span, load, span, unrolled, within
from .machine import VectorMachine
from .window_taps import kernel_rows

if TYPE_CHECKING:
    from .conv import ConvConfig
    from .integer_conv import IntegerConvConfig


def integer_blocking(cfg: IntegerConvConfig, machine: VectorMachine) -> Blocking:
    """As for float32, with a quarter of the bytes per number; the reduction is never split."""
    cut = blocking(cfg, replace(machine, l2_bytes=4 * machine.l2_bytes))
    return replace(cut, chunk=cfg.reduce_blocks, chunks=1)


class IntegerNest(ConvNest):
    """Multiplies words instead of single channels."""

    cfg: IntegerConvConfig

    def begin(self, _tile: Tile) -> Callable[[Expr, Expr], Expr]:
        """The initial sums of each pixel and vector of channels."""
        return lambda _p, _o: tirx.const(0, "int32")

    def tile(
        self,
        tile: Tile,
        reduce: Sequence[Reduction],
        start: Callable[[Expr, Expr, Expr], Expr] | None,
        finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt],
    ) -> tirx.Stmt:
        """Sums in registers: zero, reduction over channel blocks, finish."""
        acc = Accumulators(len(tile.taps), tile.blocks, self.cfg.lanes, dtype="int32")
        begin = self.begin(tile)
        return within(
            acc.buffers,
            [
                *acc.start(lambda p, o, _v: begin(p, o)),
                *self.reduction(tile, reduce, acc),
                *self.finished(acc, finish),
            ],
        )

    def finished(
        self, acc: Accumulators, finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Finish all sums; words without loops, so that stores of neighbours can be packed."""
        return acc.written_out(finish) if self.cfg.way.words else acc.each(finish)

    def reduction(
        self, tile: Tile, reduce: Sequence[Reduction], acc: Accumulators
    ) -> list[tirx.Stmt]:
        """All products of a tile."""
        cfg, way = self.cfg, self.cfg.way
        first_block = cfg.first_block(tile.group * cfg.oc_blocks)
        segments = column_segments(tile.taps)
        fenced = span if cfg.way.words else fenced_span  # fences make LLVM for Hexagon hang
        columns = fenced if cfg.kernel[1] > 1 else span
        low, count = kernel_rows(cfg, tile.y)

        def word(ic: Expr, tap: tuple[Expr, Expr], at: Expr, p: Expr) -> list[Expr]:
            def pixel(channel: Expr | int) -> Expr:
                lane = at * WORD + channel
                place = self.input_place(tile, (p, *tap), first_block + ic, lane)
                return load(self.data, *place)

            return way.pieces(pixel, cfg.dtype, cfg.lanes)

        def products(
            run: ChannelRun, ic: Expr, tap: tuple[Expr, Expr], active: Sequence[int], at: Expr
        ) -> tirx.Stmt:
            def step(part: int, one: Sum, lane: Expr, count: int) -> tirx.Stmt:
                place = way.weights(lane, one.block * cfg.lanes, count)
                weight = load(self.weight, tile.group, ic, *tap, at, part, place)
                piece = word(ic, tap, at, one.pixel)[part]
                return one.set(lane, way.add(one.value(lane), piece, weight, count))

            def every_lane(part: int, one: Sum) -> tirx.Stmt:
                return way.each(cfg.lanes, partial(step, part, one))

            vectors = range(*run.vectors)
            parts = [acc.sums(partial(every_lane, i), active, vectors) for i in range(way.parts)]
            return block([statement for part in parts for statement in part])

        def tap(run: ChannelRun, ic: Expr, ky: Expr, kx: Expr, active: Sequence[int]) -> tirx.Stmt:
            first, end = run.lanes[0] // WORD, -(-run.lanes[1] // WORD)
            ahead = [] if first or way.words else self.weights_ahead(tile, ic, ky, kx)
            words = unrolled(
                first, end - first, lambda at: products(run, ic, (ky, kx), active, at), "word"
            )
            return block([*ahead, words])

        def rows(run: ChannelRun, ic: Expr) -> tirx.Stmt:
            def row(ky: Expr) -> tirx.Stmt:
                return block(
                    [
                        columns(lo, hi - lo, lambda kx, a=active: tap(run, ic, ky, kx, a), "kx")
                        for lo, hi, active in segments
                    ]
                )

            return span(low, count, row, "ky")

        apart = fenced if len(reduce) > 1 else span
        return [
            apart(begin, blocks, lambda ic, run=run: rows(run, ic), "ic")
            for run, begin, blocks in (reduce if segments else [])
        ]

    def runs(self, vectors: int) -> list[ChannelRun] | None:
        """Only whole words; channels of two groups in one word are multiplied by zeros."""
        return integer_runs(self.cfg, vectors)


def integer_runs(cfg: ConvConfig, vectors: int) -> list[ChannelRun] | None:
    """The runs that ``vectors`` of a tile read, in whole words; None if tiles differ."""
    found = channel_runs(cfg, vectors) if cfg.data_block > WORD else None
    if found is None or cfg.data_block != cfg.lanes:
        return None
    inner = [lane for run in found for lane in run.lanes]
    whole = all(lane % WORD == 0 for lane in inner) or cfg.groups == 1
    return found if whole else [whole_run(cfg, vectors)]
