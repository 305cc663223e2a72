"""Winograd convolutions of 3x3 layers in blocked layout: the templates.

The sums are explained in `winograd_sums.py`, loop nests are in `winograd_nest.py`, the cost family
in `conv_features.py`. The transform of the weights runs when an artifact is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tvm import relax, te, tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.channel_runs import winograd_runs
from tvm_stretch.targets.kernels.conv_features import WinogradFeatures
from tvm_stretch.targets.kernels.cycles import (
    WEIGHT_BYTES_PER_CYCLE,
    Step,
    conv_step,
    reduction_cycles,
    register_tiles,
    tile_counts,
)
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, Layer, taken
from tvm_stretch.targets.kernels.loops import const
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template
from tvm_stretch.targets.kernels.winograd_sums import (
    multiply_planes,
    transform_input,
    transform_weight,
    write_weight_transform,
)

from .conv import merged_groups
from .winograd_nest import write_winograd

_TRANSFORM_CYCLES = {2: 2.5, 4: 7.0}
"""Cycles of both transforms for each vector of a plane, by tile: F(2x2) only adds, two terms each;
F(4x4) has twice as many terms, and factors."""


@dataclass(frozen=True, kw_only=True)
class WinogradConfig(Template, ConvShape):
    """A 3x3 convolution of stride 1, its Winograd tile and its register tile.

    ``merged_groups`` groups are computed as one, with zero weights between them, so that each
    starts on a channel block. If the last part has fewer groups, it has zero weights too.
    """

    template: ClassVar[str] = "winograd"
    layers: ClassVar[tuple[type[Layer], ...]] = (ConvShape,)

    plane_type: ClassVar[str] = "float32"  # of transformed inputs
    plane_bytes: ClassVar[int] = 4  # of one of them
    sum_type: ClassVar[str] = "float32"

    lanes: int
    tile: int
    oc_blocks: int = 1
    pixels: int = 1
    merged_groups: int = 1

    @property
    def alpha(self) -> int:
        """Side of an input tile."""
        return self.tile + 2

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

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.batch, self.blocks[1], *self.out_size, self.lanes)

    # --- choice ---

    @classmethod
    def configure(
        cls, layer: ConvShape, machine: VectorMachine, block: int
    ) -> list[WinogradConfig]:
        """A configuration for each tile of the image and each register tile."""
        shape = layer
        # float16 has too few digits for its sums
        if machine.half or shape.exact or not suits_winograd(shape, machine.lanes, block):
            return []
        widths = (shape.in_channels, shape.out_channels)
        merge = merged_groups(*widths, shape.groups, machine.lanes)
        base = taken(cls, shape, lanes=machine.lanes, tile=2, merged_groups=merge)
        return [
            replace(base, tile=tile, oc_blocks=o, pixels=p)
            for tile in (4, 2)
            for p, o in register_tiles(machine)
            # two vectors of outputs measured best; parts of groups must divide evenly
            if (o <= 2 if base.parts == 1 else base.out_blocks % o == 0)
        ]

    def cycles(self, machine: VectorMachine, step: Step | None = None) -> float:
        """Cycles of one core; ``step`` may replace the model of a step."""
        step = step or self.step
        tiles = self.tiles[0] * self.tiles[1]
        square, channels = self.alpha**2, self.in_blocks * self.lanes
        groups = self.parts * self.out_blocks / self.oc_blocks
        slab = channels * self.oc_blocks * self.lanes * 4
        runs = winograd_runs(self, self.oc_blocks)
        products = (
            square
            * groups
            * sum(
                times
                * (reduction_cycles(size, runs, slab, machine, step) + 12 + self.oc_blocks * size)
                for size, times in tile_counts(tiles, self.pixels)
            )
        )
        vectors = tiles * self.parts * (self.in_blocks + self.out_blocks) * square
        transforms = vectors * _TRANSFORM_CYCLES[self.tile]
        # Weights arrive while products are computed, because each tile prefetches its share.
        numbers = square * channels * self.parts * self.out_blocks * self.lanes
        weights = 4 * numbers / WEIGHT_BYTES_PER_CYCLE
        return max(self.batch * products, weights) + self.batch * transforms

    def step(self, pixels: int, blocks: int, slab: int, machine: VectorMachine) -> float:
        """Cycles for one input channel of a tile."""
        return conv_step(pixels, blocks, slab, machine)

    # --- calls and meaning ---

    @property
    def kernel_name(self) -> str:
        return "winograd_conv2d"

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        """The data, and OIHW weights transformed."""
        data, weight = operands
        return [data, taken(WinogradWeight, self).call(bb, weight)]

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The three stages as plain sums."""
        data, weight = operands
        planes = transform_input(self, data, self.annotation)
        return multiply_planes(self, planes, weight, self.annotation)

    def factor(self, weight: te.Tensor, place: tuple[Expr, ...], inner: Expr, column: Expr) -> Expr:
        """A transformed weight: of a block, and lanes of inputs and outputs."""
        return weight(*place, inner, column)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        """All stages, band by band."""
        return write_winograd(self, machine, fused)

    # --- cost ---

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> Features | None:
        return self.whole_work(epilogue, machine, item)

    def whole_work(
        self, epilogue: EpilogueWork, machine: VectorMachine, item: int
    ) -> WinogradFeatures:
        """Features of all stages."""
        outputs = self.parts * self.out_blocks * self.lanes
        numbers = (
            self.batch * self.in_channels * prod(self.in_size),
            self.batch * outputs * prod(self.out_size),
            self.alpha**2 * self.in_blocks * self.lanes * outputs,
        )
        cycles, flops = self.cycles(machine), 2.0 * self.multiply_adds
        return WinogradFeatures.of_kernel(self, cycles, epilogue, item, flops, numbers)


@dataclass(frozen=True, kw_only=True)
class WinogradWeight(WinogradConfig):
    """The transform of the weights, which runs once and is not chosen for a layer."""

    template: ClassVar[str] = "winograd_weight"

    @classmethod
    def configure(
        cls, layer: ConvShape, machine: VectorMachine, block: int
    ) -> list[WinogradConfig]:
        return []

    @property
    def operands(self) -> int:
        return 1

    @property
    def sampled(self) -> object:
        """None: samples are whole convolutions."""
        return None

    @property
    def kernel_name(self) -> str:
        return self.template

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        return operands

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The packed weights as plain sums."""
        (weight,) = operands
        return transform_weight(self, weight, self.annotation)

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_weight_transform(self, fused.operands[0], fused.epilogue.out)

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> Features | None:
        """None: it does not run with the network."""
        return None


def suits_winograd(shape: ConvShape, lanes: int, block: int) -> bool:
    """Whether a convolution is one of 3x3 taps whose channels fill enough blocks."""
    width = min(shape.in_channels, shape.out_channels) // shape.groups
    return (
        (shape.kernel, shape.stride, shape.dilation) == ((3, 3), (1, 1), (1, 1))
        and block == lanes
        and 2 * width >= (4 if shape.groups == 1 else 3) * lanes
        and min(shape.out_size) >= 4
    )
