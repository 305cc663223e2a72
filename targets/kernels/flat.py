"""Schedule elementwise byte kernels as one loop through memory, independently of their rows.

    for b, y, x, lane: out[b, y, x, lane] = f(a[b, y, x, lane])   # rows of 448 bytes

    for i: for k in vectorized(128): out[0, 0, 0, 128 * i + k] = f(a[0, 0, 0, 128 * i + k])

TVM cannot vectorize (128 * i + k) // 448, and LLVM for Hexagon computes such loops one number at a
time. The last index may exceed its extent, because memory is contiguous.

Operands that are the same for all pixels, as gates are, fill a vector first:

    for b, y, x, lane: out[b, y, x, lane] = f(a[b, y, x, lane], g[b, 0, 0, lane])

    for b: four[0:128] = g[b, 0, 0, 0:32] four times
           for i: for k in vectorized(128): out[b, 0, 0, 128 * i + k] = f(a[..], four[k])

Compute a chain of elementwise steps row by row, so that intermediate rows fit the stack.

for row, column: a = x + (x one column before)        for row:
for row, column: b = a + (a two columns before)   ->    for column: a = ..     # of one row
for row, column: y = b + (b four columns before)        for column: b = ..
                                                        for column: y = ..
Running sums are such chains: each step reads only its own row, but several elements of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.hexagon.kernels.hvx import VECTOR, again, keep_bytes

from .loop_axes import footprint
from .loops import STACK_BYTES, VECTORIZED, block, const, load, loop, scratch, unravelled, within


def through_memory(func: tirx.PrimFunc, statement: Any, count: int, lanes: int) -> tirx.PrimFunc:
    """The function with one loop, if all accesses of its only block advance like a single axis.

    Args:
        statement: its block, whose accesses step by one or not at all.
        lanes: of a vector; the rest is covered by vectors of half, a quarter, .. of that length.
    """
    axes = [axis.var for axis in statement.iter_vars]
    last = max(i for i, axis in enumerate(statement.iter_vars) if int(axis.dom.extent) > 1)

    def step(place: Expr) -> tirx.Stmt:
        def value(node: tirx.Var) -> Expr:
            places = [i for i, var in enumerate(axes) if node.same_as(var)]
            if not places:
                return node
            return place if places[0] == last else tirx.const(0, node.ty.dtype)

        return rewrite(statement.body, (tirx.Var, value))

    def vectors(first: int, passes: int, width: int) -> tirx.Stmt:
        def one(i: Expr) -> tirx.Stmt:
            return loop(width, lambda k: step(const(first) + i * width + k), "lane", VECTORIZED)

        return loop(passes, one)

    parts, first, width = [], 0, lanes
    while first < count:
        passes = (count - first) // width
        if passes:
            parts.append(vectors(first, passes, width))
        first, width = first + passes * width, max(1, width // 2)
    return with_nest(func, block(*parts))


def with_nest(func: tirx.PrimFunc, body: tirx.Stmt) -> tirx.PrimFunc:
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
    for depth, (axis, *places) in enumerate(zip(axes, *regions, strict=False)):
        if not all(place.min.same_as(axis) and is_one(place.extent) for place in places):
            return depth
    return min(len(axes), *map(len, regions))  # a single number has an axis, but no place


def is_one(extent: Any) -> bool:
    """Whether an extent is known to be 1."""
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


_LANES = (4, 8, 16, 32, 64)
"""Bytes of a pixel for which whole pixels fill a vector."""


def across_pixels(func: tirx.PrimFunc, statement: Any, lanes: int) -> tirx.PrimFunc | None:
    """The function in one loop over pixels, if its only block reads some operands again per pixel.

    None for other functions.

    Args:
        lanes: of a vector; the last vector of a block of channels ends with the block.

    Raises:
        ScheduleError: the block does not consist of one store.
    """
    axes = _axes_of(statement)
    if axes is None or lanes != VECTOR or axes.run < VECTOR or axes.lanes not in _LANES:
        return None
    if any(str(g.ty.dtype) not in ("uint8", "int8") for g in axes.again):
        return None
    copies = [scratch(f"each{i}", lanes, dtype=str(g.ty.dtype)) for i, g in enumerate(axes.again)]

    def moved_to(node: Any, outer: Sequence[Expr], place: Expr) -> Any:
        """The block's statement, or a part of it, at an offset from the first pixel."""
        return rewrite(node, (tirx.Var, lambda var: axes.value(var, outer, place)))

    def read(node: TensorLoad, k: Expr) -> Expr:
        indices = [
            c for c, g in zip(copies, axes.again, strict=True) if node.source.same_as(g.source)
        ]
        return load(indices[0], k) if indices else node

    def pixels(o: Expr) -> tirx.Stmt:
        outer = unravelled(o, [axes.extents[i] for i in axes.outer])

        def word_of(g: TensorLoad, number: int) -> Expr:
            *place, first = moved_to(g, outer, const(4 * number)).indices
            four = load(g.source, *place, tirx.Ramp(first, const(1), 4))
            return tirx.reinterpret("int32", four)

        words = range(axes.lanes // 4)
        fill = [
            keep_bytes(copy, again([word_of(g, number) for number in words]), 0)
            for copy, g in zip(copies, axes.again, strict=True)
        ]

        def vector(v: Expr) -> tirx.Stmt:
            first = tirx.min(v * lanes, const(axes.run - lanes)) if axes.run % lanes else v * lanes

            def one(k: Expr) -> tirx.Stmt:
                moved = moved_to(statement.body, outer, first + k)
                return rewrite(moved, (TensorLoad, lambda node: read(node, k)))

            return loop(lanes, one, "lane", VECTORIZED)

        return block(*fill, loop(-(-axes.run // lanes), vector))

    nest = loop(prod(axes.extents[i] for i in axes.outer), pixels, "block")
    return with_nest(func, within(copies, nest))


@dataclass(frozen=True)
class _Axes:
    """The axes of a block in which some loads are the same for all pixels."""

    # variables, extents: of all axes
    variables: Sequence[tirx.Var]
    extents: Sequence[int]
    outer: Sequence[int]  # indices of the axes before the pixels
    run: int  # elements of all pixels together
    lanes: int  # elements of one pixel
    again: Sequence[TensorLoad]  # the loads that are repeated for each pixel

    def value(self, var: tirx.Var, outer: Sequence[Expr], place: Expr) -> Expr:
        """The value of an axis variable: the last long axis holds the offset, beyond its extent."""
        places = [i for i, own in enumerate(self.variables) if var.same_as(own)]
        if not places:
            return var
        if places[0] in self.outer:
            return outer[self.outer.index(places[0])]
        longest = max(i for i, extent in enumerate(self.extents) if extent > 1)
        return place if places[0] == longest else tirx.const(0, var.ty.dtype)


def _axes_of(statement: Any) -> _Axes | None:
    memory = footprint(statement)
    extents = [int(axis.dom.extent) for axis in statement.iter_vars]
    long = [i for i, extent in enumerate(extents) if extent > 1]
    dense = [prod(extents[i + 1 :]) for i in range(len(extents))]
    loads = nodes_of(statement.body.value, TensorLoad)
    again: list[TensorLoad] = []
    pixels: set[tuple[int, ...]] = set()
    for access, node in zip(memory.loads, loads, strict=True):
        gone = tuple(i for i in long if access.strides[i] == 0)
        kept = [i for i in long if not gone or i > gone[-1]]
        if not kept or any(access.strides[i] != dense[i] for i in kept):
            return None
        pixels |= {gone} if gone else set()
        if gone and not any(tvm_ffi.structural_equal(node, other) for other in again):
            again.append(node)
    if memory.pinned or len(pixels) != 1 or any(memory.store.strides[i] != dense[i] for i in long):
        return None
    (gone,) = pixels
    others = [node for node in loads if not any(tvm_ffi.structural_equal(node, g) for g in again)]
    mixed = any(g.source.same_as(n.source) for g in again for n in (*others, *again) if n is not g)
    if mixed or list(gone) != [i for i in long if gone[0] <= i <= gone[-1]]:
        return None
    outer = [i for i in long if i < gone[0]]
    lanes = prod(extents[i] for i in long if i > gone[-1])
    run = prod(extents[i] for i in long if i not in outer)
    return _Axes([a.var for a in statement.iter_vars], extents, outer, run, lanes, again)
