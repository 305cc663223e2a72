"""Layers in bfloat16 with float32 sums, on CPUs with tiles of matrices (AMX).

    out[m, n] = sum of bfloat16(x[m, k]) * bfloat16(weight[k, n])

A tile register holds 16 rows of 64 bytes; one instruction adds the products of 16 x 32 by 32 x 16
numbers. A task is a band of rows, whose inputs are rounded once::

    for band of 32 rows, share of columns:     # parallel
      rounded[row, k] = bfloat16(x)            # in the second-level cache
      for group of 32 columns:
        sums[2][2] = 0                         # tile registers
        for 32 of k:
          sums += rounded * packed             # four instructions for four loads
        out = epilogue(sums)

A convolution is a product whose rows are pixels of the result: a band gathers all of their taps.
Weights are packed as the instruction reads them, two neighbouring ``k`` in a word, and padded with
zeros.  They have half of float32's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm import relax, te, tirx, topi
from tvm.ir import Expr

from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import BfloatShape, ConvShape, Layer, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, kernel_call

from .bfloat_nest import COLUMNS, DEPTH, LANES, ROWS, SIDE, ConvNest, DenseNest, rounded, widened
from .conv import gathers_pixels


@dataclass(frozen=True)
class BfloatConfig(Template, BfloatShape):
    """The kernel has no choices."""

    template: ClassVar[str] = "bfloat"
    layers: ClassVar[tuple[type[Layer], ...]] = (BfloatShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.rows, self.columns

    @property
    def steps(self) -> int:
        """Instructions for each sum."""
        return -(-self.depth // DEPTH)

    @property
    def groups(self) -> int:
        """Groups of columns."""
        return -(-self.columns // COLUMNS)

    @classmethod
    def configure(
        cls, layer: BfloatShape, machine: VectorMachine, block: int
    ) -> Iterable[Template]:
        return [taken(cls, layer)] if machine.bfloat and layer.rows * layer.depth else []

    def cycles(self, machine: VectorMachine) -> float:
        bands = -(-self.rows // ROWS)
        return bands * (self.groups * (self.steps * 4 * SIDE + 200) + self.depth * ROWS / 4)

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        data, weight = operands
        return [data, bb.emit(kernel_call(bb, "pack_bfloat", self, self.pack, weight))]

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """The weights, rounded: of a group, a step and a tile, pairs of ``k`` for each column."""

        def element(k: Expr, n: Expr) -> Expr:
            inside = tirx.all(k < self.depth, n < self.columns)
            value = weight[tirx.min(k, self.depth - 1), tirx.min(n, self.columns - 1)]
            value = value.astype("float32")  # weights may be stored as float16
            return tirx.Select(inside, rounded(value), tirx.const(0, "uint16"))

        return _packed(self.columns, self.steps, element)

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The product as a plain reduction of rounded numbers."""
        data, packed = operands
        k = te.reduce_axis((0, self.depth), "k")

        def element(m: Expr, n: Expr) -> Expr:
            weight = packed[_place(k.var, n)]
            return te.sum(widened(rounded(data[m, k.var])) * widened(weight), axis=k)

        return te.compute((self.rows, self.columns), element, name="bfloat", attrs=self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, packed = fused.operands
        nest = DenseNest(
            fused, packed, self.rows, self.columns, self.steps, data=data, depth=self.depth
        )
        return nest.write(1, machine.threads)


@dataclass(frozen=True, kw_only=True)
class BfloatConvConfig(Template, ConvShape):
    """A convolution of blocks of channels; its rows are pixels with all taps."""

    template: ClassVar[str] = "bfloat_conv"
    layers: ClassVar[tuple[type[Layer], ...]] = (ConvShape,)
    machines: ClassVar[tuple[str, ...]] = ("core",)

    @property
    def in_blocks(self) -> int:
        """Blocks of input channels."""
        return -(-self.in_channels // LANES)

    @property
    def depth(self) -> int:
        """Numbers of a row."""
        return prod(self.kernel) * self.in_blocks * LANES

    @property
    def steps(self) -> int:
        """Instructions for each sum."""
        return -(-self.depth // DEPTH)

    @property
    def columns(self) -> int:
        """Output channels of whole blocks."""
        return -(-self.out_channels // LANES) * LANES

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.batch, self.columns // LANES, *self.out_size, LANES

    @classmethod
    def configure(cls, layer: ConvShape, machine: VectorMachine, block: int) -> Iterable[Template]:
        fits = machine.bfloat and block == LANES and layer.groups == 1
        shape = layer.gathered() if gathers_pixels(layer, machine) else layer
        return [taken(cls, shape)] if fits and not (layer.exact or layer.is_dense) else []

    def cycles(self, machine: VectorMachine) -> float:
        bands = self.batch * -(-prod(self.out_size) // ROWS)
        groups = -(-self.columns // COLUMNS)
        return bands * (groups * (self.steps * 4 * SIDE + 200) + self.depth * ROWS / 4)

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        data, weight = operands
        return [data, bb.emit(kernel_call(bb, "pack_bfloat", self, self.pack, weight))]

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """The weights of OIHW, as `BfloatConfig.pack` has them; the channels of a tap together."""
        channels, width = self.in_blocks * LANES, self.kernel[1]

        def element(k: Expr, n: Expr) -> Expr:
            tap, channel = k // channels, k % channels
            exists = tirx.all(k < self.depth, channel < self.in_channels, n < self.out_channels)
            place = (
                tirx.min(n, self.out_channels - 1),
                tirx.min(channel, self.in_channels - 1),
                tirx.min(tap // width, self.kernel[0] - 1),
                tap % width,
            )
            return tirx.Select(exists, rounded(weight[place]), tirx.const(0, "uint16"))

        return _packed(self.columns, self.steps, element)

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The convolution as a plain reduction of rounded numbers."""
        data, packed = operands
        before, after = ([0, 0, *self.padding[i : i + 2], 0] for i in (0, 2))
        padded = topi.nn.pad(data, before, after, 0.0) if any(self.padding) else data
        sizes = (self.in_blocks, *self.kernel, LANES)
        names = ("ic", "ky", "kx", "ii")
        axes = [te.reduce_axis((0, size), name) for size, name in zip(sizes, names, strict=True)]
        b, ky, kx, inner = (axis.var for axis in axes)

        def element(n: Expr, o: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            row, column = (
                place * step + tap * apart
                for place, step, tap, apart in zip(
                    (y, x), self.stride, (ky, kx), self.dilation, strict=True
                )
            )
            k = ((ky * self.kernel[1] + kx) * self.in_blocks + b) * LANES + inner
            weight = packed[_place(k, o * LANES + lane)]
            value = widened(rounded(padded[n, b, row, column, inner]))
            return te.sum(value * widened(weight), axis=axes)

        return te.compute(self.out_shape, element, name="bfloat_conv", attrs=self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        data, packed = fused.operands
        pixels = prod(self.out_size)
        nest = ConvNest(
            fused, packed, pixels, self.columns, self.steps, data=data, layer=self, depth=self.depth
        )
        return nest.write(self.batch, machine.threads)


def _packed(columns: int, steps: int, element: Callable[[Expr, Expr], Expr]) -> te.Tensor:
    """Weights of a group, a step and a tile: pairs of ``k`` for each column."""

    def packed(*axes: Expr) -> Expr:
        group, step, tile, pair, column, one = axes
        return element(step * DEPTH + pair * 2 + one, (group * 2 + tile) * SIDE + column)

    shape = (-(-columns // COLUMNS), steps, 2, SIDE, SIDE, 2)
    return te.compute(shape, packed, name="pack_bfloat")


def _place(k: Expr, n: Expr) -> tuple[Expr, ...]:
    """Where the packed weight of an input and an output stands."""
    pair = k % DEPTH
    return n // COLUMNS, k // DEPTH, n % COLUMNS // SIDE, pair // 2, n % SIDE, pair % 2
