"""The kernels that the groups of a network become on each processor, worked out once.

Processors of equal machines (a CPU, and an OpenCL device that is the same CPU) share them.

    conv 64 -> 128, 56 x 56, relu     half of outputs: conv 64 ->  64, 56 x 56, relu
                                      half of inputs:  conv 32 -> 128, 56 x 56
                                      half of rows:    conv 64 -> 128, 28 x 56, relu

For a half, the kernel of the whole is taken apart and its template configured anew, as
BlockChannels would do it; everything else is halved in size, down to whole vectors of channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod

import tvm
from tvm import relax

from tvm_stretch.make.kernels import GroupKernel, KernelLevel, joined_kernels, kernels_alone
from tvm_stretch.network.operator_graph import Group, OperatorGraph
from tvm_stretch.network.operators import CONVOLUTIONS, Operator, Operators
from tvm_stretch.network.properties.branch_spans import window
from tvm_stretch.plan.cost.describe import Anchored
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.layers import Along
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import Template
from tvm_stretch.targets.processor import Processor


class Kernels:
    """See the module docstring."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processors = processors
        machines = [processor.machine for processor in processors]
        self._machine = [machines.index(machine) for machine in machines]
        self._supported: dict[tuple[Operator, int], bool] = {}
        self._kernels: dict[tuple[Group, int], tuple[GroupKernel, ...]] = {}
        self._halves: dict[tuple[object, ...], Half | None] = {}
        self._operators: tuple[tvm.IRModule, Operators] | None = None
        self._last: tuple[tvm.IRModule, OperatorGraph] | None = None
        self._joined: dict[int, tuple[Features, ...] | None] = {}

    def supports(self, operator: Operator, place: int) -> bool:
        """Whether the processor runs the operator; tuples and views run anywhere."""
        key = (operator, place)
        if key not in self._supported:
            call = operator.binding.value
            reason = isinstance(call, relax.Call) and self.processors[place].why_not(call)
            self._supported[key] = not reason
        return self._supported[key]

    def supported(self, group: Group, place: int) -> bool:
        """Whether the processor runs all operators of the group."""
        return all(self.supports(operator, place) for operator in group.operators)

    def operators(self, mod: tvm.IRModule) -> Operators:
        """The operators of `main`, read once for the last module."""
        if self._operators is None or self._operators[0] is not mod:
            self._operators = mod, Operators(mod["main"])
        return self._operators[1]

    def lower(self, mod: tvm.IRModule) -> OperatorGraph:
        """The groups of a canonical module; `whole` and `half` then know their kernels.

        If no processor supports all operators of a kernel, only operators that the same processors
        support become one kernel.
        """
        if self._last is None or self._last[0] is not mod:  # a search may be repeated
            self._last = mod, self._lower_supported(mod)
        return self._last[1]

    def _lower_supported(self, mod: tvm.IRModule) -> OperatorGraph:
        operators = self.operators(mod)
        graph = self._lower(mod, operators, None)
        places = range(len(self.processors))
        if all(any(self.supported(group, p) for p in places) for group in graph.groups):
            return graph
        willing = {
            op.name: " ".join(str(p) for p in places if self.supports(op, p))
            for op in operators
            if isinstance(op.binding.value, relax.Call)
        }
        return self._lower(mod, operators, willing)

    def _lower(
        self, mod: tvm.IRModule, operators: Operators, apart: Mapping[str, str] | None
    ) -> OperatorGraph:
        """The kernels of each kind of machine; operators that differ in ``apart`` do not fuse."""
        regions = None if apart is None else form_regions(mod["main"], apart)
        levels = {
            machine: kernels_alone(mod, self.processors[machine], operators, regions)
            for machine in dict.fromkeys(self._machine)
        }
        graph = levels[0].graph
        for machine, level in levels.items():
            for group, kernels in _by_group(graph, level).items():
                self._kernels[group, machine] = tuple(kernels)
            self._joined[machine] = joined_kernels(level, self.processors[machine])
        return graph

    def whole(self, group: Group, place: int) -> tuple[Features, ...]:
        """The kernels of a group."""
        return tuple(k.features for k in self._kernels[group, self._machine[place]])

    def alone(self, graph: OperatorGraph, place: int) -> tuple[Features, ...]:
        """The kernels of the last network on one processor, some of them joined."""
        joined = self._joined[self._machine[place]]
        if joined is not None:
            return joined
        return tuple(f for group in graph.groups for f in self.whole(group, place))

    def half(self, group: Group, place: int, along: Along) -> Half | None:
        """The kernels of about half of a group."""
        kernels = self._kernels[group, self._machine[place]]
        anchor = group.anchor
        same = kernels, anchor.kind, anchor.arg_shapes  # networks repeat their layers
        key = (along, self._machine[place], *same)
        if key not in self._halves:
            self._halves[key] = half_of(group, kernels, along, self.processors[place].machine)
        return self._halves[key]


def _by_group(graph: OperatorGraph, level: KernelLevel) -> dict[Group, list[GroupKernel]]:
    """The kernels of another machine, by the group that holds their last operator."""
    group_of = {op.name: group for group in graph.groups for op in group.operators}
    by_group: dict[Group, list[GroupKernel]] = {group: [] for group in graph.groups}
    for name, kernels in level.kernels.items():
        if name in group_of:
            by_group[group_of[name]] += kernels
    return by_group


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
    features: list[Features] = []
    parts = [_half_kernel(kernel, along, extent, machine) for kernel in kernels]
    for kernel, half in zip(kernels[: _end_of_result(kernels, parts)], parts, strict=False):
        if half is not None:
            features.append(half)
        elif along == "rows":
            features.append(_fewer_rows(kernel, group.anchor, extent))
        elif along == "outputs" and any(parts):
            features.append(kernel.features)  # gathers the pixels that the template's kernel reads
        else:
            features.append(_fewer_channels(kernel, group.anchor, extent, machine))
    return tuple(features), extent / shape[axis]


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
