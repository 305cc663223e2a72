"""Round every product of the network before the sum that reads it.

    product[i] = x[i] * y[i]          product[i] = fence(x[i] * y[i])
    sum[i] = product[i] + z[i]   ->   sum[i] = product[i] + z[i]

Processors have an instruction that multiplies, adds and rounds once, and LLVM uses it wherever a
product is added. A network that says two operators means two roundings: programs split numbers
into halves by the error of a product. Only blocks that compute one product and nothing else are
changed, which are operators of the network; sums of templates and polynomials keep the instruction.
Kernels that add nothing are left alone, because LLVM does not vectorise a loop around a fence.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, Expr
from tvm.target.codegen import llvm_lookup_intrinsic_id

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import changed_block, rewrite, rewrite_kernels

_FENCE = "llvm.arithmetic.fence"
_FENCE_ID = llvm_lookup_intrinsic_id(_FENCE)


@tvm.transform.module_pass(opt_level=0, name="RoundProducts")
class RoundProducts:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, _with_fences)


def _with_fences(func: tirx.PrimFunc) -> tirx.PrimFunc:
    stores = [block.body for block in nodes_of(func.body, s_tir.SBlock) if block.init is None]
    values = [store.value for store in stores if isinstance(store, tirx.BufferStore)]
    sums = [added for value in values for added in nodes_of(value, tirx.Add, tirx.Sub)]
    if not any("float" in str(added.ty.dtype) for added in sums):
        return func
    return func.with_body(rewrite(func.body, (s_tir.SBlock, _rounded)))


def _rounded(block: s_tir.SBlock) -> s_tir.SBlock:
    store = block.body
    if block.init is not None or not isinstance(store, tirx.BufferStore):
        return block
    value = store.value
    if not isinstance(value, tirx.Mul) or str(value.ty.dtype) not in ("float32", "float64"):
        return block
    if any(abs(getattr(factor, "value", 0)) == 1 for factor in (value.a, value.b)):
        return block  # a number or its negative, which is exact
    return changed_block(block, body=tirx.BufferStore(store.buffer, fence(value), store.indices))


def fence(value: Expr) -> Expr:
    """``value``, which LLVM neither fuses nor reorders with what reads it."""
    return tirx.call_llvm_pure_intrin(str(value.ty.dtype), _FENCE, value)


def is_fence(call: Call) -> bool:
    """Whether a call is a fence of this pass."""
    is_intrinsic = getattr(call.op, "name", "") == "tirx.call_llvm_pure_intrin"
    return is_intrinsic and int(call.args[0]) == _FENCE_ID


def fenced(call: Call) -> Expr | None:
    """The product that a fence of this pass holds; None for other calls."""
    return call.args[1] if is_fence(call) and isinstance(call.args[1], tirx.Mul) else None
