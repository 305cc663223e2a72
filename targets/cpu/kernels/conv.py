"""Direct convolution in blocked layout, and dense layers as convolutions of pixels: the template.

    out[n, o, y, x, lane] = sum of data[n, ic, y', x', ii] * weight[group, ic, ky, kx, ii, lane']

The loop nest is in `conv_nest.py`, the cost families in `conv_features.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any, ClassVar, TypeVar

from tvm import relax, te, tirx, topi
from tvm.ir import Expr

from tvm_stretch.targets.cpu.kernels.conv_tiles import tiles_of_piece, write_in_pieces
from tvm_stretch.targets.kernels.channel_runs import ChannelRun, channel_runs, whole_run
from tvm_stretch.targets.kernels.conv_features import ConvFeatures, DenseFeatures
from tvm_stretch.targets.kernels.cycles import (
    Step,
    conv_step,
    direct_cycles,
    register_tiles,
    step_cycles,
)
from tvm_stretch.targets.kernels.features import EpilogueWork
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.halves import NARROW
from tvm_stretch.targets.kernels.layers import ConvShape, Layer, taken
from tvm_stretch.targets.kernels.loops import const
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, kernel_call

from .conv_nest import ConvNest, write_nest
from .conv_tiles import Tile, blocking, cut_for_parts

FEW_ROWS = 24
"""Rows of dense layers for which reading weights takes the time: those of two bytes stay so in
memory, and become float32 in registers. Zen 4: 1, 12, 24 and 64 rows 0.48, 0.68, 0.97, 1.01."""

Conv = TypeVar("Conv", bound="ConvConfig")


@dataclass(frozen=True, kw_only=True)
class ConvConfig(Template, ConvShape):
    """A convolution and its register tile.

    ``data_block`` is 1 if the input is plain NCHW (the first layer, dense layers), otherwise the
    machine's lanes; ``merged_groups`` groups are computed as one so that each starts on a block.
    """

    template: ClassVar[str] = "conv"
    layers: ClassVar[tuple[type[Layer], ...]] = (ConvShape,)
    families: ClassVar[tuple[type[ConvFeatures], type[DenseFeatures]]] = (
        ConvFeatures,
        DenseFeatures,
    )

    lanes: int
    data_block: int
    oc_blocks: int
    pixels: int
    merged_groups: int = 1

    @property
    def out_blocks(self) -> int:
        """Vectors of output channels, the last one perhaps partly empty."""
        return -(-self.out_channels // self.lanes)

    @property
    def out_groups(self) -> int:
        """Register tiles over the output channels."""
        return -(-self.out_blocks // self.oc_blocks)

    @property
    def reduce_blocks(self) -> int:
        """Input channel blocks that one output channel reads."""
        per_group = self.in_channels // self.groups * self.merged_groups
        return -(-min(per_group, self.in_channels) // self.data_block)

    @property
    def in_blocks(self) -> int:
        """Input channel blocks of the whole input."""
        return -(-self.in_channels // self.data_block)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Packed weights, in the order in which the inner loops read them."""
        width = self.oc_blocks * self.lanes
        return (self.out_groups, self.reduce_blocks, *self.kernel, self.data_block, width)

    def first_block(self, out_block: int | Expr) -> int | Expr:
        """First input channel block that the given output block reads."""
        if self.groups == self.merged_groups:
            return 0
        width = self.out_channels // self.groups * self.merged_groups // self.lanes
        return out_block // width * self.reduce_blocks

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.batch, self.out_blocks, *self.out_size, self.lanes)

    # --- choice ---

    @classmethod
    def smallest(
        cls: type[Conv], shape: ConvShape, machine: VectorMachine, block: int, **more: Any
    ) -> Conv:
        """The configuration with the smallest tile."""
        widths = (shape.in_channels, shape.out_channels)
        merge = merged_groups(*widths, shape.groups, machine.lanes)
        tile = {"oc_blocks": 1, "pixels": 1, "merged_groups": merge}
        more = {"lanes": machine.lanes, "data_block": block, **tile, **more}
        return taken(cls, shape, **more)

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> list[ConvConfig]:
        """A configuration for each register tile; strided pixels are gathered before."""
        if layer.is_depthwise:
            return []
        shape = layer.gathered() if gathers_pixels(layer, machine) else layer
        return cls.smallest(shape, machine, block).tiled(register_tiles(machine))

    def tiled(self: Conv, tiles: Iterable[tuple[int, int]]) -> list[Conv]:
        """This convolution in tiles of pixels and vectors; tiles end where groups do."""
        tiled = [replace(self, pixels=pixels, oc_blocks=blocks) for pixels, blocks in tiles]
        if self.groups > self.merged_groups:
            width = self.out_channels // self.groups * self.merged_groups // self.lanes
            tiled = [config for config in tiled if width % config.oc_blocks == 0]
        return tiled

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        """Cycles of one core; ``step`` may replace the model of a step."""
        return direct_cycles(self, machine, step or self.step)

    def step(self, pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        """Cycles for one input channel of a tile."""
        is_roomy = self.has_rows and not machine.crowded_rows
        return (step_cycles if is_roomy else conv_step)(pixels, blocks, slab, machine)

    @property
    def block(self) -> int:
        return self.data_block

    @property
    def has_rows(self) -> bool:
        """Whether it is a dense layer of several rows."""
        is_matrix = self.is_dense and self.pointwise and (self.batch, self.groups) == (1, 1)
        return is_matrix and self.in_size[0] > 1

    def in_rows(self) -> ConvConfig | None:
        """The same product with plain matrices for data and result; None if it needs blocks.

        One row is a block of channels anyway.
        """
        if not self.has_rows or self.out_channels < self.lanes:
            return None
        return replace(taken(RowsConfig, self), data_block=gcd(self.in_channels, self.lanes))

    # --- calls and meaning ---

    @property
    def kernel_name(self) -> str:
        return "conv2d"

    def call(
        self,
        bb: relax.BlockBuilder,
        *operands: Expr,
        name: str = "",
        sums: str = "float32",
    ) -> relax.Var:
        """Emit the packing of the weights, and the convolution in the type of its sums.

        ``operands`` are data and weights: OIHW, or a matrix (inputs, outputs).
        """
        data, weight = operands

        kept = str(weight.ty.dtype) if self.is_dense and self.in_size[0] <= FEW_ROWS else sums

        def pack(w: te.Tensor) -> te.Tensor:
            return self.pack(w if len(w.shape) == 4 else _as_oihw(w), kept)

        def compute(x: te.Tensor, w: te.Tensor) -> te.Tensor:
            return self.meaning(x, w, sums=sums)

        packed = bb.emit(kernel_call(bb, "pack_weight", (self, kept), pack, weight))
        name = name or self.kernel_name
        return bb.emit(kernel_call(bb, name, (self, sums), compute, data, packed))

    def pack(self, weight: te.Tensor, sums: str = "") -> te.Tensor:
        """OIHW -> [oc group][ic block][ky][kx][ic lane][oc lane], zero if there is no channel.

        In the type of the sums, so that the loops convert nothing, or in the weights' own.
        """
        dtype = sums or str(weight.dtype)
        in_group, out_group = self.in_channels // self.groups, self.out_channels // self.groups

        def element(g: Expr, b: Expr, y: Expr, x: Expr, i: Expr, o: Expr) -> Expr:
            out = (g * self.oc_blocks) * self.lanes + o
            channel = (
                self.first_block(g * self.oc_blocks + o // self.lanes) + b
            ) * self.data_block + i
            row = channel - out // out_group * in_group  # channel within its own group
            exists = tirx.all(out < self.out_channels, row >= 0, row < in_group)
            value = weight[out, row, y, x]
            value = value if dtype == str(weight.dtype) else value.astype(dtype)
            return tirx.if_then_else(exists, value, tirx.const(0, dtype))

        return te.compute(self.weight_shape, element, name="pack_weight")

    def meaning(self, *operands: te.Tensor, sums: str = "") -> te.Tensor:
        """The convolution as a plain reduction over packed operands, in the type of its sums."""
        data, weight = self.widened(operands[0]), operands[1]
        sums = sums or str(data.dtype)

        def pixel(*place: Expr) -> Expr:
            value = padded[place]
            return value if str(data.dtype) == sums else value.astype(sums)

        lane = [0] * (len(data.shape) - 4)
        before, after = ([0, 0, *self.padding[i : i + 2], *lane] for i in (0, 2))
        zero = tirx.const(0, data.dtype)
        padded = topi.nn.pad(data, before, after, zero) if any(self.padding) else data
        blocks = te.reduce_axis((0, self.reduce_blocks), "ic")
        inner = te.reduce_axis((0, self.data_block), "ii")
        ky, kx = (te.reduce_axis((0, k), n) for k, n in zip(self.kernel, ("ky", "kx"), strict=True))
        last = self.in_blocks - 1

        def element(n: Expr, o: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            row, column = (
                y * self.stride[0] + ky * self.dilation[0],
                x * self.stride[1] + kx * self.dilation[1],
            )
            # a last merged group that is partly empty must not read past the input
            channel = tirx.min(self.first_block(o) + blocks, const(last))
            where = (n, channel, row, column) + ((inner,) if self.data_block > 1 else ())
            width = (o % self.oc_blocks) * self.lanes + lane
            factor = self.factor(weight, o // self.oc_blocks, (blocks, ky, kx), inner, width)
            factor = factor.astype(sums) if str(weight.dtype) in NARROW else factor
            return te.sum(pixel(*where) * factor, axis=[blocks, ky, kx, inner])

        return te.compute(self.out_shape, element, name=self.kernel_name, attrs=self.annotation)

    def widened(self, data: te.Tensor) -> te.Tensor:
        """The data in the type in which they are multiplied."""
        return data

    def factor(
        self, weight: te.Tensor, group: Expr, tap: tuple[Expr, ...], inner: Expr, width: Expr
    ) -> Expr:
        """A packed weight: of a group of outputs, a tap of a block, and lanes of both."""
        place = (group, *tap, inner, width)
        return weight[place]

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        cut, (data, weight) = blocking(self, machine), fused.operands[:2]
        part = fused.rectangle
        cut = cut if part is None else cut_for_parts(self, cut)
        nest = ConvNest(self, cut, data, weight, fused.epilogue, machine, part=part)
        tiles = tiles_of_piece(nest)
        return write_in_pieces(nest, tiles) if tiles else write_nest(nest)

    # --- cost ---

    def runs(self) -> list[ChannelRun]:
        """The input channels that the vectors of a tile read."""
        return channel_runs(self, self.oc_blocks) or [whole_run(self, self.oc_blocks)]

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> ConvFeatures:
        """Weights of integer kernels may be wider than their pixels, which matters little."""
        image = self.batch * self.in_blocks * self.data_block * prod(self.in_size)
        numbers = image, prod(self.out_shape), prod(self.weight_shape)
        family, flops = self.families[self.is_dense], 2.0 * self.multiply_adds
        return family.of_kernel(self, self.cycles(machine), epilogue, item, flops, numbers)


@dataclass(frozen=True, kw_only=True)
class RowsConfig(ConvConfig):
    """A dense layer of several rows that reads and writes plain matrices.

    ``data_block`` divides the inputs. The last vector ends with the row: it computes some outputs
    again, with the same result.
    """

    template: ClassVar[str] = "dense_rows"
    layers: ClassVar[tuple[type[Layer], ...]] = ()

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.in_size[0], self.out_channels

    def first_output(self, vector: Expr) -> Expr:
        """The first output of a vector."""
        first = vector * self.lanes
        ragged = self.out_channels % self.lanes
        return tirx.min(first, const(self.out_channels - self.lanes)) if ragged else first

    def pack(self, weight: te.Tensor, sums: str = "") -> te.Tensor:
        """OIHW -> `weight_shape`, zero for vectors that do not exist."""
        dtype = sums or str(weight.dtype)

        def element(g: Expr, b: Expr, _y: Expr, _x: Expr, i: Expr, o: Expr) -> Expr:
            vector = g * self.oc_blocks + o // self.lanes
            out = self.first_output(vector) + o % self.lanes
            value = weight[out, b * self.data_block + i, 0, 0].astype(dtype)
            return tirx.if_then_else(vector < self.out_blocks, value, tirx.const(0, dtype))

        return te.compute(self.weight_shape, element, name="pack_weight")

    def meaning(self, *operands: te.Tensor, sums: str = "") -> te.Tensor:
        """The product as a plain reduction over packed weights."""
        data, weight = operands
        dtype = sums or str(data.dtype)
        k = te.reduce_axis((0, self.in_channels), "k")

        def element(row: Expr, channel: Expr) -> Expr:
            vector = channel // self.lanes
            width = vector % self.oc_blocks * self.lanes + channel - self.first_output(vector)
            block, lane = k // self.data_block, k % self.data_block
            factor = weight[vector // self.oc_blocks, block, 0, 0, lane, width]
            return te.sum(data[row, k].astype(dtype) * factor.astype(dtype), axis=k)

        return te.compute(self.out_shape, element, name="dense", attrs=self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        cut, (data, weight) = blocking(self, machine), fused.operands[:2]
        return write_nest(RowsNest(self, cut, data, weight, fused.epilogue, machine))


class RowsNest(ConvNest):
    """The nest of `RowsConfig`."""

    cfg: RowsConfig

    def runs(self, vectors: int) -> list[ChannelRun]:
        """All channels: they fill their blocks."""
        return [whole_run(self.cfg, vectors)]

    def input_place(
        self, tile: Tile, tap: tuple[Expr, Expr, Expr], channel: Expr, lane: Expr
    ) -> tuple[int | Expr, ...]:
        """Index of an input of a row."""
        row, _ = self.pixel(tile.y, tile.x + tap[0])
        return row, (channel * self.cfg.data_block + lane if self.cfg.data_block > 1 else channel)

    def result_place(
        self, n: Expr, vector: Expr, pixel: tuple[Expr, Expr], lane: Expr
    ) -> tuple[Expr, ...]:
        """Index of an output of a row."""
        return pixel[0], self.cfg.first_output(vector) + lane


def merged_groups(in_channels: int, out_channels: int, groups: int, lanes: int) -> int:
    """How many groups must be merged so that each merged group begins on a channel block."""
    if groups == 1:
        return 1
    merge = 1
    for width in (in_channels // groups, out_channels // groups):
        need = lanes // gcd(width, lanes)
        merge = merge * need // gcd(merge, need)
    return min(merge, groups)


def gathers_pixels(shape: ConvShape, machine: VectorMachine) -> bool:
    """Whether the pixels of a strided 1x1 convolution are gathered before.

    A GPU copies them to local memory anyway.
    """
    return shape.skips_pixels and machine.kind != "gpu"


def _as_oihw(weight: te.Tensor) -> te.Tensor:
    k, n = weight.shape
    return te.compute((n, k, 1, 1), lambda o, i, _y, _x: weight[i, o], name="transpose")
