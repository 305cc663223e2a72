"""Propagate NaN and infinities through maximum and minimum.

    y[i] = T.max(x[i], 0)           ->   y[i] = T.max(0, x[i])
    m[0] = T.max(m[0], x[i])        ->   m[0] = T.max(x[i], m[0])
    T.init(): m[0] = -3.4028e38     ->   T.init(): m[0] = -inf

A comparison with NaN is false, and ``T.max`` then returns its second operand, as the processor's
instruction does. The computed operand stands there, if the other one is constant. A running maximum
keeps a NaN that it has found and starts from minus infinity; `kernels/nan.py` lets it accept new
NaN.
"""

from __future__ import annotations

import math

import tvm
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import changed_block, rewrite, rewrite_kernels
from tvm_stretch.targets.kernels.nan import moved


@tvm.transform.module_pass(opt_level=0, name="KeepNan")
class KeepNan:
    """See the module docstring."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, _keep_nan)


def _keep_nan(func: tirx.PrimFunc) -> tirx.PrimFunc:
    sums = [block for block in nodes_of(func.body, s_tir.SBlock) if block.init is not None]
    running = [region.source for block in sums for region in block.writes]

    def swap(expr: tirx.Max | tirx.Min) -> Expr:
        """Put the operand that may be NaN second; see the module docstring."""
        bound = isinstance(expr.b, tirx.FloatImm) and not isinstance(expr.a, tirx.FloatImm)
        bound = bound and not math.isnan(expr.b.value)
        first = expr.a.source if isinstance(expr.a, TensorLoad) else None
        runs = first is not None and any(first.same_as(buffer) for buffer in running)
        return type(expr)(expr.b, expr.a) if bound or runs else expr

    body = rewrite(func.body, ((tirx.Max, tirx.Min), swap))
    return func.with_body(rewrite(body, (s_tir.SBlock, _from_infinity)))


def _from_infinity(block: s_tir.SBlock) -> s_tir.SBlock:
    """Start a running maximum from infinity instead of the largest number."""
    start = block.init
    if not isinstance(start, tirx.BufferStore) or not isinstance(start.value, tirx.FloatImm):
        return block
    number = moved(start.value, finite=False)
    if number.same_as(start.value):
        return block
    return changed_block(block, init=tirx.BufferStore(start.buffer, number, start.indices))
