"""Costs of operators before anything is compiled: what schedulers and searches ask for.

    conv2d 64 -> 64, add, relu  on a processor  ->  features of the kernel they will become

Exact for kernels of templates; for other operators an estimate from their bytes and elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.cost.describe import Epilogue, template_features
from tvm_stretch.cost.features import Features, GenericFeatures
from tvm_stretch.cost.prediction import CostModel, Prediction
from tvm_stretch.ir.operator_graph import Group
from tvm_stretch.ir.operators import Operator, bytes_of
from tvm_stretch.targets.kernels import blocks
from tvm_stretch.targets.kernels.choose import ConvShape, choose_conv
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.processor import Processor

_EXPENSIVE = {"exp": 20, "sigmoid": 25, "tanh": 20, "erf": 30, "nn.silu": 26, "nn.gelu": 32}
"""Arithmetic that vectorised kernels spend on one element."""


def group_costs(
    processors: Sequence[Processor], models: Mapping[str, CostModel]
) -> Callable[[Group], tuple[int | None, ...]]:
    """Nanoseconds of a group on each processor; None where the processor refuses an operator."""
    known: dict[tuple[str, tuple[Features, ...]], int] = {}

    def cost(group: Group, processor: Processor) -> int | None:
        if any(processor.why_not(op.call) is not None for op in group.operators):
            return None
        features = group_features(group, processor.machine)
        key = (processor.name, features)
        if key not in known:
            answers = models[processor.name].predict_all(features)
            known[key] = sum(answer.nanoseconds for answer in answers)
        return known[key]

    return lambda group: tuple(cost(group, processor) for processor in processors)


def predict_group(group: Group, processor: Processor, model: CostModel) -> list[Prediction]:
    """One prediction for each kernel that the group becomes."""
    return model.predict_all(group_features(group, processor.machine))


def group_features(group: Group, machine: VectorMachine) -> tuple[Features, ...]:
    """The kernels that a group becomes: one, or two where its input is gathered first."""
    anchor = group.anchor
    epilogue = epilogue_of(group, anchor)
    if anchor.kind == "nn.conv2d" and isinstance(anchor.call.args[1], GenericConst):
        shape = blocks.conv_shape(anchor.call)
        if shape is not None:
            return convolution_features(shape, epilogue, machine)
    if anchor.kind == "matmul" and isinstance(anchor.call.args[1], GenericConst):
        data = anchor.arg_shapes[0]
        if len(data) == len(anchor.shape) == 2:
            conv = ConvShape(1, data[1], (data[0], 1), anchor.shape[1], (1, 1))
            config = choose_conv(conv, machine, machine.lanes)
            return (template_features(config, epilogue, machine),)
    if anchor.kind in ("nn.max_pool2d", "nn.avg_pool2d"):
        return (template_features(blocks.pool_config(machine, anchor.call), epilogue, machine),)
    return (_generic(group, machine),)


def convolution_features(
    shape: ConvShape, epilogue: Epilogue, machine: VectorMachine
) -> tuple[Features, ...]:
    """The kernels of a convolution: one, or two where its input is gathered first."""
    if shape.groups > 1 and shape.groups == shape.in_channels == shape.out_channels:
        return (template_features(blocks.depthwise_config(shape, machine), epilogue, machine),)
    first: tuple[Features, ...] = ()
    if shape.kernel == (1, 1) and shape.stride != (1, 1) and not any(shape.padding):
        size = tuple(-(-i // s) for i, s in zip(shape.in_size, shape.stride, strict=True))
        elements = shape.batch * shape.in_channels * prod(size)
        first = (_copy(elements, machine),)
        shape = replace(shape, in_size=(size[0], size[1]), stride=(1, 1))
    block = 1 if shape.in_channels < machine.lanes and shape.groups == 1 else machine.lanes
    config = choose_conv(shape, machine, block)
    return (*first, template_features(config, epilogue, machine))


def epilogue_of(group: Group, anchor: Operator) -> Epilogue:
    """What the operators behind the anchor compute and read."""
    inside = {op.name for op in group.operators}
    flops, read = 0.0, 0
    for operator in group.operators:
        if operator is anchor:
            continue
        flops += prod(operator.shape) * _EXPENSIVE.get(operator.kind, 1)
        for argument in operator.call.args:
            if isinstance(argument, relax.Var) and argument.name in inside:
                continue
            if isinstance(argument.ty, relax.TensorType):
                read += bytes_of(argument.ty)
    reshaped = group.operators[-1].shape != anchor.shape
    return Epilogue(flops, read, group.bytes if reshaped else 0)


def _generic(group: Group, machine: VectorMachine) -> GenericFeatures:
    """Elementwise operators, reductions and whatever else: by what they touch."""
    elements = prod(group.operators[-1].shape)
    reads = max(elements, group.read_bytes // 4)
    arithmetic = sum(
        max(prod(op.shape), reads if op is group.anchor else 0) * _EXPENSIVE.get(op.kind, 1)
        for op in group.operators
    )
    return GenericFeatures(
        flops=float(arithmetic),
        in_bytes=group.read_bytes,
        weight_bytes=0,
        out_bytes=group.bytes,
        epilogue_flops=0.0,
        model_cycles=(arithmetic + 3.0 * reads) / machine.lanes,
        out_elements=elements,
        steps=reads,
        loads=reads,
        gathers=0,
        calls=0,
        conditions=0,
        reduce_steps=max(1, reads // max(1, elements)) if "mean" in group.anchor.kind else 1,
        inner_elements=machine.lanes,
        stages=len(group.operators),
    )


def _copy(elements: int, machine: VectorMachine) -> GenericFeatures:
    return GenericFeatures(
        flops=0.0,
        in_bytes=4 * elements,
        weight_bytes=0,
        out_bytes=4 * elements,
        epilogue_flops=0.0,
        model_cycles=3.0 * elements / machine.lanes,
        out_elements=elements,
        steps=elements,
        loads=elements,
        gathers=0,
        calls=0,
        conditions=0,
        reduce_steps=1,
        inner_elements=machine.lanes,
        stages=1,
    )
