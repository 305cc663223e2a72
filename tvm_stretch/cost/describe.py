"""Compute features of fused PrimFuncs before scheduling, while they still show their meaning.

fused_conv2d_add_relu  (annotation: template conv, 64 -> 64 channels, tile 6 x 2, ...)
    ->  ConvFeatures(flops=231211008, weight_bytes=147456, tile_pixels=6, ...)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx

from tvm_stretch.cost.features import (
    ConvFeatures,
    DenseFeatures,
    DepthwiseFeatures,
    Features,
    IntegerConvFeatures,
    IntegerDenseFeatures,
    IntegerDepthwiseFeatures,
    PoolFeatures,
    WindowFeatures,
    WinogradFeatures,
)
from tvm_stretch.cost.statements import Statement, generic_features, statements_of
from tvm_stretch.ir.views import dtype_bytes
from tvm_stretch.targets.kernels.channel_runs import (
    ChannelRun,
    channel_runs,
    mean_channels,
    whole_run,
    winograd_runs,
)
from tvm_stretch.targets.kernels.choose import conv_cycles
from tvm_stretch.targets.kernels.conv import ConvConfig
from tvm_stretch.targets.kernels.dots import WORD, OfWords
from tvm_stretch.targets.kernels.gpu.choose import group_conv_cycles
from tvm_stretch.targets.kernels.gpu.conv import GroupConvConfig
from tvm_stretch.targets.kernels.gpu.dense import RowConfig
from tvm_stretch.targets.kernels.gpu.item_conv import ItemConvConfig
from tvm_stretch.targets.kernels.gpu.window import GroupWindowConfig
from tvm_stretch.targets.kernels.integer_conv import IntegerConvConfig, integer_conv_cycles
from tvm_stretch.targets.kernels.integer_window import IntegerWindowConfig
from tvm_stretch.targets.kernels.layer_configs import Config
from tvm_stretch.targets.kernels.loops import balanced
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.winograd import WinogradConfig

_WHOLE: dict[str, type[Any]] = {
    "conv": ConvConfig,
    "winograd": WinogradConfig,
    "window": WindowConfig,
    "integer_conv": IntegerConvConfig,
    "integer_window": IntegerWindowConfig,
    GroupConvConfig.template: GroupConvConfig,
    ItemConvConfig.template: ItemConvConfig,
    RowConfig.template: RowConfig,
    GroupWindowConfig.template: GroupWindowConfig,
}
_CONVS: dict[tuple[bool, bool], type[ConvFeatures]] = {
    (False, False): ConvFeatures,
    (False, True): DenseFeatures,
    (True, False): IntegerConvFeatures,
    (True, True): IntegerDenseFeatures,
}
"""By whether they compute integers, and whether they have few pixels."""
_PARTS = {"winograd_input": WinogradConfig, "winograd_product": WinogradConfig}


@dataclass(frozen=True)
class Epilogue:
    """The operators that are fused after an anchor.

    Attributes:
        flops: their arithmetic.
        bytes: of their operands other than the anchor's result.
        out_bytes: of the kernel's result, unless it has the anchor's shape.
    """

    flops: float = 0.0
    bytes: int = 0
    out_bytes: int = 0


def describe(function: tirx.PrimFunc, machine: VectorMachine) -> Features:
    """Features of one fused kernel."""
    return describe_apart(function, machine)[0]


def describe_apart(
    function: tirx.PrimFunc, machine: VectorMachine
) -> tuple[Features, Anchored | None]:
    """Features of one fused kernel, with its template and epilogue if it has them."""
    statements = list(statements_of(function, machine.lanes))
    sizes = [_bytes(param) for param in function.params]
    anchored = _anchored(function, statements)
    if anchored is None:
        return generic_features(function, statements, sizes, machine), None
    epilogue = anchored.epilogue()
    features = template_features(anchored.config, epilogue, machine, anchored.item_bytes)
    if anchored.template not in _WHOLE:
        features = _part_of_winograd(features, anchored.template, sizes, epilogue)
    return features, anchored


def result_shape(function: tirx.PrimFunc) -> tuple[int, ...]:
    """The shape of a kernel's result, which is its last parameter."""
    return _shape(function.params[-1])


@dataclass(frozen=True)
class Anchored:
    """A kernel of a template, split into template and epilogue.

    Attributes:
        template: its name.
        config: its configuration.
        flops: of the epilogue.
        operands: shape and bytes per element of the epilogue's other operands.
        out_bytes: of the kernel's result.
        item_bytes: of an element of the template's input.
    """

    template: str
    config: Config
    flops: float
    operands: tuple[tuple[tuple[int, ...], int], ...]
    out_bytes: int
    item_bytes: int

    def epilogue(self) -> Epilogue:
        """The operators that are fused after the template."""
        read = sum(prod(shape) * item for shape, item in self.operands)
        return Epilogue(self.flops, read, self.out_bytes)


def _anchored(function: tirx.PrimFunc, statements: list[Statement]) -> Anchored | None:
    last = max((i for i, block in enumerate(statements) if block.mark), default=None)
    config = None if last is None else read_config(str(statements[last].mark))
    if config is None or last is None:
        return None
    template = json.loads(str(statements[last].mark))["template"]
    weightless = template == "winograd_input" or getattr(config, "kind", "depthwise") != "depthwise"
    others = function.params[1 if weightless else 2 : -1]
    return Anchored(
        template,
        config,
        sum(float(block.elements * block.arithmetic) for block in statements[last + 1 :]),
        tuple((_shape(param), dtype_bytes(str(param.dtype))) for param in others),
        _bytes(function.params[-1]),
        dtype_bytes(str(function.params[0].dtype)),
    )


def read_config(mark: str) -> Config | None:
    """The configuration in a template's annotation; None for templates of weights."""
    values = json.loads(mark)
    kind = {**_WHOLE, **_PARTS}.get(values.pop("template"))
    if kind is None:
        return None
    config: Config = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    return config


def template_features(
    config: Config, epilogue: Epilogue, machine: VectorMachine, item: int
) -> Features:
    """Features of a template's kernel, whose numbers have ``item`` bytes.

    Weights of integer kernels may be wider than their pixels, which matters little.
    """
    if isinstance(config, WinogradConfig):
        return _winograd(config, epilogue, machine, item)
    if isinstance(config, WindowConfig):
        return _window(config, epilogue, item)
    return _conv(config, epilogue, machine, item)


def _conv(cfg: ConvConfig, epilogue: Epilogue, machine: VectorMachine, item: int) -> ConvFeatures:
    height, width = cfg.out_size
    taps = cfg.kernel[0] * cfg.kernel[1]
    dense = cfg.kernel == (1, 1) and cfg.in_size[1] == 1
    row = height * width if cfg.pointwise else width
    return _CONVS[isinstance(cfg, OfWords), dense](
        flops=2.0 * _outputs(cfg) * cfg.in_channels // cfg.groups * taps,
        in_bytes=item * cfg.batch * cfg.in_blocks * cfg.data_block * prod(cfg.in_size)
        + epilogue.bytes,
        weight_bytes=item * prod(cfg.weight_shape),
        out_bytes=epilogue.out_bytes
        or item * cfg.batch * cfg.out_blocks * cfg.lanes * height * width,
        epilogue_flops=epilogue.flops,
        model_cycles=_cycles(cfg, machine),
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
        reduce_lanes=mean_channels(_runs(cfg)),
        tile_pixels=cfg.pixels,
        tile_out_vectors=cfg.oc_blocks,
        tail_pixels=min(balanced(row, cfg.pixels)),
        tail_out_vectors=cfg.out_blocks % cfg.oc_blocks,
        vector_lanes=cfg.lanes,
        item_bytes=item,
    )


def _runs(cfg: ConvConfig) -> list[ChannelRun]:
    """The input channels that tiles read; integer tiles read whole words."""
    runs = None if isinstance(cfg, OfWords) else channel_runs(cfg, cfg.oc_blocks)
    return runs or [whole_run(cfg, cfg.oc_blocks)]


def _cycles(cfg: ConvConfig, machine: VectorMachine) -> float:
    if isinstance(cfg, IntegerConvConfig):
        return integer_conv_cycles(cfg, machine)
    if machine.gpu is not None and not isinstance(cfg, ItemConvConfig):
        return group_conv_cycles(cfg, machine.gpu) * machine.gpu.cores
    return conv_cycles(cfg, machine)


def _winograd(
    cfg: WinogradConfig, epilogue: Epilogue, machine: VectorMachine, item: int
) -> WinogradFeatures:
    height, width = cfg.out_size
    tiles = prod(cfg.tiles)
    outputs = cfg.parts * cfg.out_blocks * cfg.lanes
    return WinogradFeatures(
        flops=18.0 * _outputs(cfg) * cfg.in_channels // cfg.groups,
        in_bytes=item * cfg.batch * cfg.in_channels * prod(cfg.in_size) + epilogue.bytes,
        weight_bytes=item * cfg.alpha**2 * cfg.in_blocks * cfg.lanes * outputs,
        out_bytes=epilogue.out_bytes or item * cfg.batch * outputs * height * width,
        epilogue_flops=epilogue.flops,
        model_cycles=conv_cycles(cfg, machine),
        in_channels=cfg.in_channels,
        out_channels=cfg.out_channels,
        out_height_pixels=height,
        out_width_pixels=width,
        groups=cfg.groups,
        merged_groups=cfg.merged_groups,
        tile_side_pixels=cfg.tile,
        tiles=tiles,
        reduce_lanes=mean_channels(winograd_runs(cfg, cfg.oc_blocks)),
        register_tiles=cfg.pixels,
        register_out_vectors=cfg.oc_blocks,
        tail_tiles=min(balanced(tiles, cfg.pixels)),
        vector_lanes=cfg.lanes,
        item_bytes=item,
    )


def _part_of_winograd(
    whole: Features, template: str, sizes: list[int], epilogue: Epilogue
) -> Features:
    """One of the two kernels of a Winograd convolution whose transformed input is shared."""
    assert isinstance(whole, WinogradFeatures)
    if template == "winograd_input":
        return replace(
            whole,
            flops=0.0,
            in_bytes=sizes[0],
            weight_bytes=0,
            out_bytes=sizes[-1],
            model_cycles=sizes[-1] / 8,
            product_stages=0,
        )
    return replace(whole, in_bytes=sizes[0] + epilogue.bytes, input_stages=0)


def _outputs(cfg: ConvConfig | WinogradConfig) -> int:
    return cfg.batch * cfg.out_channels * prod(cfg.out_size)


def _window(cfg: WindowConfig, epilogue: Epilogue, item: int) -> WindowFeatures:
    height, width = cfg.out_size
    taps = prod(cfg.kernel)
    outputs = cfg.batch * cfg.blocks * cfg.lanes * height * width
    depthwise, integers = cfg.kind == "depthwise", isinstance(cfg, OfWords)
    inside = [_taps_inside(cfg, axis) for axis in (0, 1)]
    values: dict[str, Any] = {
        "flops": (2.0 if depthwise else 1.0) * outputs * taps,
        "in_bytes": item * cfg.batch * cfg.blocks * cfg.lanes * _pixels_read(cfg) + epilogue.bytes,
        "weight_bytes": item * cfg.blocks * cfg.lanes * taps if depthwise else 0,
        "out_bytes": epilogue.out_bytes or item * outputs,
        "epilogue_flops": epilogue.flops,
        "model_cycles": outputs / cfg.lanes * ((taps / WORD if integers else taps) + 4.0) * 0.7,
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
    if depthwise:
        return (IntegerDepthwiseFeatures if integers else DepthwiseFeatures)(**values)
    return PoolFeatures(**values, averages=int(cfg.kind == "avg"))


def _pixels_read(cfg: WindowConfig) -> int:
    """Pixels of the image that are read; strides longer than the kernel skip some."""
    return prod(
        min(size, out * kernel)
        for size, out, kernel in zip(cfg.in_size, cfg.out_size, cfg.kernel, strict=True)
    )


def _taps_inside(cfg: WindowConfig, axis: int) -> float:
    """Share of the taps along one axis that lie inside the image."""
    inside = sum(
        0 <= place * cfg.stride[axis] - cfg.padding[axis] + tap * cfg.dilation[axis] < size
        for size in (cfg.in_size[axis],)
        for place in range(cfg.out_size[axis])
        for tap in range(cfg.kernel[axis])
    )
    return inside / (cfg.out_size[axis] * cfg.kernel[axis])


def _shape(param: Any) -> tuple[int, ...]:
    return tuple(int(dim) for dim in getattr(param, "shape", ()))


def _bytes(param: Any) -> int:
    """Size of a buffer; scalars have none."""
    return prod(_shape(param)) * dtype_bytes(str(param.dtype))
