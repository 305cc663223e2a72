"""What the kernels of a group become where a processor computes half of the group.

    conv 64 -> 128, 56 x 56, relu     half of outputs: conv 64 ->  64, 56 x 56, relu
                                      half of inputs:  conv 32 -> 128, 56 x 56
                                      half of rows:    conv 64 -> 128, 28 x 56, relu

The kernel of the whole is taken apart and its template configured anew, as BlockChannels would do
it for the half; everything else is halved in size, down to whole vectors of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from fractions import Fraction
from math import prod
from typing import Literal

from tvm_stretch.analysis.row_windows import window
from tvm_stretch.build.kernels import GroupKernel
from tvm_stretch.cost.describe import Anchored, Epilogue, template_features
from tvm_stretch.cost.features import Features, GenericFeatures
from tvm_stretch.ir.integers import integer_of
from tvm_stretch.ir.operator_graph import Group
from tvm_stretch.ir.operators import CONVOLUTIONS, Operator
from tvm_stretch.targets.kernels.choose import ConvShape
from tvm_stretch.targets.kernels.conv import ConvConfig
from tvm_stretch.targets.kernels.dots import OfWords
from tvm_stretch.targets.kernels.integer_blocks import conv_shape as integer_conv_shape
from tvm_stretch.targets.kernels.integer_blocks import integer_config
from tvm_stretch.targets.kernels.layer_configs import (
    Config,
    conv_shape,
    convolution_config,
    dense_shape,
)
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.winograd import WinogradConfig

Along = Literal["outputs", "inputs", "rows"]
"""What a part has fewer of: output channels, input channels (and summands), rows."""

Half = tuple[tuple[Features, ...], float]
"""Kernels, and which fraction of the group they compute."""


def half_of(
    group: Group, kernels: Sequence[GroupKernel], along: Along, machine: VectorMachine
) -> Half | None:
    """The kernels of about half of a group; None where there is no half."""
    shape = group.anchor.shape
    axis = 2 if along == "rows" else 1
    if len(shape) <= axis or shape[axis] < 2:
        return None
    extent = shape[axis] // 2
    if along != "rows":
        unit = _unit(group.anchor, machine)
        extent = -(-extent // unit) * unit if shape[axis] > unit else extent
    if extent == shape[axis]:
        return None
    found: list[Features] = []
    has_template = any(kernel.anchored for kernel in kernels)
    for kernel in _as_far_as_the_result(kernels):
        if kernel.anchored is not None:
            config = _half_config(group.anchor, kernel.anchored.config, along, extent, machine)
            epilogue = _half_epilogue(kernel.anchored, config, along)
            item = kernel.anchored.item_bytes
            found.append(template_features(config, epilogue, machine, item))
        elif along == "rows":
            found.append(_fewer_rows(kernel, group.anchor, extent))
        elif along == "outputs" and has_template:
            found.append(kernel.features)  # gathers the pixels that the template's kernel reads
        else:
            found.append(_fewer_channels(kernel, group.anchor, extent, machine))
    return tuple(found), extent / shape[axis]


def _as_far_as_the_result(kernels: Sequence[GroupKernel]) -> Sequence[GroupKernel]:
    """Behind it stands what works on the whole result, such as giving it a plain layout."""
    templates = [i for i, kernel in enumerate(kernels) if kernel.anchored]
    computing = [i for i, kernel in enumerate(kernels) if kernel.computes]
    end = templates[0] if templates else max(computing, default=len(kernels))
    return kernels[: end + 1]


def _unit(anchor: Operator, machine: VectorMachine) -> int:
    """Parts hold whole vectors of channels, and whole groups of a grouped convolution."""
    if anchor.kind in CONVOLUTIONS and anchor.groups > 1:
        return max(machine.lanes, anchor.shape[1] // anchor.groups)
    return machine.lanes


def _half_config(
    anchor: Operator, whole: Config, along: Along, extent: int, machine: VectorMachine
) -> Config:
    """The configuration of the half."""
    if anchor.kind in CONVOLUTIONS or anchor.kind in ("matmul", "integer.matmul"):
        half = _half_layer(anchor, along, extent)
        block = whole.data_block if isinstance(whole, ConvConfig) else machine.lanes
        if isinstance(whole, OfWords):
            if not any(whole.padding):
                half = half.padded()
            return integer_config(half, machine, block, whole.dtype)
        exact = anchor.kind.startswith("integer.")
        return convolution_config(half, machine, block, exact=exact)
    assert isinstance(whole, WindowConfig)
    return _half_pool(anchor, whole, along, extent)


def _half_layer(anchor: Operator, along: Along, extent: int) -> ConvShape:
    """Half of a convolution, or of a dense layer as one of pixels."""
    if anchor.kind in CONVOLUTIONS:
        integer, shapes = integer_of(anchor.call), anchor.arg_shapes
        shape = integer_conv_shape(integer, *shapes[:2]) if integer else conv_shape(anchor.call)
        assert shape is not None  # it has a template
        return _half_shape(anchor, shape, along, extent)
    data, outputs = anchor.arg_shapes[0], anchor.shape[1]
    if along == "inputs":
        return dense_shape((data[0], data[1] // 2), outputs)
    return dense_shape(data, extent)


def _half_shape(anchor: Operator, whole: ConvShape, along: Along, extent: int) -> ConvShape:
    if along == "rows":
        rows, padding = _band(anchor, extent)
        return replace(
            whole,
            in_size=(rows, whole.in_size[1]),
            padding=(padding[0], whole.padding[1], padding[1], whole.padding[3]),
        )
    if whole.groups > 1:
        groups = whole.groups * extent // whole.out_channels
        inputs = whole.in_channels // whole.groups * groups
        return replace(whole, in_channels=inputs, out_channels=extent, groups=groups)
    if along == "inputs":
        return replace(whole, in_channels=whole.in_channels // 2)
    return replace(whole, out_channels=extent)


def _half_pool(anchor: Operator, whole: WindowConfig, along: Along, extent: int) -> WindowConfig:
    if along != "rows":
        return replace(whole, channels=extent)
    rows, padding = _band(anchor, extent)
    out = None if whole.out is None else (extent, whole.out[1])
    return replace(
        whole,
        in_size=(rows, whole.in_size[1]),
        padding=(padding[0], whole.padding[1], padding[1], whole.padding[3]),
        out=out,
    )


def _band(anchor: Operator, extent: int) -> tuple[int, tuple[int, int]]:
    """Rows that the first band of a convolution or pool reads, and its padding."""
    sliding = window(anchor)
    assert sliding is not None
    begin, end = sliding.reads((0, extent))
    return end - begin, sliding.padding((0, extent))


def _half_epilogue(whole: Anchored, config: Config, along: Along) -> Epilogue:
    """What stays behind the half: sums over half of the inputs are finished elsewhere."""
    if along == "inputs":
        return Epilogue()
    axis, extent, full = 1, _out_blocks(config), _out_blocks(whole.config)
    if along == "rows":
        axis, extent, full = 2, config.out_size[0], whole.config.out_size[0]
    size = 0
    for shape, item in whole.operands:
        halved = len(shape) == 5 and shape[axis] == full
        size += item * prod(extent if halved and i == axis else n for i, n in enumerate(shape))
    return Epilogue(whole.flops * extent / full, size, whole.out_bytes * extent // full)


def _out_blocks(config: Config) -> int:
    if isinstance(config, WindowConfig):
        return config.blocks
    if isinstance(config, WinogradConfig):
        return config.blocks[1]
    return config.out_blocks


def _fewer_channels(
    kernel: GroupKernel, anchor: Operator, extent: int, machine: VectorMachine
) -> Features:
    """A kernel without a template, which computes whole vectors of a blocked layout."""
    channels, lanes = anchor.shape[1], machine.lanes if len(kernel.shape) == 5 else 1
    share = Fraction(-(-extent // lanes), -(-channels // lanes))
    return _scaled(kernel.features, share, share)


def _fewer_rows(kernel: GroupKernel, anchor: Operator, extent: int) -> Features:
    """A kernel without a template, which may read other rows than it writes."""
    written = Fraction(extent, anchor.shape[2])
    sliding = window(anchor)
    if sliding is None:
        return _scaled(kernel.features, written, written)
    begin, end = sliding.reads((0, extent))
    read = Fraction(end - begin, sliding.height)
    if not kernel.computes and kernel.shape[2:3] == (sliding.height,):
        written = read  # another layout of all that is read later
    return _scaled(kernel.features, written, read)


_UNSCALED = (
    *("reduce_steps", "inner_elements", "stages"),
    *("round_bytes", "reuse_bytes", "vector_lanes", "item_bytes"),
)


def _scaled(whole: Features, share: Fraction, read: Fraction) -> Features:
    """A kernel without a template: all that grows with the size of its result, or what it reads."""
    if not isinstance(whole, GenericFeatures):
        return whole
    scaled = {
        field.name: type(value)(value * part.numerator / part.denominator)
        for field in fields(whole)
        if field.name not in _UNSCALED
        for value in (getattr(whole, field.name),)
        for part in (read if field.name == "in_bytes" else share,)
    }
    return replace(whole, **scaled)
