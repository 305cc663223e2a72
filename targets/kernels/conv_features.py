"""Cost families of convolutions and of matrix products with constant weights."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any, ClassVar

from .channel_runs import mean_channels, winograd_runs
from .features import GIGAHERTZ, L1_BYTES, L2_BYTES, Features, Phases, Work, feature, missing
from .loops import balanced


def _row(config: Any) -> int:
    """Pixels of a row; pointwise convolutions join all rows."""
    height, width = config.out_size
    return int(height * width if config.pointwise else width)


@dataclass(frozen=True)
class ConvFeatures(Features):
    """A direct convolution with its register tile."""

    family: ClassVar[str] = "conv"
    in_channels: int = field(metadata=feature())
    out_channels: int = field(metadata=feature())
    out_height_pixels: int = field(metadata=feature(lambda config: config.out_size[0], least=1))
    out_width_pixels: int = field(metadata=feature(lambda config: config.out_size[1], least=1))
    kernel_height_taps: int = field(metadata=feature(lambda config: config.kernel[0]))
    kernel_width_taps: int = field(metadata=feature(lambda config: config.kernel[1]))
    stride_pixels: int = field(metadata=feature(lambda config: max(config.stride)))
    dilation_pixels: int = field(metadata=feature(lambda config: max(config.dilation)))
    groups: int = field(metadata=feature(least=1))
    data_block_lanes: int = field(metadata=feature("data_block"))
    reduce_lanes: int = field(metadata=feature(lambda config: mean_channels(config.runs())))
    tile_pixels: int = field(metadata=feature("pixels", least=1))
    tile_out_vectors: int = field(metadata=feature("oc_blocks", least=1))
    tail_pixels: int = field(
        metadata=feature(lambda config: min(balanced(_row(config), config.pixels)))
    )
    tail_out_vectors: int = field(
        metadata=feature(lambda config: config.out_blocks % config.oc_blocks)
    )

    @property
    def taps(self) -> int:
        """Taps of the kernel."""
        return self.kernel_height_taps * self.kernel_width_taps

    def own_phases(self) -> Phases:
        """Tiles, their products, and operands that are read more than once."""
        cycles, tiles, accumulators = self._tile_cycles()
        blocks = -(-self.out_channels // self.vector_lanes)
        passes = self.in_bytes * -(-blocks // self.tile_out_vectors)
        multiply = cycles / GIGAHERTZ
        return {
            "multiply": multiply,
            "tiles": tiles * 5,
            "accumulators": accumulators / 2,
            "weights_again": multiply * missing(self._slab_bytes(), L1_BYTES / 2),
            "input_again": passes / 60 * missing(self.in_bytes, L1_BYTES),
            "large_input_again": passes / 30 * missing(self.in_bytes, L2_BYTES),
        }

    def hints(self) -> list[float]:
        """How full tiles are, and the weights that they share."""
        busy = self.flops / (32 * max(1.0, self._tile_cycles()[0]))
        return [*super().hints(), busy, math.log2(1 + self._slab_bytes())]

    def device_work(self) -> Work:
        weights = self.out_channels * (self.in_channels // self.groups) * self.taps
        values = (self.in_bytes + self.out_bytes) / self.item_bytes
        return Work.of_conv(
            self.flops / 2, values, self.in_channels, weights, self.groups, self.taps
        )

    def _tile_cycles(self) -> tuple[float, float, float]:
        """Cycles of the register tiles, number of tiles, and number of accumulators."""
        height, width = self.out_height_pixels, self.out_width_pixels
        one_row = self.taps == 1 and self.stride_pixels == 1
        row, rows = (height * width, 1) if one_row else (width, height)
        steps = self.reduce_lanes * self.taps
        full, tail = divmod(-(-self.out_channels // self.vector_lanes), self.tile_out_vectors)
        sizes = Counter(balanced(row, self.tile_pixels))
        cycles = tiles = accumulators = 0.0
        for vectors, count in ((self.tile_out_vectors, full), (tail, 1)):
            for size, times in sizes.items() if vectors and count else ():
                number = count * times * rows
                cycles += number * steps * max(size * vectors / 2, (vectors + size) / 1.6, 4.0)
                tiles += number
                accumulators += number * size * vectors
        return cycles, tiles, accumulators

    def _slab_bytes(self) -> float:
        """Weights of one group of output channels, which every tile reads."""
        width = self.item_bytes * self.tile_out_vectors * self.vector_lanes
        return float(width * self.reduce_lanes * self.taps)


@dataclass(frozen=True)
class DenseFeatures(ConvFeatures):
    """A matrix product: a pointwise convolution of a few pixels, limited by its weights."""

    family: ClassVar[str] = "dense"


@dataclass(frozen=True)
class IntegerConvFeatures(ConvFeatures):
    """A direct convolution of 8-bit numbers."""

    family: ClassVar[str] = "integer_conv"
    result_bytes: ClassVar[int] = 1  # also where pixels were widened


@dataclass(frozen=True)
class IntegerDenseFeatures(DenseFeatures):
    """A matrix product of 8-bit numbers."""

    family: ClassVar[str] = "integer_dense"
    result_bytes: ClassVar[int] = 1


@dataclass(frozen=True)
class WinogradFeatures(Features):
    """A Winograd convolution with its tiles, or one of the two kernels it can be split into."""

    family: ClassVar[str] = "winograd"
    in_channels: int = field(metadata=feature())
    out_channels: int = field(metadata=feature())
    out_height_pixels: int = field(metadata=feature(lambda config: config.out_size[0], least=1))
    out_width_pixels: int = field(metadata=feature(lambda config: config.out_size[1], least=1))
    groups: int = field(metadata=feature(least=1))
    merged_groups: int = field(metadata=feature(least=1))
    tile_side_pixels: int = field(metadata=feature("tile"))
    tiles: int = field(metadata=feature(lambda config: prod(config.tiles), least=1))
    reduce_lanes: int = field(
        metadata=feature(lambda config: mean_channels(winograd_runs(config, config.oc_blocks)))
    )
    register_tiles: int = field(metadata=feature("pixels", least=1))
    register_out_vectors: int = field(metadata=feature("oc_blocks", least=1))
    tail_tiles: int = field(
        metadata=feature(lambda config: min(balanced(prod(config.tiles), config.pixels)))
    )
    # 1; earlier measurements have kernels without one of the stages, 0
    input_stages: int = 1
    product_stages: int = 1

    def own_phases(self) -> Phases:
        """Transforms, products, and the planes between them."""
        square = (self.tile_side_pixels + 2) ** 2
        parts = max(1, self.groups // self.merged_groups)
        lanes = self.vector_lanes
        inputs = -(-self.reduce_lanes // lanes)
        outputs = -(-self.out_channels // parts // lanes)
        full, tail = divmod(outputs, self.register_out_vectors)
        steps = sum(
            count * max(size * vectors / 2, (size + vectors) / 1.6, 4.0)
            for vectors, count in ((self.register_out_vectors, full), (tail, min(tail, 1)))
            for size in balanced(self.tiles, self.register_tiles)
        )
        product = square * parts * self.reduce_lanes * steps
        between = self.item_bytes * square * self.tiles * (inputs + outputs) * lanes
        return {
            "multiply": self.product_stages * product / GIGAHERTZ,
            "input_transform": self.input_stages * self.tiles * parts * inputs * square / 2,
            "output_transform": self.product_stages * self.tiles * parts * outputs * square / 2,
            "steps": self.product_stages * square * parts * outputs * self.reduce_lanes,
            "between": between * missing(between, L2_BYTES) / 30,
            "rows_of_tiles": math.sqrt(self.tiles) * parts * inputs * 5,
        }

    def device_work(self) -> Work:
        """The work of the convolution on any device; Winograd's transform of inputs has none."""
        read = self.in_bytes / self.item_bytes
        weights = self.out_channels * (self.in_channels // self.groups) * 9
        values = read + self.out_bytes / self.item_bytes
        return Work.of_conv(self.flops / 2, values, self.in_channels, weights, self.groups, 9)
