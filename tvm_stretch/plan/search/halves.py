"""What the kernels of a group become where a processor computes half of the group.

    conv 64 -> 128, 56 x 56, relu     half of outputs: conv 64 ->  64, 56 x 56, relu
                                      half of inputs:  conv 32 -> 128, 56 x 56
                                      half of rows:    conv 64 -> 128, 28 x 56, relu

The kernel of the whole is taken apart and its template configured anew, as BlockChannels would do
it for the half; everything else is halved in size, down to whole vectors of channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod

from tvm_stretch.make.kernels import GroupKernel
from tvm_stretch.network.operator_graph import Group
from tvm_stretch.network.operators import CONVOLUTIONS, Operator
from tvm_stretch.network.properties.branch_spans import window
from tvm_stretch.plan.cost.describe import Anchored
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.layers import Along
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template

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
    parts = [_half_kernel(kernel, along, extent, machine) for kernel in kernels]
    for kernel, half in zip(kernels[: _end_of_result(kernels, parts)], parts, strict=False):
        if half is not None:
            found.append(half)
        elif along == "rows":
            found.append(_fewer_rows(kernel, group.anchor, extent))
        elif along == "outputs" and any(parts):
            found.append(kernel.features)  # gathers the pixels that the template's kernel reads
        else:
            found.append(_fewer_channels(kernel, group.anchor, extent, machine))
    return tuple(found), extent / shape[axis]


def _half_kernel(
    kernel: GroupKernel, along: Along, extent: int, machine: VectorMachine
) -> Features | None:
    """The kernel of the half, if the template has one."""
    whole = kernel.anchored
    half = None if whole is None else whole.template.part(along, extent, machine)
    if whole is None or half is None:
        return None
    return half.work(_half_epilogue(whole, half, along, extent), machine, whole.item_bytes)


def _end_of_result(kernels: Sequence[GroupKernel], parts: Sequence[Features | None]) -> int:
    """The kernels up to the result; others work on all of it, such as giving it a plain layout."""
    templates = [i for i, part in enumerate(parts) if part is not None]
    computing = [i for i, kernel in enumerate(kernels) if kernel.computes]
    return 1 + (templates[0] if templates else max(computing, default=len(kernels)))


def _unit(anchor: Operator, machine: VectorMachine) -> int:
    """Parts hold whole vectors of channels, and whole groups of a grouped convolution."""
    if anchor.kind in CONVOLUTIONS and anchor.groups > 1:
        return max(machine.lanes, anchor.shape[1] // anchor.groups)
    return machine.lanes


def _half_epilogue(whole: Anchored, half: Template, along: Along, extent: int) -> EpilogueWork:
    """The epilogue that a half keeps: sums over half of the inputs are finished elsewhere."""
    if along == "inputs":
        return EpilogueWork()
    axis = 2 if along == "rows" else 1
    full, part = whole.template.out_shape[axis], half.out_shape[axis]
    size = 0
    for shape, item in whole.operands:
        if axis == extent == 1 and prod(shape[:-1]) == 1:
            continue  # the number of a single channel is written into the kernel
        halved = len(shape) == 5 and shape[axis] == full
        size += item * prod(part if halved and i == axis else n for i, n in enumerate(shape))
    return EpilogueWork(whole.flops * part / full, size, whole.out_bytes * part // full)


def _fewer_channels(
    kernel: GroupKernel, anchor: Operator, extent: int, machine: VectorMachine
) -> Features:
    """A kernel without a template, which computes whole vectors of a blocked layout."""
    channels, lanes = anchor.shape[1], machine.lanes if len(kernel.shape) == 5 else 1
    share = Fraction(-(-extent // lanes), -(-channels // lanes))
    return kernel.features.scaled(share, share)


def _fewer_rows(kernel: GroupKernel, anchor: Operator, extent: int) -> Features:
    """A kernel without a template, which may read other rows than it writes."""
    written = Fraction(extent, anchor.shape[2])
    sliding = window(anchor)
    if sliding is None:
        return kernel.features.scaled(written, written)
    begin, end = sliding.reads((0, extent))
    read = Fraction(end - begin, sliding.height)
    if not kernel.computes and kernel.shape[2:3] == (sliding.height,):
        written = read  # another layout of all that is read later
    return kernel.features.scaled(written, read)
