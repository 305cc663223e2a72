"""Schedule elementwise byte kernels as one loop through memory, independently of their rows.

    for b, y, x, lane: out[b, y, x, lane] = f(a[b, y, x, lane])   # rows of 448 bytes

    for i: for k in vectorized(128): out[0, 0, 0, 128 * i + k] = f(a[0, 0, 0, 128 * i + k])

TVM cannot vectorize (128 * i + k) // 448, and LLVM for Hexagon computes such loops one number at a
time. The last index may exceed its extent, because memory is contiguous.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.network.rewriting import rewrite

from .loops import VECTORIZED, block, const, loop


def through_memory(func: tirx.PrimFunc, statement: Any, count: int, lanes: int) -> tirx.PrimFunc:
    """The function with one loop, if all accesses of its only block advance like a single axis.

    Args:
        statement: its block, whose accesses step by one or not at all.
        lanes: of a vector; the rest is covered by vectors of half, a quarter, .. of that length.
    """
    axes = [axis.var for axis in statement.iter_vars]
    last = max(i for i, axis in enumerate(statement.iter_vars) if int(axis.dom.extent) > 1)

    def at(place: Expr) -> tirx.Stmt:
        def value(node: tirx.Var) -> Expr:
            found = [i for i, var in enumerate(axes) if node.same_as(var)]
            if not found:
                return node
            return place if found[0] == last else tirx.const(0, node.ty.dtype)

        return rewrite(statement.body, (tirx.Var, value))

    def vectors(first: int, passes: int, width: int) -> tirx.Stmt:
        def one(i: Expr) -> tirx.Stmt:
            return loop(width, lambda k: at(const(first) + i * width + k), "lane", VECTORIZED)

        return loop(passes, one)

    parts, first, width = [], 0, lanes
    while first < count:
        passes = (count - first) // width
        if passes:
            parts.append(vectors(first, passes, width))
        first, width = first + passes * width, max(1, width // 2)
    return scheduled(func, block(parts))


def scheduled(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
    """The function with a complete loop nest as its body."""
    attrs = {**(func.attrs or {}), "s_tir": True, "tirx.noalias": True}
    return tirx.PrimFunc(func.params, body).with_attrs(attrs)
