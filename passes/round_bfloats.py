"""Round what an operator computes in bfloat16, before kernels join operators.

    out[i] = bfloat16(x[i])   ->   out[i] = bfloat16(rounded(x[i]))

TVM computes bfloat16 in float32 and rounds only where a kernel stores: its `BF16ComputeLegalize`
drops the casts in between, so `x.bfloat16().float()` would be `x` in a kernel that joins both. A
network expects one rounding an operator, and none within a GELU, as PyTorch computes it. The call
`rounded` is an operator of ours until code is made (`make/code/float_arithmetic.py`).
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Op, register_op_attr

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import changed_block, rewrite, rewrite_kernels

_NAME = "tirx.tvm_stretch_round_bfloat"
register_op_attr(_NAME, "TVectorizable", True)
register_op_attr(_NAME, "TCallEffectKind", 1)  # a pure function
_BFLOAT = "bfloat16"
_COMPUTED = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Cast, Call)


@tvm.transform.module_pass(opt_level=0, name="RoundBfloats")
class RoundBfloats:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, _with_roundings)


def _with_roundings(func: tirx.PrimFunc) -> tirx.PrimFunc:
    def with_rounding(block: s_tir.SBlock) -> s_tir.SBlock:
        store = block.body
        if block.init is not None or not isinstance(store, tirx.BufferStore):
            return block  # a sum stays in memory, where every store rounds
        is_output = any(store.buffer.same_as(param) for param in func.params)
        if not is_output or not _is_computed(store.value):
            return block
        value = tirx.Cast(_BFLOAT, _rounding_of(tirx.Cast("float32", store.value)))
        return changed_block(block, body=tirx.BufferStore(store.buffer, value, store.indices))

    return func.with_body(rewrite(func.body, (s_tir.SBlock, with_rounding)))


def _is_computed(value: Expr) -> bool:
    """Whether some part of a value is computed in bfloat16, and not just read or chosen."""
    nodes = nodes_of(value, *_COMPUTED)
    return any(str(getattr(node.ty, "dtype", "")) == _BFLOAT for node in nodes)


def _rounding_of(value: Expr) -> Call:
    """``value``, a float32, rounded to the digits of bfloat16."""
    return Call(Op.get(_NAME), [value], ret_ty=value.ty)


def rounded(node: Expr) -> Expr | None:
    """What a call of `_rounding_of` rounds; None for other expressions."""
    if not isinstance(node, Call) or getattr(node.op, "name", "") != _NAME:
        return None
    return node.args[0]
