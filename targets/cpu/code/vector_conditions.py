"""Conditions that are the same for all lanes of a vector.

    for lane in T.vectorized(16):  if_then_else(32 <= i * 16 + lane, a, b)
        ->
    for lane in T.vectorized(16):  if_then_else(32 <= i * 16, a, b)

TVM makes a serial loop of a vector whose lanes may differ, as where tensors are concatenated. They
cannot if a vector begins at a multiple of its lanes, and the limit is a multiple as well.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvm_stretch.network.rewriting import rewrite


@tirx.transform.prim_func_pass(opt_level=0, name="SameForAllLanes")
def same_for_all_lanes(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """See the module docstring."""

    def in_loop(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.VECTORIZED:
            return loop
        analyzer, lanes = Analyzer(), int(loop.extent)

        def is_multiple(x: tvm.ir.Expr) -> bool:
            found = analyzer.modular_set(x)
            return found.coeff % lanes == 0 and found.base % lanes == 0

        def begin(var: tirx.Var) -> tvm.ir.Expr:
            return loop.min if var.same_as(loop.loop_var) else var

        def at_first(comparison: tirx.LE | tirx.LT) -> tirx.LE | tirx.LT:
            is_less = isinstance(comparison, tirx.LT)  # place < limit, else limit <= place
            place, limit = (comparison.a, comparison.b)[:: 1 if is_less else -1]
            first = rewrite(place, (tirx.Var, begin))
            lane = analyzer.simplify(place - first)
            if not lane.same_as(loop.loop_var) or not (is_multiple(first) and is_multiple(limit)):
                return comparison
            return tirx.LT(first, limit) if is_less else tirx.LE(limit, first)

        body = rewrite(loop.body, ((tirx.LE, tirx.LT), at_first))
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body)

    return func.with_body(rewrite(func.body, (tirx.For, in_loop)))
