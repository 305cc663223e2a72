"""Weights that float16 or bfloat16 holds exactly have two bytes, also in artifacts.

    R.matmul(x, w: float32)  ->  R.call_tir(pack, (w: float16,)), once
                                 R.call_tir(dense, (x, packed: float16))    # few rows
                                 R.call_tir(dense, (x, packed: float32))    # many rows
    R.nn.conv2d(x, w)        ->  the same with windows of one pixel: many rows
    R.take(w, tokens)        ->  R.astype(R.take(w: float16, tokens), float32)

Networks of float16 have such weights, and are computed in float32 where no processor has float16
arithmetic; so do float32 networks that were trained in bfloat16. Kernels widen weights with the
instruction that loads them, or with a shift.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.kernels.halves import narrowed
from tvm_stretch.targets.kernels.machine import VectorMachine


def store_halves(machines: Iterable[VectorMachine]) -> bool:
    """Whether weights are stored so: all processors of a model read the same bytes."""
    return all(machine.widens_half for machine in machines)


def half_weight(call: relax.Expr) -> GenericConst | None:
    """The weights of a layer, or rows to take, in two bytes: if this is exact for float32."""
    weight = _weight(call)
    if weight is None or str(weight.ty.dtype) != "float32":
        return None
    half = narrowed(weight.value.numpy())
    return None if half is None else constant(half)


def _weight(call: relax.Expr) -> GenericConst | None:
    """The constant of a dense layer, a convolution of single pixels, or a table of rows."""
    kind = kind_of(call)
    if kind not in ("matmul", "nn.conv2d", "take"):
        return None
    weight = call.args[0 if kind == "take" else 1]
    if not isinstance(weight, GenericConst):
        return None
    shape = shape_of(weight)
    if kind == "nn.conv2d":
        fits = tuple(shape[2:]) == (1, 1) and int(call.attrs.groups) == 1
        return weight if fits and call.attrs.kernel_layout == "OIHW" else None
    rows = kind == "matmul" or call.attrs.axis in (None, 0)
    return weight if len(shape) == 2 and rows else None


def half_weights(network: tvm.IRModule) -> dict[GenericConst, GenericConst]:
    """The weights of `half_weight` in ``main``, by those in float32."""
    found: dict[GenericConst, GenericConst] = {}

    def visit(expr: relax.Expr) -> None:
        weight, half = _weight(expr), half_weight(expr)
        if weight is not None and half is not None:
            found[weight] = half

    relax.analysis.post_order_visit(network["main"].body, visit)
    return found
