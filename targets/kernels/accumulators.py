"""The sums of a register tile, and other small buffers that LLVM promotes to registers.

acc = Accumulators(pixels=5, blocks=2, count=16)       # 10 vectors
within(acc.buffers, *acc.start(), acc.add_products(..), *acc.for_each(finish))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tvm import tirx
from tvm.ir import Expr

from .loops import (
    STACK_BYTES,
    as_type,
    balanced,
    block,
    const,
    lanes,
    load,
    loop,
    neighbours,
    scratch,
    store,
    unroll,
    unrolled,
)


@dataclass(frozen=True)
class Sum:
    """One vector of sums of a register tile: its pixel, output block and place in a buffer."""

    pixel: Expr
    block: Expr
    buffer: tirx.Buffer
    row: Expr
    column: Expr

    def value(self, lane: Expr) -> Expr:
        """The sum of one lane; with a ramp, of several."""
        return load(self.buffer, self.row, self.column, lane)

    def set(self, lane: Expr, value: Expr) -> tirx.Stmt:
        """Store the sum of one lane; with a ramp, of several."""
        return store(self.buffer, value, self.row, self.column, lane)


class Accumulators:
    """The accumulators of one tile: ``pixels`` x ``blocks`` vectors of sums.

    Accumulators live in small stack buffers indexed by constants, which LLVM promotes to registers.
    Operations on them are loops that are unrolled last: earlier, every TIR pass would visit each
    unrolled statement.
    """

    def __init__(
        self,
        pixels: int,
        blocks: int,
        count: int,
        scope: str = "global",
        dtype: str = "float32",
    ) -> None:
        self.count = count
        self.dtype = dtype
        self._shape = pixels, blocks
        # The outer loop is over the longer side, so that the shorter side's operands stay in
        # registers.
        self._by_block = blocks > pixels
        outer, inner = sorted(self._shape, reverse=True)
        most = max(1, STACK_BYTES // (inner * count * 4))
        parts = balanced(outer, most)
        self._starts = list(accumulate(parts[:-1], initial=0))
        self.buffers = [
            scratch(f"acc{i}", size, inner, count, scope=scope, dtype=dtype)
            for i, size in enumerate(parts)
        ]

    def like(self, count: int, dtype: str) -> Accumulators:
        """Sums of another type for the same tile, in buffers that are cut in the same way."""
        other = copy.copy(self)
        other.count, other.dtype = count, dtype
        other.buffers = [
            scratch(f"{own.name}_{dtype}", *map(int, own.shape[:2]), count, dtype=dtype)
            for own in self.buffers
        ]
        return other

    def beside(self, one: Sum, other: Accumulators) -> Sum:
        """The sum in ``other``, made by `like`, at the place that ``one`` has here."""
        number = next(i for i, b in enumerate(self.buffers) if b.same_as(one.buffer))
        return replace(one, buffer=other.buffers[number])

    def sums(
        self,
        statement: Callable[[Sum], tirx.Stmt],
        pixels: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> list[tirx.Stmt]:
        """``statement`` for the sums of the given pixels and output blocks, by default of all."""
        rows, columns = (
            range(size) if wanted is None else wanted
            for size, wanted in zip(self._shape, (pixels, blocks), strict=True)
        )
        if self._by_block:
            rows, columns = columns, rows

        def one(row: Expr, column: Expr, start: int, buffer: tirx.Buffer) -> tirx.Stmt:
            place = (column, row) if self._by_block else (row, column)
            return statement(Sum(*place, buffer, row - start, column))

        def some(inside: range, beside: range, start: int, buffer: tirx.Buffer) -> tirx.Stmt:
            return unroll(inside, lambda r: unroll(beside, lambda c: one(r, c, start, buffer)))

        return [
            some(inside, beside, start, buffer)
            for start, buffer in zip(self._starts, self.buffers, strict=True)
            for inside in neighbours([r for r in rows if 0 <= r - start < int(buffer.shape[0])])
            for beside in neighbours(columns)
        ]

    def add_products(
        self,
        pixels: Sequence[int],  # pixels whose sums are updated
        left: Callable[[Expr, Expr], Expr],  # scalars; neighbouring ``i`` are neighbours in memory
        # the vectors by which the scalars are multiplied
        right: Callable[[Expr, Expr, Expr], Expr],
        extent: int,  # number of products for each sum
        # load vectors of ``left`` and multiply by one of their elements at a time
        by_element: bool,
        blocks: range | None = None,  # output blocks whose sums are updated; by default all
    ) -> tirx.Stmt:
        """Add ``left(pixel, i) * right(i, block, lane)`` for all ``i`` below ``extent``."""
        vectors = extent // self.count if by_element else 0

        def products(i: Expr) -> tirx.Stmt:
            def product(p: Expr, o: Expr, v: Expr) -> Expr:
                return as_type(left(p, i), self.dtype) * as_type(right(i, o, v), self.dtype)

            return block(*self.add(product, pixels, blocks))

        def of_vector(first: Expr, element: int) -> Callable[[Sum], tirx.Stmt]:
            lane = tirx.Ramp(const(0), const(1), self.count)

            def add(one: Sum) -> tirx.Stmt:
                read = left(one.pixel, tirx.Ramp(first, const(1), self.count))
                factor = tirx.Shuffle([as_type(read, self.dtype)], [element] * self.count)
                vector = as_type(right(first + element, one.block, lane), self.dtype)
                return one.set(lane, one.value(lane) + factor * vector)

            return add

        def vector(first: Expr) -> tirx.Stmt:
            each = (self.sums(of_vector(first, i), pixels, blocks) for i in range(self.count))
            return block(*(statement for statements in each for statement in statements))

        parts = [loop(vectors, lambda i: vector(i * self.count), "ii")] if vectors else []
        if rest := extent - vectors * self.count:
            parts.append(unrolled(extent - rest, rest, products, "ii"))
        return block(*parts)

    def for_each(
        self,
        statement: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt],
        pixels: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> list[tirx.Stmt]:
        """``statement(pixel, block, lane, sum)`` as a vector operation, for every sum."""

        def vector(one: Sum) -> tirx.Stmt:
            return lanes(self.count, lambda v: statement(one.pixel, one.block, v, one.value(v)))

        return self.sums(vector, pixels, blocks)

    def written_out(
        self, statement: Callable[[Expr, Expr, Expr, Expr], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """As `for_each`, but without loops, for passes that read neighbouring statements."""
        pixels, blocks = map(range, self._shape)
        return [s for p in pixels for o in blocks for s in self.for_each(statement, [p], [o])]

    def start(self, value: Callable[[Expr, Expr, Expr], Expr] | None = None) -> list[tirx.Stmt]:
        """Initialise every sum to ``value(pixel, block, lane)``, or to 0."""
        zero = tirx.const(0, self.dtype)
        begin = value or (lambda *_: zero)
        return self.sums(
            lambda one: lanes(self.count, lambda v: one.set(v, begin(one.pixel, one.block, v)))
        )

    def add(
        self,
        value: Callable[[Expr, Expr, Expr], Expr],
        pixels: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> list[tirx.Stmt]:
        """Add ``value(pixel, block, lane)`` to the sums of the given pixels and output blocks."""

        def increase(one: Sum, v: Expr) -> tirx.Stmt:
            return one.set(v, one.value(v) + value(one.pixel, one.block, v))

        return self.sums(lambda one: lanes(self.count, lambda v: increase(one, v)), pixels, blocks)


class Square:
    """Vectors in rows and columns, in parts that fit the stack; their loops are unrolled last."""

    def __init__(
        self, name: str, rows: int, columns: int, count: int, dtype: str = "float32"
    ) -> None:
        parts = balanced(rows, max(1, STACK_BYTES // (columns * count * 4)))
        self.buffers = [
            scratch(f"{name}{i}", n, columns, count, dtype=dtype) for i, n in enumerate(parts)
        ]

    def store(self, row: int, column: Expr, lane: Expr, value: Expr) -> tirx.Stmt:
        """Store one lane."""
        part, place = self._place(row)
        return store(self.buffers[part], value, place, column, lane)

    def rows(
        self, body: Callable[[Expr, Callable[[int, Expr], Expr]], tirx.Stmt]
    ) -> list[tirx.Stmt]:
        """``body(row, of)`` for every row; ``of(column, lane)`` loads an element of the row."""
        start, rows = 0, []
        for buffer in self.buffers:
            size = int(buffer.shape[0])

            def one(r: Expr, buffer: tirx.Buffer = buffer, start: int = start) -> tirx.Stmt:
                return body(r, lambda j, z: load(buffer, r - start, j, z))

            rows.append(unroll(range(start, start + size), one))
            start += size
        return rows

    def _place(self, row: int) -> tuple[int, int]:
        """The index of a row's buffer, and the row's index in it."""
        part = 0
        while row >= int(self.buffers[part].shape[0]):
            row -= int(self.buffers[part].shape[0])
            part += 1
        return part, row
