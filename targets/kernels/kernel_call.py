"""Relax calls of kernels that are written as tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tvm import relax, te, tirx
from tvm.ir import Expr, GenericConst

from .fused import ONCE

_MADE: dict[Hashable, tuple[tirx.PrimFunc, relax.TensorType]] = {}
"""Kernels of this process: making one takes milliseconds, and layers repeat within networks."""


def kernel_call(
    bb: relax.BlockBuilder,  # receives the kernel
    name: str,  # of the kernel
    what: Hashable,  # identifies the computation, together with the name and the operands' types
    compute: Callable[..., te.Tensor],  # the tensor expression
    *operands: Expr,  # with static shapes
) -> relax.Call:
    """``compute`` of the operands, as a call of a kernel."""
    types = [(tuple(map(int, op.ty.shape.values)), str(op.ty.dtype)) for op in operands]
    once = all(isinstance(op, GenericConst) for op in operands)
    key = (name, what, once, *types)
    if key not in _MADE:
        inputs = [te.placeholder(op.ty.shape.values, op.ty.dtype.dtype) for op in operands]
        out = compute(*inputs)
        kernel = te.create_prim_func([*inputs, out], "int64").without_attr("global_symbol")
        kernel = kernel.with_attr(ONCE, True) if once else kernel
        _MADE[key] = kernel, relax.TensorType(out.shape, out.dtype)
    kernel, ty = _MADE[key]
    return relax.call_tir(bb.add_func(kernel, name), list(operands), ty)
