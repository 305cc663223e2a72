"""Cost families of direct convolutions and of matrix products with constant weights."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from tvm_stretch.targets.kernels.features import (
    GIGAHERTZ,
    L1_BYTES,
    L2_BYTES,
    EpilogueWork,
    Features,
    Phases,
    Work,
    missing,
)
from tvm_stretch.targets.kernels.loops import balanced

from .channel_runs import mean_channels

if TYPE_CHECKING:
    from .conv import ConvConfig


@dataclass(frozen=True)
class ConvFeatures(Features):
    """A direct convolution with its register tile."""

    family: ClassVar[str] = "conv"
    positive: ClassVar[tuple[str, ...]] = (
        *("tile_pixels", "tile_out_vectors", "groups"),
        *("out_height_pixels", "out_width_pixels"),
    )

    in_channels: int
    out_channels: int
    out_height_pixels: int
    out_width_pixels: int
    kernel_height_taps: int
    kernel_width_taps: int
    stride_pixels: int
    dilation_pixels: int
    groups: int
    data_block_lanes: int
    reduce_lanes: int
    tile_pixels: int
    tile_out_vectors: int
    tail_pixels: int
    tail_out_vectors: int

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


@dataclass(frozen=True)
class IntegerDenseFeatures(DenseFeatures):
    """A matrix product of 8-bit numbers."""

    family: ClassVar[str] = "integer_dense"


def conv_features(
    cfg: ConvConfig, epilogue: EpilogueWork, cycles: float, item: int
) -> ConvFeatures:
    """The features of a configuration whose own model says ``cycles``.

    Weights of integer kernels may be wider than their pixels, which matters little. Their results
    have 8 bits, also where pixels were widened.
    """
    height, width = cfg.out_size
    row = height * width if cfg.pointwise else width
    family = cfg.families[cfg.is_dense]
    are_integers = issubclass(family, IntegerConvFeatures | IntegerDenseFeatures)
    return family(
        flops=2.0 * cfg.multiply_adds,
        in_bytes=item * cfg.batch * cfg.in_blocks * cfg.data_block * prod(cfg.in_size)
        + epilogue.bytes,
        weight_bytes=item * prod(cfg.weight_shape),
        out_bytes=epilogue.out_bytes or (1 if are_integers else item) * prod(cfg.out_shape),
        epilogue_flops=epilogue.flops,
        model_cycles=cycles,
        in_channels=cfg.in_channels,
        out_channels=cfg.out_channels,
        out_height_pixels=height,
        out_width_pixels=width,
        kernel_height_taps=cfg.kernel[0],
        kernel_width_taps=cfg.kernel[1],
        stride_pixels=max(cfg.stride),
        dilation_pixels=max(cfg.dilation),
        groups=cfg.groups,
        data_block_lanes=cfg.data_block,
        reduce_lanes=mean_channels(cfg.runs()),
        tile_pixels=cfg.pixels,
        tile_out_vectors=cfg.oc_blocks,
        tail_pixels=min(balanced(row, cfg.pixels)),
        tail_out_vectors=cfg.out_blocks % cfg.oc_blocks,
        vector_lanes=cfg.lanes,
        item_bytes=item,
    )
