"""Depthwise convolution and pooling in blocked layout (NCHW[c]): the template.

The loop nest is in `window_nest.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from tvm import relax, te, tirx, topi
from tvm.ir import Expr

from tvm_stretch.targets.kernels.features import (
    GIGAHERTZ,
    EpilogueWork,
    Features,
    Phases,
    Work,
    feature,
)
from tvm_stretch.targets.kernels.fused import FusedKernel
from tvm_stretch.targets.kernels.layers import ConvShape, Layer, Sliding, WindowShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template, kernel_call
from tvm_stretch.targets.kernels.window_taps import least, window_count

from .window_nest import write_window


def _taps_inside(cfg: Sliding, axis: int) -> float:
    """Share of the taps along one axis that lie inside the image."""
    inside = sum(len(cfg.taps(axis, place)) for place in range(cfg.out_size[axis]))
    return inside / (cfg.out_size[axis] * cfg.kernel[axis])


@dataclass(frozen=True)
class WindowFeatures(Features):
    """A kernel that reduces windows channel by channel."""

    channels: int = field(metadata=feature())
    out_height_pixels: int = field(metadata=feature(lambda config: config.out_size[0], least=1))
    out_width_pixels: int = field(metadata=feature(lambda config: config.out_size[1], least=1))
    kernel_height_taps: int = field(metadata=feature(lambda config: config.kernel[0]))
    kernel_width_taps: int = field(metadata=feature(lambda config: config.kernel[1]))
    stride_pixels: int = field(metadata=feature(lambda config: max(config.stride)))
    dilation_pixels: int = field(metadata=feature(lambda config: max(config.dilation)))
    outside_taps_permille: int = field(
        metadata=feature(
            lambda config: round(1000 * (1 - _taps_inside(config, 0) * _taps_inside(config, 1)))
        )
    )

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

    averages: int = field(metadata=feature(lambda config: int(config.kind == "avg")))


@dataclass(frozen=True, kw_only=True)
class WindowConfig(Template, WindowShape):
    """A depthwise convolution or pooling."""

    template: ClassVar[str] = "window"
    machines: ClassVar[tuple[str, ...]] = ("core",)
    layers: ClassVar[tuple[type[Layer], ...]] = (WindowShape, ConvShape)

    family: ClassVar[type[DepthwiseFeatures]] = DepthwiseFeatures

    lanes: int

    @property
    def blocks(self) -> int:
        """Vectors of channels, the last one perhaps partly empty."""
        return -(-self.channels // self.lanes)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (self.batch, self.blocks, *self.out_size, self.lanes)

    @property
    def operands(self) -> int:
        """Data, and the weights of a depthwise convolution."""
        return 2 if self.kind == "depthwise" else 1

    # --- choice ---

    @classmethod
    def configure(
        cls, layer: WindowShape | ConvShape, machine: VectorMachine, block: int
    ) -> list[WindowConfig]:
        """The windows of a pooling or of a depthwise convolution."""
        if isinstance(layer, WindowShape):
            return [taken(cls, layer, lanes=machine.lanes)]
        if not layer.is_depthwise:
            return []
        kind, channels = "depthwise", layer.in_channels
        return [taken(cls, layer, kind=kind, channels=channels, lanes=machine.lanes)]

    def cycles(self, machine: VectorMachine) -> float:
        """Cycles of one core: taps, and as much as four taps for each result."""
        return prod(self.out_shape) / self.lanes * (self.steps + 4.0) * 0.7

    @property
    def steps(self) -> float:
        """Instructions that a result needs for its taps."""
        return prod(self.kernel)

    # --- calls and meaning ---

    @property
    def kernel_name(self) -> str:
        return "depthwise_conv2d" if self.kind == "depthwise" else f"{self.kind}_pool2d"

    def prepared(self, bb: relax.BlockBuilder, operands: Sequence[Expr]) -> Sequence[Expr]:
        """The data, and packed weights (C, 1, kh, kw) if there are any."""
        data, *weights = operands
        calls = [kernel_call(bb, "pack_depthwise", self, self.pack, w) for w in weights]
        return [data, *map(bb.emit, calls)]

    def pack(self, weight: te.Tensor) -> te.Tensor:
        """(C, 1, kh, kw) -> [channel block][ky][kx][lane], zero for channels that do not exist."""

        def element(b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            channel = b * self.lanes + lane
            exists = channel < self.channels
            return tirx.if_then_else(exists, weight[channel, 0, y, x], tirx.const(0, weight.dtype))

        return te.compute((self.blocks, *self.kernel, self.lanes), element, name="pack_depthwise")

    def meaning(self, *operands: te.Tensor) -> te.Tensor:
        """The window reduction as plain tensor expressions, with weights only for ``depthwise``."""
        data, *weights = operands
        ky, kx = (te.reduce_axis((0, k), n) for k, n in zip(self.kernel, ("ky", "kx"), strict=True))
        padded = self.padded(data)
        last = self.kind != "avg"

        def element(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            row, column = (
                y * self.stride[0] + ky * self.dilation[0],
                x * self.stride[1] + kx * self.dilation[1],
            )
            pixel = padded[n, b, row, column, lane]
            if self.kind == "max":
                return _MAXIMUM(pixel, axis=[ky, kx])
            factors = (self.factor(weight, b, ky, kx, lane) for weight in weights)
            return te.sum(prod(factors, start=pixel), axis=[ky, kx])

        shape, marks = self.out_shape, self.annotation if last else {}
        name = self.kernel_name if weights else f"{self.kind}_pool"
        total = te.compute(shape, element, name=name, attrs=marks)
        if last:
            return total

        def average(n: Expr, b: Expr, y: Expr, x: Expr, lane: Expr) -> Expr:
            return total[n, b, y, x, lane] / window_count(self, y, x, data.dtype)

        return te.compute(shape, average, name="avg_pool_divide", attrs=self.annotation)

    def padded(self, data: te.Tensor) -> te.Tensor:
        """The image with all padding that windows reach, which `ceil_mode` may enlarge."""
        before = self.padding[:2]
        sizes = zip(self.out_size, self.stride, self.spans, self.in_size, before, strict=True)
        after = [max(0, (o - 1) * s + span - i - b) for o, s, span, i, b in sizes]
        if not any((*before, *after)):
            return data
        value = least(data.dtype) if self.kind == "max" else tirx.const(0, data.dtype)
        return topi.nn.pad(data, (0, 0, *before, 0), (0, 0, *after, 0), value)

    def factor(self, weight: te.Tensor, b: Expr, ky: Expr, kx: Expr, lane: Expr) -> Expr:
        """A packed weight."""
        return weight[b, ky, kx, lane]

    def write(self, machine: VectorMachine, fused: FusedKernel) -> tirx.Stmt:
        return write_window(self, machine, fused)

    # --- cost ---

    def work(self, epilogue: EpilogueWork, machine: VectorMachine, item: int) -> Features | None:
        has_weights, taps = self.kind == "depthwise", prod(self.kernel)
        outputs, channels = prod(self.out_shape), self.blocks * self.lanes
        numbers = (
            self.batch * channels * self._pixels_read(),
            outputs,
            channels * taps if has_weights else 0,
        )
        flops = (2.0 if has_weights else 1.0) * outputs * taps
        family = self.family if has_weights else PoolFeatures
        return family.of_kernel(self, self.cycles(machine), epilogue, item, flops, numbers)

    def _pixels_read(self) -> int:
        """Pixels of the image that are read; strides longer than the kernel skip some."""
        sizes = zip(self.in_size, self.out_size, self.kernel, strict=True)
        return prod(min(size, out * kernel) for size, out, kernel in sizes)


_MAXIMUM = te.comm_reducer(lambda a, b: tirx.max(a, b), lambda t: least(str(t)), name="maximum")
