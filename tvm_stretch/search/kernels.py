"""What kernels the groups of a network become on each processor, worked out once.

    conv 64 -> 128, 56 x 56, relu     whole:           conv 64 -> 128, 56 x 56
                                      half of outputs: conv 64 ->  64, 56 x 56
                                      half of inputs:  conv 32 -> 128, 56 x 56
                                      half of rows:    conv 64 -> 128, 28 x 56

Processors of equal machines (a CPU, and an OpenCL device that is the same CPU) share the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.cost.describe import Epilogue, part_of_winograd, template_features
from tvm_stretch.cost.features import Features
from tvm_stretch.cost.groups import convolution_features, epilogue_of, group_features
from tvm_stretch.ir.operator_graph import Group
from tvm_stretch.ir.operators import Operator
from tvm_stretch.passes.share_winograd import WinogradStage
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.choose import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.processor import Processor

Along = Literal["outputs", "inputs", "rows"]
"""What a part has fewer of: output channels, input channels (and summands), rows."""

Stages = Mapping[str, WinogradStage]
"""Winograd's stages in a network, by the names of their functions."""


class Kernels:
    """See the module docstring."""

    def __init__(self, processors: Sequence[Processor]) -> None:
        self.processors = processors
        machines = [processor.machine for processor in processors]
        self._machine = [machines.index(machine) for machine in machines]
        self._supported: dict[tuple[Operator, int], bool] = {}
        self._wholes: dict[tuple[Group, int], tuple[Features, ...]] = {}
        self._convolutions: dict[Group, tuple[ConvShape, Epilogue] | None] = {}
        self._features: dict[tuple[ConvShape, Epilogue, int], tuple[Features, ...]] = {}

    def supports(self, operator: Operator, place: int) -> bool:
        """Whether the processor runs the operator; what is no call runs anywhere."""
        key = (operator, place)
        if key not in self._supported:
            call = operator.binding.value
            reason = isinstance(call, relax.Call) and self.processors[place].why_not(call)
            self._supported[key] = not reason
        return self._supported[key]

    def supported(self, group: Group, place: int) -> bool:
        """Whether the processor runs all operators of the group."""
        return all(self.supports(operator, place) for operator in group.operators)

    def whole(self, group: Group, place: int, stages: Stages) -> tuple[Features, ...]:
        """The kernels that a group becomes, in a network that may hold Winograd's stages."""
        key = (group, self._machine[place])
        if key not in self._wholes:
            known = self._convolution(group)
            if known is not None:
                self._wholes[key] = self._convolved(*known, place)
            else:
                self._wholes[key] = _others(group, self.processors[place].machine, stages)
        return self._wholes[key]

    def half(self, group: Group, place: int, along: Along) -> tuple[Features, ...]:
        """The half of a convolution; nothing where there is no template for it."""
        known = self._convolution(group)
        smaller = None if known is None else _half_shape(known[0], along)
        if known is None or smaller is None:
            return ()
        epilogue = known[1]
        half = replace(epilogue, flops=epilogue.flops / 2, bytes=epilogue.bytes // 2)
        return self._convolved(smaller, half, place)

    def _convolved(self, shape: ConvShape, epilogue: Epilogue, place: int) -> tuple[Features, ...]:
        """Repeated blocks of a network have the same convolutions."""
        key = (shape, epilogue, self._machine[place])
        if key not in self._features:
            machine = self.processors[place].machine
            self._features[key] = convolution_features(shape, epilogue, machine)
        return self._features[key]

    def _convolution(self, group: Group) -> tuple[ConvShape, Epilogue] | None:
        """The convolution that a template computes, and what is fused behind it."""
        if group not in self._convolutions:
            anchor = group.anchor
            is_conv = anchor.kind == "nn.conv2d" and isinstance(anchor.call.args[1], GenericConst)
            shape = blocks.conv_shape(anchor.call) if is_conv else None
            known = None if shape is None else (shape, epilogue_of(group, anchor))
            self._convolutions[group] = known
        return self._convolutions[group]


def _others(group: Group, machine: VectorMachine, stages: Stages) -> tuple[Features, ...]:
    """Kernels that are no convolution, or one of Winograd's stages."""
    anchor = group.anchor
    stage = stages.get(anchor.call.args[0].name_hint) if anchor.kind == "call_tir" else None
    if stage is None:
        return group_features(group, machine)
    config = stage.config(machine)
    whole = template_features(config, epilogue_of(group, anchor), machine)
    sizes = [group.read_bytes, group.bytes]
    return (part_of_winograd(whole, f"winograd_{stage.name}", sizes),)


def _half_shape(shape: ConvShape, along: Along) -> ConvShape | None:
    """A convolution with half of the channels or rows; None if it cannot be halved."""
    inputs, outputs, groups = shape.in_channels // 2, shape.out_channels // 2, shape.groups // 2
    if along == "rows":
        height, width = shape.in_size
        if height // 2 < shape.kernel[0]:
            return None
        return replace(shape, in_size=(height // 2, width))
    if shape.groups > 1:
        if not groups or shape.groups % 2:
            return None
        return replace(shape, in_channels=inputs, out_channels=outputs, groups=groups)
    if along == "inputs":
        return replace(shape, in_channels=inputs) if inputs else None
    return replace(shape, out_channels=outputs) if outputs else None
