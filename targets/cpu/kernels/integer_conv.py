"""Convolutions and dense layers of 8-bit numbers in blocked layout: the template.

A machine adds products in its own way (`dots.py`). The nest is that of `conv_nest.py`: a tile of
pixels and vectors of output channels, whose int32 sums stay in registers; each step multiplies a
word of four input channels of each pixel. Taps in the padding are omitted, which is right for a
zero point of 0; otherwise `integer_blocks.py` pads before. `matrix_conv.py` and `hvx_conv.py` are
the templates of instructions that need another nest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig, gathers_pixels
from tvm_stretch.targets.cpu.kernels.conv_nest import ConvNest, write_nest
from tvm_stretch.targets.cpu.kernels.conv_tiles import Blocking, Tap, Tile, blocking
from tvm_stretch.targets.kernels.accumulators import Accumulators, Sum
from tvm_stretch.targets.kernels.channel_runs import ChannelRun, channel_runs, whole_run
from tvm_stretch.targets.kernels.conv_features import IntegerConvFeatures, IntegerDenseFeatures
from tvm_stretch.targets.kernels.cycles import register_tiles, step_cycles
from tvm_stretch.targets.kernels.dots import DOTS, WORD, OfWords, by_vectors, shifted
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, IntegerConvShape, Layer
from tvm_stretch.targets.kernels.loops import block, load, unrolled
from tvm_stretch.targets.kernels.machine import VectorMachine


def integer_blocking(cfg: IntegerConvConfig, machine: VectorMachine) -> Blocking:
    """As for float32, with a quarter of the bytes per number; the reduction is never split."""
    cut = blocking(cfg, replace(machine, l2_bytes=4 * machine.l2_bytes))
    return replace(cut, chunk=cfg.reduce_blocks, chunks=1)


class IntegerNest(ConvNest):
    """Multiplies words instead of single channels."""

    cfg: IntegerConvConfig

    def finished(
        self, acc: Accumulators, finish: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """Finish all sums; words without loops, so that stores of neighbours can be packed."""
        return acc.written_out(finish) if self.cfg.way.words else acc.for_each(finish)

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
                return way.apply(cfg.lanes, partial(step, part, one))

            vectors = range(*run.vectors)
            parts = [acc.sums(partial(every_lane, i), active, vectors) for i in range(way.parts)]
            return block(*(statement for part in parts for statement in part))

        first, end = run.lanes[0] // WORD, -(-run.lanes[1] // WORD)
        ahead = [] if first or way.words else self.weights_ahead(tile, ic, ky, kx)
        return block(*ahead, unrolled(first, end - first, products, "word"))

    def runs(self, vectors: int) -> list[ChannelRun] | None:
        """Only whole words; channels of two groups in one word are multiplied by zeros."""
        return integer_runs(self.cfg, vectors)


def integer_runs(cfg: ConvConfig, vectors: int) -> list[ChannelRun] | None:
    """The runs that ``vectors`` of a tile read, in whole words; None if tiles differ."""
    runs = channel_runs(cfg, vectors) if cfg.data_block > WORD else None
    if runs is None or cfg.data_block != cfg.lanes:
        return None
    inner = [lane for run in runs for lane in run.lanes]
    whole = all(lane % WORD == 0 for lane in inner) or cfg.groups == 1
    return runs if whole else [whole_run(cfg, vectors)]


@dataclass(frozen=True, kw_only=True)
class IntegerConvConfig(OfWords, ConvConfig):
    """A convolution of 8-bit pixels."""

    template: ClassVar[str] = "integer_conv"
    layers: ClassVar[tuple[type[Layer], ...]] = (IntegerConvShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)
    is_last_resort: ClassVar[bool] = True  # other ways multiply more in an instruction
    nest: ClassVar[type[IntegerNest]] = IntegerNest
    families: ClassVar[tuple[type[IntegerConvFeatures], type[IntegerDenseFeatures]]] = (
        IntegerConvFeatures,
        IntegerDenseFeatures,
    )

    @property
    def weight_shape(self) -> tuple[int, ...]:
        width = self.oc_blocks * self.lanes * self.way.together
        words = (self.data_block // WORD, self.way.parts, width)
        return (self.out_groups, self.reduce_blocks, *self.kernel, *words)

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> list[ConvConfig]:
        """A configuration for each register tile, if the machine multiplies this layer so."""
        assert isinstance(layer, IntegerConvShape)
        if layer.is_depthwise:
            return []
        shape = layer.gathered() if gathers_pixels(layer, machine) else layer
        assert isinstance(shape, IntegerConvShape)
        dot = cls.dot_for(shape, machine, block)
        if dot is None:
            return []
        config = cls.smallest(shape, machine, block, dot=dot)
        return [tiling for tiling in config.tiled(config.tiles(machine)) if tiling.is_useful]

    @classmethod
    def dot_for(cls, shape: IntegerConvShape, machine: VectorMachine, block: int) -> str | None:
        """The way in which this template adds the products of a layer; None if it cannot."""
        return by_vectors(machine.dot, shape.dtype)

    def tiles(self, machine: VectorMachine) -> Iterable[tuple[int, int]]:
        """Register tiles of pixels and vectors.

        Products that are added by another instruction need registers, and LLVM loads weights of
        the next word early: with more sums it spills (AVX2: 84 instead of 75 multiply-adds a ns).
        """
        if not self.way.intrinsic or self.way.parts == 1:
            return register_tiles(machine)
        spare = machine.registers // 8 + 1
        return register_tiles(replace(machine, registers=machine.registers - spare))

    @property
    def is_useful(self) -> bool:
        """Whether the tile may be faster than others."""
        return True

    def step(self, pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        """Cycles for one input channel of a tile."""
        pieces = self.way.parts * (1 if self.way.parts == 1 else 2)
        return pieces * step_cycles(pixels, blocks, slab // 4, machine) / WORD

    def pack(self, weight: te.Tensor, sums: str = "") -> te.Tensor:
        in_group, out_group = self.in_channels // self.groups, self.out_channels // self.groups
        way = self.way

        def element(
            g: Expr, b: Expr, y: Expr, x: Expr, word: Expr, part: Expr, place: Expr
        ) -> Expr:
            o = place // way.together
            out = (g * self.oc_blocks) * self.lanes + o
            lane = word * WORD + way.channel(part, place % way.together)
            first = self.first_block(g * self.oc_blocks + o // self.lanes)
            row = (first + b) * self.data_block + lane - out // out_group * in_group
            exists = tirx.all(out < self.out_channels, row >= 0, row < in_group)
            return tirx.if_then_else(
                exists, way.packed(weight[out, row, y, x]), tirx.const(way.offset, way.weight)
            )

        return te.compute(self.weight_shape, element, name="pack_integer_weight")

    @property
    def kernel_name(self) -> str:
        return "integer_conv2d"

    @property
    def sampled(self) -> object:
        """The layer of bytes from which pixels were widened, if they were."""
        return replace(self, dtype="uint8") if self.dtype == "int16" else self

    def widened(self, data: te.Tensor) -> te.Tensor:
        """The data in the range of the instruction's type."""
        return shifted(data, self.way.shift(self.dtype))

    def factor(
        self, weight: te.Tensor, group: Expr, tap: tuple[Expr, ...], inner: Expr, width: Expr
    ) -> Expr:
        way, (block, ky, kx) = self.way, tap
        part, place = way.place(inner % WORD)
        packed = weight[group, block, ky, kx, inner // WORD, part, width * way.together + place]
        return packed.astype("int32") - tirx.const(way.offset, "int32")

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        cut, (data, weight) = integer_blocking(self, machine), fused.operands[:2]
        return write_nest(self.nest(self, cut, data, weight, fused.epilogue, machine))

    def runs(self) -> list[ChannelRun]:
        """Tiles read whole words of all channels."""
        return [whole_run(self, self.oc_blocks)]


def dense_dot(machine: VectorMachine, shape: IntegerConvShape) -> str:
    """The machine's other way for convolutions of these pixels; empty if it has none."""
    return dict(DOTS[machine.dot].dense).get(shape.dtype, "")
