"""Schedule elementwise byte kernels as one loop through memory, independently of their rows.

    for b, y, x, lane: out[b, y, x, lane] = f(a[b, y, x, lane])   # rows of 448 bytes

    for i: for k in vectorized(128): out[0, 0, 0, 128 * i + k] = f(a[0, 0, 0, 128 * i + k])

TVM cannot vectorize (128 * i + k) // 448, and LLVM for Hexagon computes such loops one number at a
time. The last index may exceed its extent, because memory is contiguous.

Compute a chain of elementwise steps row by row, so that intermediate rows fit the stack.

for row, column: a = x + (x one column before)        for row:
for row, column: b = a + (a two columns before)   ->    for column: a = ..     # of one row
for row, column: y = b + (b four columns before)        for column: b = ..
                                                        for column: y = ..
Running sums are such chains: each step reads only its own row, but several elements of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Expr

from tvm_stretch.network.rewriting import rewrite

from .loops import STACK_BYTES, VECTORIZED, block, const, loop


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


def rows_of_chain(sch: s_tir.Schedule, names: Sequence[str]) -> list[Any]:
    """The loops over rows, which contain all blocks; empty if the blocks are no such chain."""
    blocks = [sch.get(sch.get_sblock(name)) for name in names]
    extents = [[int(axis.dom.extent) for axis in block.iter_vars] for block in blocks]
    kinds = {axis.iter_type for block in blocks for axis in block.iter_vars}
    if len(blocks) < 2 or kinds != {tirx.IterVar.DataPar} or any(e != extents[0] for e in extents):
        return []
    between = [block.writes[0].source for block in blocks[:-1]]
    item = max(tvm.DataType(str(buffer.dtype)).itemsize for buffer in between)
    shared = min(_own_axes(block, between) for block in blocks)
    fitting = [r for r in range(shared + 1) if prod(extents[0][r:]) * item <= STACK_BYTES]
    if not fitting or not fitting[0]:
        return []
    rows: list[Any] = sch.get_loops(sch.get_sblock(names[-1]))[: fitting[0]]
    for name in reversed(names[:-1]):
        sch.compute_at(sch.get_sblock(name), rows[-1])
    return rows


def _own_axes(block: Any, between: Sequence[tirx.Buffer]) -> int:
    """The number of leading axes along which a block reads ``between``, and writes, in place."""
    axes = [axis.var for axis in block.iter_vars]
    regions = [read.region for read in block.reads if any(map(read.source.same_as, between))]
    regions.append(block.writes[0].region)
    for found, (axis, *places) in enumerate(zip(axes, *regions, strict=False)):
        if not all(place.min.same_as(axis) and _is_one(place.extent) for place in places):
            return found
    return min(len(axes), *map(len, regions))  # a single number has an axis, but no place


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1
