"""The cost family of Winograd convolutions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tvm_stretch.targets.kernels.features import (
    GIGAHERTZ,
    L2_BYTES,
    Features,
    Phases,
    Work,
    missing,
)
from tvm_stretch.targets.kernels.loops import balanced


@dataclass(frozen=True)
class WinogradFeatures(Features):
    """A Winograd convolution with its tiles, or one of the two kernels it can be split into."""

    family: ClassVar[str] = "winograd"
    positive: ClassVar[tuple[str, ...]] = (
        *("groups", "merged_groups", "register_tiles", "register_out_vectors", "tiles"),
        *("out_height_pixels", "out_width_pixels"),
    )

    in_channels: int
    out_channels: int
    out_height_pixels: int
    out_width_pixels: int
    groups: int
    merged_groups: int
    tile_side_pixels: int
    tiles: int
    reduce_lanes: int
    register_tiles: int
    register_out_vectors: int
    tail_tiles: int
    input_stages: int = 1  # 1 if the kernel transforms the input
    product_stages: int = 1  # 1 if it multiplies and transforms the output

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
        """The work of the convolution on any device; the first stage alone is none."""
        if not self.product_stages:
            return Work(kernels=0)
        read = self.in_bytes / self.item_bytes
        if not self.input_stages:  # its input is transformed already
            read = self.in_channels * self.out_height_pixels * self.out_width_pixels
        weights = self.out_channels * (self.in_channels // self.groups) * 9
        values = read + self.out_bytes / self.item_bytes
        return Work.of_conv(self.flops / 2, values, self.in_channels, weights, self.groups, 9)
