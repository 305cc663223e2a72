"""Compute features of fused PrimFuncs before scheduling, while they still show their meaning.

fused_conv2d_add_relu  (annotation: template conv, 64 -> 64 channels, tile 6 x 2, ...)
    ->  ConvFeatures(flops=231211008, weight_bytes=147456, tile_pixels=6, ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from tvm_stretch.network.views import dtype_bytes
from tvm_stretch.plan.cost.statements import Statement, generic_features, statements_of
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.fused import split_fused
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import template_of
from tvm_stretch.targets.kernels.template import Template, read_template


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
