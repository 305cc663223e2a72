"""Compute features of fused PrimFuncs before scheduling, while they still show their meaning.

fused_conv2d_add_relu  (annotation: template conv, 64 -> 64 channels, tile 6 x 2, ...)
    ->  ConvFeatures(flops=231211008, weight_bytes=147456, tile_pixels=6, ...)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.network.expressions import dtype_bytes, nodes_of
from tvm_stretch.network.integers import meaning_of
from tvm_stretch.plan.cost.generic_features import (
    GenericFeatures,
    InOrderFeatures,
    MeanFeatures,
    TableFeatures,
)
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.fused import split_fused
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import template_of
from tvm_stretch.targets.kernels.template import Template, read_template
from tvm_stretch.targets.opencl.kernels.in_order import is_in_order, turns


def describe(function: tirx.PrimFunc, machine: VectorMachine) -> Features:
    """Features of one fused kernel."""
    return describe_apart(function, machine)[0]


def describe_apart(
    function: tirx.PrimFunc, machine: VectorMachine
) -> tuple[Features, Anchored | None]:
    """Features of one fused kernel, with its template and epilogue if it has a cost family."""
    statements = list(statements_of(function, machine.lanes))
    anchored = _anchored(function, statements, machine)
    if anchored is not None:
        features = anchored.template.work(anchored.epilogue(), machine, anchored.item_bytes)
        if features is not None:
            return features, anchored
    sizes = [_bytes(param) for param in function.params]
    return generic_features(function, statements, sizes, machine), None


def result_shape(function: tirx.PrimFunc) -> tuple[int, ...]:
    """The shape of a kernel's result, which is its last parameter."""
    return _shape(function.params[-1])


@dataclass(frozen=True)
class Anchored:
    """A kernel of a template, split into template and epilogue."""

    template: Template  # with its configuration
    flops: float  # of the epilogue
    # shape and bytes per element of the epilogue's other operands
    operands: tuple[tuple[tuple[int, ...], int], ...]
    out_bytes: int  # of the kernel's result
    item_bytes: int  # of an element of the template's input

    def epilogue(self) -> EpilogueWork:
        """The operators that are fused after the template."""
        read = sum(prod(shape) * item for shape, item in self.operands)
        return EpilogueWork(self.flops, read, self.out_bytes)


def _anchored(
    function: tirx.PrimFunc, statements: list[Statement], machine: VectorMachine
) -> Anchored | None:
    last = max((i for i, block in enumerate(statements) if block.mark), default=None)
    if last is None:
        return None
    template = read_template(str(statements[last].mark))
    if template.needs_own_blocks:
        fused = split_fused(function)
        if fused is None or template_of(fused, machine) is None:
            return None
    others = function.params[template.operands : -1]
    return Anchored(
        template,
        sum(float(block.elements * block.arithmetic) for block in statements[last + 1 :]),
        tuple((_shape(param), dtype_bytes(str(param.dtype))) for param in others),
        _bytes(function.params[-1]),
        dtype_bytes(str(function.params[0].dtype)),
    )


def _shape(param: Any) -> tuple[int, ...]:
    return tuple(int(dim) for dim in getattr(param, "shape", ()))


def _bytes(param: Any) -> int:
    """Size of a buffer; scalars have none."""
    return prod(_shape(param)) * dtype_bytes(str(param.dtype))


_FAMILIES: dict[str, type[GenericFeatures]] = {"mean": MeanFeatures, "table": TableFeatures}
"""Families of integer operators that have one, by kind."""

_TURN_CYCLES = 100
"""In which a work-item of a GPU loads a few numbers and stores one."""

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.Select)


@dataclass(frozen=True)
class Statement:
    """One statement of a PrimFunc and the loops around it."""

    mark: str | None
    elements: int
    reduce: int
    inner: int
    arithmetic: int
    loads: int
    gathers: int
    calls: int
    conditions: int


def generic_features(
    function: tirx.PrimFunc,
    statements: list[Statement],
    sizes: list[int],
    machine: VectorMachine,
) -> GenericFeatures:
    """Features of a kernel that consists of ``statements``; ``sizes`` are its operands' bytes."""
    steps = sum(one.elements for one in statements)
    last = statements[-1] if statements else Statement(None, 0, 1, 1, 0, 0, 0, 0, 0)
    work = sum(
        one.elements * (one.arithmetic + one.loads + 20 * one.calls + 2) for one in statements
    )
    integer = meaning_of(function)
    family = _FAMILIES.get(integer.kind if integer else "", GenericFeatures)
    cycles = work / machine.lanes
    own = {}
    if machine.gpu is not None and is_in_order(function):
        family, own = InOrderFeatures, {"turns": turns(function)}
        cycles += _TURN_CYCLES * own["turns"] * machine.gpu.cores  # all others wait
    return family(
        flops=float(sum(one.elements * one.arithmetic for one in statements)),
        in_bytes=sum(sizes[:-1]),
        weight_bytes=0,
        out_bytes=sizes[-1] if sizes else 0,
        epilogue_flops=0.0,
        model_cycles=cycles,
        out_elements=last.elements // max(1, last.reduce),
        steps=steps,
        loads=sum(one.elements * one.loads for one in statements),
        gathers=sum(one.elements * one.gathers for one in statements),
        calls=sum(one.elements * one.calls for one in statements),
        conditions=sum(one.elements * one.conditions for one in statements),
        reduce_steps=max((one.reduce for one in statements), default=1),
        inner_elements=last.inner,
        stages=len(statements),
        vector_lanes=machine.lanes,
        item_bytes=dtype_bytes(str(function.params[0].dtype)) if sizes else 4,
        **own,
    )


def statements_of(function: tirx.PrimFunc, lanes: int) -> Iterator[Statement]:
    """The statements of a function that consists of blocks, in order."""
    for block in nodes_of(function.body, s_tir.SBlock):
        if block.name_hint != "root" or len(block.iter_vars):
            yield _statement(block, lanes)


def _statement(block: s_tir.SBlock, lanes: int) -> Statement:
    extents = [int(axis.dom.extent) for axis in block.iter_vars]
    reduced = [
        extent for extent, axis in zip(extents, block.iter_vars, strict=True) if axis.iter_type == 2
    ]
    counts = dict.fromkeys(("arithmetic", "loads", "gathers", "calls", "conditions"), 0)
    for node in nodes_of(block.body, TensorLoad, Call, *_ARITHMETIC):
        if isinstance(node, TensorLoad):
            counts["loads"] += 1
            counts["gathers"] += _pieces(node, lanes) - 1
        elif isinstance(node, Call):
            name = node.op.name if isinstance(node.op, tvm.ir.Op) else ""
            if name == "prim.if_then_else":
                counts["conditions"] += 1
            elif "float" in str(node.ty):
                counts["calls"] += 1
        elif "float" in str(node.ty):
            counts["arithmetic"] += 1
    mark = block.annotations.get(ANNOTATION)
    return Statement(
        mark=None if mark is None else str(mark),
        elements=prod(extents),
        reduce=prod(reduced),
        inner=extents[-1] if extents else 1,
        **counts,
    )


def _pieces(load: TensorLoad, lanes: int) -> int:
    """Number of pieces in which the lanes of a vector are read, if all follow the last index.

    ``x[.., lane]``: 1; ``x[.., (lane + 4) % 8]``: 2; ``x[.., (lane + 3) % 8]``: 8
    """
    numbers = nodes_of(load.indices[-1], tirx.IntImm) if len(load.indices) else []
    shifts = [int(number.value) for number in numbers]
    return lanes // math.gcd(lanes, *shifts) if shifts else 1


def describe_copy(size: int, machine: VectorMachine) -> GenericFeatures:
    """Features of the executor's own copy of ``size`` bytes."""
    return GenericFeatures(
        flops=0.0,
        in_bytes=size,
        weight_bytes=0,
        out_bytes=size,
        epilogue_flops=0.0,
        model_cycles=size / 16,
        out_elements=size // 4,
        steps=size // 4,
        loads=size // 4,
        gathers=0,
        calls=0,
        conditions=0,
        reduce_steps=1,
        inner_elements=max(1, size // 4),
        stages=1,
        vector_lanes=machine.lanes,
    )
