"""Write the quantising and dequantising that is left as arithmetic.

    y = R.dequantize(x, s, z)   ->   y = (x as int32 - z) as float32 * s
    y = R.quantize(x, s, z)     ->   y = clip(round(x / s) + z, 0, 255) as uint8

`FormIntegers` has made integer operators of the others. The arithmetic consists of ordinary
operators, so its constants are folded and kernels fuse it.
"""

from __future__ import annotations

import ml_dtypes
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant, rewrite_functions, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import CallRewriter


@tvm.transform.module_pass(opt_level=0, name="DecomposeQuantisation")
class DecomposeQuantisation:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_functions(mod, lambda mod, function: _Writer(mod).visit_expr(function))


@relax.expr_functor.mutator
class _Writer(CallRewriter):
    def rewrite(self, call: relax.Call) -> relax.Expr | None:
        kind = kind_of(call)
        if kind not in ("quantize", "dequantize") or "float8" in str(call.ty.dtype):
            return None
        x, scale, zero = call.args
        rank, axis = len(shape_of(x)), int(call.attrs.axis)
        scale, zero = (
            self.builder_.normalize(_aligned(operand, shape_of(x), axis % max(rank, 1)))
            for operand in (scale, zero)
        )
        write = quantised if kind == "quantize" else dequantised
        return write(x, scale, zero, str(call.ty.dtype))


def _aligned(operand: relax.Expr, shape: list[int], axis: int) -> relax.Expr:
    """Scales or zero points with the rank of their tensor; a single number stays a scalar."""
    if not shape_of(operand):
        return operand
    full = [size if i == axis else 1 for i, size in enumerate(shape)]
    full = [] if shape_of(operand) == [1] else full
    if isinstance(operand, GenericConst):
        return constant(operand.value.numpy().reshape(full))
    return relax.op.reshape(operand, full)


def _zero_as(zero: relax.Expr, dtype: str) -> relax.Expr:
    """Zero points in another type; constants stay constants, which kernels inline."""
    if isinstance(zero, GenericConst):
        return constant(zero.value.numpy().astype(dtype))
    return relax.op.astype(zero, dtype)


def dequantised(
    x: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, dtype: str
) -> relax.Expr:
    """``(x - zero) * scale``; the subtraction is exact, in integers."""
    kind = str(scale.ty.dtype)
    exact = kind if "float" in str(x.ty.dtype) else "int32"
    wide = relax.op.astype(x, exact)
    if zero is not None:
        wide = relax.op.subtract(wide, _zero_as(zero, exact))
    result = relax.op.multiply(relax.op.astype(wide, kind), scale)
    return relax.op.astype(result, dtype) if dtype != kind else result


def quantised(x: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """``x / scale`` as an integer."""
    return saturated(relax.op.divide(x, scale), zero, dtype)


def saturated(x: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Round to even, add the zero point, clip to the range of ``dtype``."""
    limits = ml_dtypes.iinfo(dtype)
    wide = relax.op.astype(relax.op.round(x), "float32")
    if zero is not None:
        wide = relax.op.add(wide, _zero_as(zero, "float32"))
    low, high = relax.prim_value(float(limits.min)), relax.prim_value(float(limits.max))
    result = relax.op.clip(wide, low, high)
    if limits.bits < 32:  # machines differ in how they cast floats out of range to short types
        result = relax.op.astype(result, "int32")
    return relax.op.astype(result, dtype)
