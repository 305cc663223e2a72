"""Weights of dense layers that float16 or bfloat16 holds exactly: two bytes, also in artifacts.

    R.matmul(x, w: float32)  ->  R.call_tir(pack, (w: float16,)), once
                                 R.call_tir(dense, (x, packed: float16))    # few rows
                                 R.call_tir(dense, (x, packed: float32))    # many rows

Networks of float16 have such weights, and are computed in float32 where no processor has float16
arithmetic; so do float32 networks that were trained in bfloat16. Kernels widen weights with the
instruction that loads them, or with a shift.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.ir.expressions import constant, shape_of
from tvm_stretch.ir.operators import kind_of
from tvm_stretch.targets.kernels.halves import narrowed
from tvm_stretch.targets.kernels.machine import VectorMachine


def store_halves(machines: Iterable[VectorMachine]) -> bool:
    """Whether weights are stored so: all processors of a model read the same bytes."""
    return all(machine.widens_half for machine in machines)


def half_weight(call: relax.Expr) -> GenericConst | None:
    """The weights of a dense layer in two bytes, if they are float32 and this is exact."""
    if kind_of(call) != "matmul" or not isinstance(call.args[1], GenericConst):
        return None
    weight = call.args[1]
    if len(shape_of(weight)) != 2 or str(weight.ty.dtype) != "float32":
        return None
    half = narrowed(weight.value.numpy())
    return None if half is None else constant(half)


def half_weights(network: tvm.IRModule) -> dict[GenericConst, GenericConst]:
    """The weights of `half_weight` in ``main``, by those in float32."""
    found: dict[GenericConst, GenericConst] = {}

    def visit(expr: relax.Expr) -> None:
        half = half_weight(expr)
        if half is not None:
            found[expr.args[1]] = half

    relax.analysis.post_order_visit(network["main"].body, visit)
    return found
