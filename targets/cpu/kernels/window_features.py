"""Cost families of depthwise convolutions and poolings."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from tvm_stretch.targets.kernels.features import GIGAHERTZ, EpilogueWork, Features, Phases, Work

if TYPE_CHECKING:
    from .window import WindowConfig


@dataclass(frozen=True)
class WindowFeatures(Features):
    """A kernel that reduces windows channel by channel."""

    positive: ClassVar[tuple[str, ...]] = ("out_height_pixels", "out_width_pixels")

    channels: int
    out_height_pixels: int
    out_width_pixels: int
    kernel_height_taps: int
    kernel_width_taps: int
    stride_pixels: int
    dilation_pixels: int
    outside_taps_permille: int

    def own_phases(self) -> Phases:
        """Taps, pixels, rows and blocks."""
        taps = self.kernel_height_taps * self.kernel_width_taps
        blocks = self.channels / self.vector_lanes
        pixels = blocks * self.out_height_pixels * self.out_width_pixels
        return {
            "multiply": pixels * taps / GIGAHERTZ,
            "pixels": pixels,
            "rows": blocks * self.out_height_pixels * 5,
            "blocks": blocks * 10,
            "outside": pixels * taps * self.outside_taps_permille / 1000,
        }


@dataclass(frozen=True)
class DepthwiseFeatures(WindowFeatures):
    """A depthwise convolution."""

    family: ClassVar[str] = "depthwise"

    def device_work(self) -> Work:
        taps = self.kernel_height_taps * self.kernel_width_taps
        values = (self.in_bytes + self.out_bytes) / self.item_bytes
        return Work("depthwise", self.flops / 2, values, self.channels * taps)


@dataclass(frozen=True)
class IntegerDepthwiseFeatures(DepthwiseFeatures):
    """A depthwise convolution of 8-bit numbers."""

    family: ClassVar[str] = "integer_depthwise"


@dataclass(frozen=True)
class PoolFeatures(WindowFeatures):
    """Maximum or average of windows."""

    family: ClassVar[str] = "pool"

    averages: int


def window_features(
    cfg: WindowConfig, epilogue: EpilogueWork, cycles: float, item: int
) -> WindowFeatures:
    """The features of a configuration whose own model says ``cycles``."""
    height, width = cfg.out_size
    taps = prod(cfg.kernel)
    outputs = prod(cfg.out_shape)
    has_weights = cfg.kind == "depthwise"
    channels = cfg.batch * cfg.blocks * cfg.lanes
    inside = [_taps_inside(cfg, axis) for axis in (0, 1)]
    values: dict[str, Any] = {
        "flops": (2.0 if has_weights else 1.0) * outputs * taps,
        "in_bytes": item * channels * _pixels_read(cfg) + epilogue.bytes,
        "weight_bytes": item * cfg.blocks * cfg.lanes * taps if has_weights else 0,
        "out_bytes": epilogue.out_bytes or item * outputs,
        "epilogue_flops": epilogue.flops,
        "model_cycles": cycles,
        "channels": cfg.channels,
        "out_height_pixels": height,
        "out_width_pixels": width,
        "kernel_height_taps": cfg.kernel[0],
        "kernel_width_taps": cfg.kernel[1],
        "stride_pixels": max(cfg.stride),
        "dilation_pixels": max(cfg.dilation),
        "outside_taps_permille": round(1000 * (1 - inside[0] * inside[1])),
        "vector_lanes": cfg.lanes,
        "item_bytes": item,
    }
    if has_weights:
        return cfg.family(**values)
    return PoolFeatures(**values, averages=int(cfg.kind == "avg"))


def _pixels_read(cfg: WindowConfig) -> int:
    """Pixels of the image that are read; strides longer than the kernel skip some."""
    return prod(
        min(size, out * kernel)
        for size, out, kernel in zip(cfg.in_size, cfg.out_size, cfg.kernel, strict=True)
    )


def _taps_inside(cfg: WindowConfig, axis: int) -> float:
    """Share of the taps along one axis that lie inside the image."""
    inside = sum(len(cfg.taps(axis, place)) for place in range(cfg.out_size[axis]))
    return inside / (cfg.out_size[axis] * cfg.kernel[axis])
