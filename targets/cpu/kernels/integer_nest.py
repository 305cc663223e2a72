"""The loop nest of convolutions and dense layers of 8-bit numbers.

The nest is that of `conv_nest.py`: a tile of pixels and vectors of output channels, whose int32
sums stay in registers; each step multiplies a word of four input channels of each pixel
(`dots.py`). Taps in the padding are omitted, which is right for a zero point of 0; otherwise
`integer_blocks.py` pads before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Accumulators, Sum
from tvm_stretch.targets.kernels.dots import WORD
from tvm_stretch.targets.kernels.loops import block, fenced_span, load, span, unrolled
from tvm_stretch.targets.kernels.machine import VectorMachine

from .channel_runs import ChannelRun, channel_runs, whole_run
from .conv_nest import ConvNest
from .conv_tiles import Blocking, Tap, Tile, blocking

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

    @property
    def fenced(self) -> Callable[..., tirx.Stmt]:
        """As for floats, except that fences make LLVM for Hexagon hang."""
        return span if self.cfg.way.words else fenced_span

    def finished(
        self, acc: Accumulators, finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Finish all sums; words without loops, so that stores of neighbours can be packed."""
        return acc.written_out(finish) if self.cfg.way.words else acc.each(finish)

    def tap(self, acc: Accumulators, tile: Tile, run: ChannelRun, ic: Expr, tap: Tap) -> tirx.Stmt:
        """Add the products of the words of a run of channels under one tap."""
        cfg, way, (ky, kx, active) = self.cfg, self.cfg.way, tap
        first_block = cfg.first_block(tile.group * cfg.oc_blocks)

        def pieces(at: Expr, p: Expr) -> list[Expr]:
            def pixel(channel: Expr | int) -> Expr:
                lane = at * WORD + channel
                place = self.input_place(tile, (p, ky, kx), first_block + ic, lane)
                return load(self.data, *place)

            return way.pieces(pixel, cfg.dtype, cfg.lanes)

        def products(at: Expr) -> tirx.Stmt:
            def step(part: int, one: Sum, lane: Expr, count: int) -> tirx.Stmt:
                place = way.weights(lane, one.block * cfg.lanes, count)
                weight = load(self.weight, tile.group, ic, ky, kx, at, part, place)
                piece = pieces(at, one.pixel)[part]
                return one.set(lane, way.add(one.value(lane), piece, weight, count))

            def every_lane(part: int, one: Sum) -> tirx.Stmt:
                return way.each(cfg.lanes, partial(step, part, one))

            vectors = range(*run.vectors)
            parts = [acc.sums(partial(every_lane, i), active, vectors) for i in range(way.parts)]
            return block([statement for part in parts for statement in part])

        first, end = run.lanes[0] // WORD, -(-run.lanes[1] // WORD)
        ahead = [] if first or way.words else self.weights_ahead(tile, ic, ky, kx)
        return block([*ahead, unrolled(first, end - first, products, "word")])

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
