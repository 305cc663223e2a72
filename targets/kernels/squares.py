"""Transpose in registers: squares of vectors that are read along one axis and stored along another.

    for m, n: out[m, n] = f(a[n, m])

    for tile of m, tile of n:            # squares of lanes x lanes; the last ones overlap
      rows[i] = a[n + i, m ..]           # vectors of the operand
      exchange the halves of rows, then quarters, ..   # shuffles, until rows are columns
      out[m + j, n ..] = f(rows[j])      # vectors of the result

Number by number, a transposition takes three cycles for each; squares take less than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import DataType, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite

from .flat import with_nest
from .loop_axes import Axis
from .loops import (
    CACHE_LINE,
    PARALLEL,
    SERIAL,
    block,
    const,
    lanes,
    load,
    loop,
    store,
    unravelled,
    vectors,
    within,
)

_SIDES = (4, 8, 16)
"""Lanes whose halves, quarters and so on are exchanged."""
_LINE = CACHE_LINE // 4  # numbers of a cache line


def in_squares(
    func: tirx.PrimFunc, statement: Any, axes: Sequence[Axis], side: int, threads: bool
) -> tirx.PrimFunc | None:
    """The function in squares of ``side``, if its only block transposes one operand.

    Args:
        statement: its block, a store whose accesses move by ``axes``, none of them pinned, so that
            its value contains no axis.
        threads: whether cores share the squares.
    """
    across = _across(axes, side)
    if across is None or side not in _SIDES:
        return None
    squares = _Squares(statement.body, tuple(axes), across, side)
    return with_nest(func, squares.write(threads)) if squares.fits else None


def _across(axes: Sequence[Axis], side: int) -> int | None:
    """The axis along which the one load that jumps along the last axis is contiguous."""
    last = axes[-1]
    jumping = [i for i, step in enumerate(last.strides) if step not in (0, 1)]
    if len(jumping) != 1 or last.strides[0] != 1 or last.extent < side:
        return None
    for i, axis in enumerate(axes[:-1]):
        if axis.strides[jumping[0]] == 1 and axis.extent >= side:
            return i
    return None


@dataclass(frozen=True)
class _Squares:
    """A block in squares of ``side`` numbers of the axis ``across`` and of the last axis."""

    body: tirx.BufferStore
    axes: tuple[Axis, ...]
    across: int
    side: int

    @property
    def loads(self) -> list[TensorLoad]:
        """All loads, in the order of the strides of axes."""
        return nodes_of(self.body.value, TensorLoad)

    @property
    def turned(self) -> int:
        """Which load is transposed."""
        return next(i for i, s in enumerate(self.axes[-1].strides[1:]) if s not in (0, 1))

    @property
    def fits(self) -> bool:
        """Whether numbers have 32 bits, and no buffer has strides of its own."""
        buffers = [self.body.buffer, *(node.source for node in self.loads)]
        numbers = (self.body.buffer, self.loads[self.turned].source)
        wide = all(DataType(str(buffer.dtype)).bits == 32 for buffer in numbers)
        return wide and not any(len(buffer.strides) for buffer in buffers)

    def write(self, threads: bool) -> tirx.Stmt:
        """All squares; neighbours along the last axis share the cache lines that they store."""
        across, last = self.axes[self.across], self.axes[-1]
        wide = _LINE if last.extent >= _LINE else self.side
        outer = [axis.extent for i, axis in enumerate(self.axes[:-1]) if i != self.across]
        strips = -(-last.extent // wide)

        def strip(task: Expr) -> tirx.Stmt:
            places = unravelled(task // strips, outer)
            column = _start(task % strips, wide, last.extent)

            def squares(t: Expr) -> tirx.Stmt:
                first = _start(t, self.side, across.extent)
                parts = range(0, wide, self.side)
                return block(*(self.square(places, first, column + part) for part in parts))

            return loop(-(-across.extent // self.side), squares, "tile")

        kind = PARALLEL if threads else SERIAL
        return loop(prod(outer) * strips, strip, "strip", kind)

    def square(self, outer: Sequence[Expr], first: Expr, column: Expr) -> tirx.Stmt:
        """Read a square, exchange its parts, store it."""
        side, loads = self.side, self.loads
        lane = tirx.Ramp(const(0), const(1), side)
        turned = loads[self.turned]

        def places(at: Expr, end: Expr) -> list[Expr]:
            indices = [*outer]
            indices.insert(self.across, at)
            return [*indices, end]

        dtype = str(turned.source.dtype)
        rows = vectors("read", side, side, dtype=dtype)
        buffers, parts = [*rows], []
        for i, row in enumerate(rows):
            read = self.moved(turned.indices, self.turned + 1, places(first, column + i))
            parts.append(
                lanes(side, lambda v, row=row, r=read: store(row, _beyond(turned, r, v), v))
            )
        distance = side // 2
        while distance:
            made = vectors(f"apart{distance}_", side, side, dtype=dtype)
            for i, row in enumerate(made):
                pair = [load(rows[j], lane) for j in (i & ~distance, i | distance)]
                parts.append(store(row, tirx.Shuffle(pair, _order(i, distance, side)), lane))
            buffers, rows, distance = [*buffers, *made], made, distance // 2
        for j, row in enumerate(rows):
            place = places(first + j, column)
            parts.append(lanes(side, lambda v, row=row, p=place: self.finish(p, row, v)))
        return within(buffers, *parts)

    def finish(self, places: Sequence[Expr], row: tirx.Buffer, lane: Expr) -> tirx.Stmt:
        """Store one number of the result, from its number of the transposed load."""
        here = [*places[:-1], places[-1] + lane]
        loads = self.loads

        def read(node: TensorLoad) -> Expr:
            number = next(i for i, one in enumerate(loads) if one.same_as(node))
            if number == self.turned:
                return load(row, lane)
            return load(node.source, *self.moved(node.indices, number + 1, here))

        value = rewrite(self.body.value, (TensorLoad, read))
        return store(self.body.buffer, value, *self.moved(self.body.indices, 0, here))

    def moved(
        self, indices: Sequence[Expr], access: int, places: Sequence[Expr]
    ) -> tuple[Expr, ...]:
        """Indices at some places of the axes: the last one exceeds its extent."""
        if not indices:
            return ()  # a scalar
        *before, last = (
            rewrite(index, (tirx.Var, lambda var: tirx.const(0, var.ty.dtype))) for index in indices
        )
        for axis, place in zip(self.axes, places, strict=True):
            last = last + place * (axis.strides[access] or 0)
        return (*before, last)


def _start(tile: Expr, width: int, extent: int) -> Expr:
    """Where a tile starts; the last one ends with the axis."""
    first = tile * width
    return tirx.min(first, const(extent - width)) if extent % width else first


def _beyond(node: TensorLoad, indices: Sequence[Expr], lane: Expr) -> Expr:
    *before, last = indices
    return load(node.source, *before, last + lane)


def _order(row: int, distance: int, side: int) -> list[int]:
    """Lanes of a row and its partner: parts of ``distance`` lanes are exchanged between them.

    >>> _order(0, 1, 4), _order(1, 1, 4)
    ([0, 4, 2, 6], [1, 5, 3, 7])
    """
    own = 0 if row & distance == 0 else distance
    return [lane + own + (side - distance if lane & distance else 0) for lane in range(side)]
