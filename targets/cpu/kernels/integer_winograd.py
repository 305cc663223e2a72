"""Winograd's F(2x2) for 3x3 layers of 8-bit numbers, exactly, where int16 is multiplied.

    out = A^T [ (2G g 2G^T) * (B^T d B) ] A / 4          # 4 instead of 9 products for each output

Twice the matrix G has whole numbers, so nothing is rounded: transformed weights are at most
9 x 128, transformed pixels at most 4 x 255, which int16 holds, and four times the sums of up to
`_MOST_CHANNELS` channels fit int32. CPUs with VNNI multiply bytes faster than this saves; others
make pixels int16 anyway (`integer_blocks.py`). Loops and stages are those of `winograd.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from tvm import te, tirx, topi
from tvm.ir import Expr

from tvm_stretch.targets.kernels.accumulators import Accumulators, Sum
from tvm_stretch.targets.kernels.channel_runs import ChannelRun
from tvm_stretch.targets.kernels.conv_features import WinogradFeatures
from tvm_stretch.targets.kernels.cycles import register_tiles
from tvm_stretch.targets.kernels.dots import WORD, OfWords, by_vectors
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, IntegerConvShape, Layer, taken
from tvm_stretch.targets.kernels.loops import block, const, load, unrolled
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.winograd_sums import WEIGHT

from .integer_conv import IntegerConvConfig
from .winograd import WinogradConfig, suits_winograd
from .winograd_nest import WinogradNest, write_winograd

_MOST_CHANNELS = 2**31 // (4 * 9 * 255 * 128)
"""Inputs whose products add up to less than 2**31, times four."""


class IntegerWinogradNest(WinogradNest):
    """Multiplies two channels at a time."""

    cfg: IntegerWinogradConfig

    def channels(
        self,
        acc: Accumulators,
        run: ChannelRun,
        pixels: int,
        pixel: Callable[[Expr, Expr], Expr],
        place: tuple[Expr, Expr, Expr, Expr],
    ) -> tirx.Stmt:
        """Add the products of a block of inputs, all of whose lanes are read."""
        cfg, way = self.cfg, self.cfg.way
        lane = tirx.Ramp(const(0), const(1), cfg.lanes)

        def products(word: Expr) -> tirx.Stmt:
            def add(part: int, one: Sum) -> tirx.Stmt:
                pieces = way.pieces(lambda i: pixel(one.pixel, word * WORD + i), "int16", cfg.lanes)
                column = way.weights(lane, one.block * cfg.lanes, cfg.lanes)
                weight = load(self.weight, *place, word * way.parts + part, column)
                return one.set(lane, way.add(one.value(lane), pieces[part], weight, cfg.lanes))

            parts = (
                acc.sums(lambda one, i=i: add(i, one), range(pixels)) for i in range(way.parts)
            )
            return block(*(statement for part in parts for statement in part))

        return unrolled(0, cfg.lanes // WORD, products, "word")


@dataclass(frozen=True, kw_only=True)
class IntegerWinogradConfig(OfWords, WinogradConfig):
    """A 3x3 convolution of 8-bit pixels that were made int16."""

    template: ClassVar[str] = "integer_winograd"
    layers: ClassVar[tuple[type[Layer], ...]] = (IntegerConvShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)
    is_last_resort: ClassVar[bool] = True  # as the direct convolution, with which it is compared
    plane_type: ClassVar[str] = "int16"
    plane_bytes: ClassVar[int] = 2
    sum_type: ClassVar[str] = "int32"

    @property
    def weight_shape(self) -> tuple[int, ...]:
        *outer, lanes, width = super().weight_shape
        return (*outer, lanes // self.way.together, width * self.way.together)

    @classmethod
    def configure(
        cls, layer: ConvShape, machine: VectorMachine, block: int
    ) -> list[WinogradConfig]:
        """A configuration for each register tile, of convolutions without groups."""
        assert isinstance(layer, IntegerConvShape)
        dot = by_vectors(machine.dot, layer.dtype) if layer.dtype == "int16" else ""
        fits = layer.groups == 1 and layer.in_channels <= _MOST_CHANNELS
        if not (dot and fits and suits_winograd(layer, machine.lanes, block)):
            return []
        base = taken(cls, layer, lanes=machine.lanes, tile=2, dot=dot)
        spare = machine.registers // 8 + 1  # as for `IntegerConvConfig.tiles`
        tiles = register_tiles(replace(machine, registers=machine.registers - spare))
        return [replace(base, oc_blocks=o, pixels=p) for p, o in tiles if o <= 2]

    step = IntegerConvConfig.step

    @property
    def kernel_name(self) -> str:
        return "integer_winograd_conv2d"

    @property
    def sampled(self) -> object:
        """The layer of bytes from which pixels were widened."""
        return taken(IntegerConvShape, self, dtype="uint8")

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """OIHW -> 2G g 2G^T, packed in pairs of inputs; zero for channels that do not exist."""
        whole = (2 * np.array(WEIGHT[2])).astype("int32")
        matrix, a, pair = topi.utils.const_matrix(whole, "G"), self.alpha, self.way.together
        ky, kx = te.reduce_axis((0, 3), "ky"), te.reduce_axis((0, 3), "kx")

        def element(q: Expr, k: Expr, g: Expr, b: Expr, word: Expr, place: Expr) -> Expr:
            lane, column = word * pair + place % pair, place // pair
            out, row, exists = self.weight_place(q, g, b, lane, column)
            tap = tirx.if_then_else(
                exists, weight[out, row, ky, kx].astype("int32"), tirx.const(0, "int32")
            )
            return te.sum(tap * matrix[k // a, ky] * matrix[k % a, kx], axis=[ky, kx])

        sums = te.compute(self.weight_shape, element, name="integer_winograd_weight")
        return te.compute(self.weight_shape, lambda *i: sums[i].astype("int16"), name="narrowed")

    def factor(self, weight: te.Tensor, place: tuple[Expr, ...], inner: Expr, column: Expr) -> Expr:
        pair = self.way.together
        packed = weight(*place, inner // pair, column * pair + inner % pair)
        return packed.astype("int32")

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The stages as plain sums; the division by 4 becomes part of the epilogue."""
        sums = super().meaning(*operands)
        two = tirx.const(2, "int32")
        return te.compute(sums.shape, lambda *i: tirx.shift_right(sums(*i), two), name="quarter")

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_winograd(self, machine, fused, IntegerWinogradNest)

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> Features | None:
        return taken(IntegerWinogradFeatures, self.whole_work(epilogue, machine, item))


@dataclass(frozen=True)
class IntegerWinogradFeatures(WinogradFeatures):
    """A Winograd convolution of integers."""

    family: ClassVar[str] = "integer_winograd"
