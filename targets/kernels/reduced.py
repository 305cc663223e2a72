"""Write a reduction of contiguous rows, of any length and of several axes.

    for row, k: out[row] = max(out[row], x[row, k])           # 81 elements

    for row: for lane: best[lane] = -inf
             for i: for lane: best[lane] = max(best[lane], x[row, 16 * i + lane])    # 5 vectors
             best[0] = max(best[0], x[row, 80])
             best[0:8] = max(best[0:8], best[8:16]), .. best[0:4], best[0:2], best[0]
             out[row] = best[0]

TVM's rfactor needs a vector that divides the axis, it joins partial results one by one, and TVM
cannot vectorize the index (64 * i + lane) % 3136 // 56 of merged axes. Here the last index alone
moves: it may exceed its extent, because memory is contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.rewriting import rewrite

from .flat import with_nest
from .loop_axes import Axis
from .loops import PARALLEL, SERIAL, VECTORIZED, const, load, loop, scratch, within

_COMBINES = (tirx.Max, tirx.Min, tirx.Add, tirx.Mul)
_CHAINS = 4
"""Vectors of partial results, so that one does not wait for the one before."""


def reduced_rows(
    func: tirx.PrimFunc,
    statement: Any,  # its block
    axes: Sequence[Axis],  # its merged loops
    lanes: int,  # of a vector of 32-bit numbers
    threads: bool,  # whether cores share the rows
) -> tirx.PrimFunc | None:
    """The function row by row, if its only block reduces the innermost axis; None for others."""
    *outer, last = axes
    update, start = statement.body, statement.init
    if last.spatial or not all(axis.spatial for axis in outer) or last.extent < 2 * lanes:
        return None
    if last.pinned or last.strides[0] != 0 or any(step not in (0, 1) for step in last.strides):
        return None
    if not isinstance(update, tirx.BufferStore) or not isinstance(start, tirx.BufferStore):
        return None
    value = _value(update)
    regions = (*statement.reads, *statement.writes)
    if value is None or any(len(region.source.strides) for region in regions):
        return None
    chains = next(c for c in (_CHAINS, _CHAINS // 2, 1) if last.extent >= 2 * c * lanes)
    rows = _Rows(statement, value, last.extent, lanes * chains)
    kind = PARALLEL if threads else SERIAL
    return with_nest(func, rows.write(kind))


def _value(update: tirx.BufferStore) -> Expr | None:
    """The operand that is combined with the result so far."""
    best = update.value
    if not isinstance(best, _COMBINES):
        return None
    for own, other in ((best.a, best.b), (best.b, best.a)):
        is_own = isinstance(own, TensorLoad) and own.source.same_as(update.buffer)
        if is_own and tvm_ffi.structural_equal(own.indices, update.indices):
            return other
    return None


class _Rows:
    """A reduction with ``width`` partial results, a power of two."""

    def __init__(self, statement: Any, value: Expr, extent: int, width: int) -> None:
        self.update, self.start = statement.body, statement.init
        self.value, self.extent, self.width = value, extent, width
        axes = statement.iter_vars
        self.rows = [a for a in axes if a.iter_type == tirx.IterVar.DataPar]
        self.reduced = [a for a in axes if a.iter_type != tirx.IterVar.DataPar]
        dtype = str(self.update.buffer.dtype)
        fitting = max(1, 1020 * 8 // DataType(dtype).bits)
        while self.width > fitting:
            self.width //= 2
        self.best = scratch("best", self.width, dtype=dtype)

    def write(self, kind: int) -> tirx.Stmt:
        """All rows."""
        extents = [int(axis.dom.extent) for axis in self.rows]

        def row(number: Expr) -> tirx.Stmt:
            places: list[Expr] = []
            rest = number
            for extent in reversed(extents):
                places.insert(0, const(0) if extent == 1 else rest % extent)
                rest = rest if extent == 1 else rest // extent
            return self.row(places)

        return loop(prod(extents), row, "row", kind)

    def row(self, places: Sequence[Expr]) -> tirx.Stmt:
        """One element of the result."""
        passes, rest = divmod(self.extent, self.width)
        width, parts = self.width, [self.lanes(self.width, lambda lane: self.start.value)]

        def whole(i: Expr) -> tirx.Stmt:
            return self.combined(width, lambda lane: self.read(places, i * width + lane))

        parts.append(loop(passes, whole, "pass"))
        first, part = passes * width, width
        while rest:
            part //= 2
            if rest >= part:
                begin = const(first)
                parts.append(
                    self.combined(part, lambda lane, begin=begin: self.read(places, begin + lane))
                )
                first, rest = first + part, rest - part
        while width > 1:
            width //= 2
            parts.append(
                self.combined(width, lambda lane, half=width: load(self.best, lane + half))
            )
        indices = [self.placed(index, places, const(0)) for index in self.update.indices]
        parts.append(tirx.BufferStore(self.update.buffer, load(self.best, 0), indices))
        return within([self.best], *parts)

    def lanes(self, width: int, value: Any) -> tirx.Stmt:
        """Store into the first partial results."""

        def one(lane: Expr) -> tirx.Stmt:
            return tirx.BufferStore(self.best, value(lane), [lane])

        return loop(width, one, "lane", VECTORIZED)

    def combined(self, width: int, value: Any) -> tirx.Stmt:
        """Combine the first partial results with values."""
        combine = type(self.update.value)
        return self.lanes(width, lambda lane: combine(load(self.best, lane), value(lane)))

    def read(self, places: Sequence[Expr], offset: Expr) -> Expr:
        """The value at an offset from the beginning of a row."""
        return self.placed(self.value, places, offset)

    def placed(self, node: Expr, places: Sequence[Expr], offset: Expr) -> Expr:
        """An expression of a row, with the offset in the last axis that is reduced."""
        long = [i for i, axis in enumerate(self.reduced) if int(axis.dom.extent) > 1]

        def value(var: tirx.Var) -> Expr:
            for axis, place in zip(self.rows, places, strict=True):
                if var.same_as(axis.var):
                    return place
            for i, axis in enumerate(self.reduced):
                if var.same_as(axis.var):
                    return offset if i == long[-1] else tirx.const(0, var.ty.dtype)
            return var

        return rewrite(node, (tirx.Var, value))
