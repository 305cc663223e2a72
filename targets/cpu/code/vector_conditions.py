"""Conditions that are the same for all lanes of a vector.

    for lane in T.vectorized(16):  if_then_else(32 <= i * 16 + lane, a, b)
        ->
    for lane in T.vectorized(16):  if_then_else(32 <= i * 16, a, b)

TVM makes a serial loop of a vector whose lanes may differ, as where tensors are concatenated. They
cannot if a vector begins at a multiple of its lanes, and the limit is a multiple as well.

    for i in range(3), lane in T.vectorized(16):  if i * 16 + lane < 40: ..
        ->
    for i in range(2), lane in T.vectorized(16):  ..
    for lane in range(8):  ..                        # of i = 2
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
            modular = analyzer.modular_set(x)
            return modular.coeff % lanes == 0 and modular.base % lanes == 0

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


@tirx.transform.prim_func_pass(opt_level=0, name="WholeVectorsFirst")
def whole_vectors_first(
    func: tirx.PrimFunc, _mod: tvm.IRModule, _context: tvm.transform.PassContext
) -> tirx.PrimFunc:
    """See the module docstring: the end of a loop whose extent is no multiple of the lanes."""

    def cut(outer: tirx.For) -> tirx.For | tirx.SeqStmt:
        inner, analyzer = outer.body, Analyzer()
        if not isinstance(inner, tirx.For) or inner.kind != tirx.ForKind.VECTORIZED:
            return outer
        guarded = inner.body
        if not isinstance(guarded, tirx.IfThenElse) or guarded.else_case is not None:
            return outer
        condition, lanes = guarded.condition, int(inner.extent)
        if not isinstance(condition, tirx.LT) or not isinstance(condition.b, tirx.IntImm):
            return outer
        place = outer.loop_var * lanes + inner.loop_var
        if not analyzer.can_prove_equal(condition.a, place):
            return outer
        kind = outer.loop_var.ty.dtype
        count, rest = divmod(int(condition.b), lanes)
        if int(outer.extent) != count + (rest > 0):
            return outer
        zero, last = tirx.const(0, kind), tirx.const(count, kind)
        vectors = tirx.For(inner.loop_var, zero, inner.extent, inner.kind, guarded.then_case)
        whole = tirx.For(outer.loop_var, zero, last, outer.kind, vectors)
        lane = tirx.Var("lane", kind)
        places = {outer.loop_var: last, inner.loop_var: lane}
        end = rewrite(guarded.then_case, (tirx.Var, lambda var: places.get(var, var)))
        single = tirx.For(lane, zero, tirx.const(rest, kind), tirx.ForKind.SERIAL, end)
        return tirx.SeqStmt([whole, single])

    return func.with_body(rewrite(func.body, (tirx.For, cut)))
