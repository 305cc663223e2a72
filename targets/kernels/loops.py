"""Helpers for writing TIR loop nests by hand.

TVM's schedule primitives cannot express "this tile has fewer taps than that one", which makes
padding free.  Therefore the templates write their loops with these helpers::

    loop(4, lambda i: store(out, load(a, i) + 1.0, i))     # for i in range(4): out[i] = a[i] + 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from tvm import tirx
from tvm.ir import Expr

Index: TypeAlias = int | Expr
Body = Callable[[Expr], tirx.Stmt]

CACHE_LINE = 64
"""Bytes that the processor loads from memory at once."""

SERIAL, PARALLEL, VECTORIZED, UNROLLED = 0, 1, 2, 3


def const(value: Index) -> Expr:
    """An index expression of 64 bits, like Relax shapes."""
    return tirx.const(value, "int64") if isinstance(value, int) else value


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")


def as_type(value: Expr, dtype: str) -> Expr:
    """A number, or a vector of them, in another type."""
    scalar, _, width = str(value.ty.dtype).partition("x")
    return value if scalar == dtype else value.astype(f"{dtype}x{width}" if width else dtype)


def block(*statements: tirx.Stmt) -> tirx.Stmt:
    """Statements in sequence."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def span(start: Index, extent: Index, body: Body, name: str = "i", kind: int = SERIAL) -> tirx.Stmt:
    """``for name in range(start, start + extent)``; a single iteration needs no loop.

    The loop variable counts from zero, because TVM 0.27 miscompiles some nests of other loops.
    """
    if isinstance(extent, int) and extent == 1:
        return body(const(start))
    var = tirx.Var(name, "int64")
    value = var if isinstance(start, int) and start == 0 else const(start) + var
    return tirx.For(var, const(0), const(extent), kind, body(value))


def loop(extent: Index, body: Body, name: str = "i", kind: int = SERIAL) -> tirx.Stmt:
    """``for name in range(extent)``."""
    return span(0, extent, body, name, kind)


def fenced_span(start: Index, extent: Index, body: Body, name: str = "i") -> tirx.Stmt:
    """A loop whose number of iterations is hidden from LLVM, even if it is one.

    This keeps its body a basic block of its own: LLVM neither unrolls the loop nor mixes it with
    the next one, and values that several loops read occupy no registers in between.
    """
    fence, passes = "llvm.arithmetic.fence.f32", const(extent).astype("float32")
    hidden = tirx.call_llvm_pure_intrin("float32", fence, passes).astype("int64")
    var = tirx.Var(name, "int64")
    return tirx.For(var, const(0), hidden, SERIAL, body(const(start) + var))


def unravelled(index: Expr, shape: Sequence[int]) -> list[Expr]:
    """The indices of the element with a flat index in an array of this shape."""
    indices: list[Expr] = []
    for size in reversed(shape):
        indices.insert(0, const(0) if size == 1 else index % size)
        index = index if size == 1 else index // size
    return indices


def lanes(count: int, body: Body) -> tirx.Stmt:
    """One vector operation of ``count`` lanes."""
    return loop(count, body, "lane", VECTORIZED)


def store(buffer: tirx.Buffer, value: Expr, *indices: Index) -> tirx.Stmt:
    """``buffer[indices] = value``."""
    return tirx.BufferStore(buffer, value, [const(i) for i in indices])


def load(buffer: tirx.Buffer, *indices: Index) -> Expr:
    """``buffer[indices]``."""
    return tirx.BufferLoad(buffer, [const(i) for i in indices])


def line_numbers(buffer: tirx.Buffer) -> int:
    """Elements of a cache line."""
    return CACHE_LINE // np.dtype(str(buffer.dtype)).itemsize


def ask_ahead(
    buffer: tirx.Buffer,
    place: Sequence[Index],
    count: int,
    turn: tuple[Expr, int],
    *,
    nearest: bool,
) -> list[tirx.Stmt]:
    """Prefetch one turn's share of ``count`` elements from ``place`` on, which may not exist.

    ``turn``: its index and the number of turns. ``nearest`` selects the nearest or second cache.
    """
    (number, turns), line, (*outer, first) = turn, line_numbers(buffer), place
    each = -(-count // (line * turns))
    read, near, data = (tirx.const(value, "int32") for value in (0, 3 if nearest else 2, 1))

    def ask(j: int) -> tirx.Stmt:
        address = tirx.address_of(load(buffer, *outer, first + (number * each + j) * line))
        call = tirx.call_llvm_intrin("void", "llvm.prefetch", address, read, near, data)
        return tirx.Evaluate(call)

    return [ask(j) for j in range(each)]


STACK_BYTES = 1020
"""The largest buffer that TVM keeps on the stack; larger ones are heap memory."""


def scratch(name: str, *shape: int, scope: str = "global", dtype: str = "float32") -> tirx.Buffer:
    """A temporary buffer.

    For a CPU, TVM puts buffers of scope ``"global"`` with less than 1,024 bytes on the stack,
    where LLVM can promote them to registers, and all others, even ``"local"`` ones, on the heap.
    """
    return tirx.decl_buffer([const(s) for s in shape], dtype, name, scope=scope)


def vectors(
    name: str, count: int, width: int, scope: str = "global", dtype: str = "float32"
) -> list[tirx.Buffer]:
    """Temporary vectors in separate buffers, so that each may become a register independently."""
    return [scratch(f"{name}{i}", width, scope=scope, dtype=dtype) for i in range(count)]


def within(buffers: Sequence[tirx.Buffer], *statements: tirx.Stmt) -> tirx.Stmt:
    """Statements in the scope of temporary buffers."""
    return block(*(tirx.AllocBuffer(buffer) for buffer in buffers), *statements)


_WRITTEN_OUT = 4  # a larger number makes code larger and not faster


def unrolled(start: int, extent: int, body: Body, name: str = "i") -> tirx.Stmt:
    """``for name in range(start, start + extent)`` with a few iterations unrolled at a time."""
    passes, rest = divmod(extent, _WRITTEN_OUT)

    def few(first: Expr, count: int) -> tirx.Stmt:
        return loop(count, lambda i: body(first + i), name, UNROLLED)

    parts = [span(0, passes, lambda i: few(start + i * _WRITTEN_OUT, _WRITTEN_OUT), name)]
    if rest:
        parts.append(few(const(start + passes * _WRITTEN_OUT), rest))
    return block(*(parts if passes else parts[1:]))


def unroll(numbers: range, body: Body) -> tirx.Stmt:
    """``body`` for each of ``numbers``, in a loop that is unrolled last."""
    return span(numbers.start, len(numbers), body, "i", UNROLLED)


def neighbours(numbers: Sequence[int]) -> list[range]:
    """Ascending numbers as ranges of consecutive ones.

    >>> neighbours([0, 1, 2, 4])
    [range(0, 3), range(4, 5)]
    """
    cuts = [0, *(i for i in range(1, len(numbers)) if numbers[i] > numbers[i - 1] + 1)]
    ends = [*cuts[1:], len(numbers)]
    return [range(numbers[a], numbers[b - 1] + 1) for a, b in zip(cuts, ends, strict=True) if a < b]


def balanced(total: int, largest: int) -> list[int]:
    """Cut ``total`` into the fewest parts of at most ``largest``, nearly equal, larger ones first.

    >>> balanced(14, 6)
    [5, 5, 4]
    """
    count = -(-total // largest)
    size, extra = divmod(total, count)
    return [size + 1] * extra + [size] * (count - extra)


Work = TypeVar("Work")


@dataclass(frozen=True)
class TileRun(Generic[Work]):
    """``count`` tiles of ``width`` pixels with the same work, from pixel ``start`` of a row."""

    start: int
    width: int
    count: int
    work: Work


def tile_runs(total: int, largest: int, work: Callable[[int, int], Work]) -> list[TileRun[Work]]:
    """Cut a row of ``total`` pixels into runs of tiles; ``work(start, width)`` is a tile's work.

    Short runs come first: after a loop over other tiles, LLVM keeps none of their accumulators in
    registers (measured: 55 instead of 105 GFLOP/s).

    >>> [(run.start, run.count) for run in tile_runs(14, 5, lambda start, width: "same")]
    [(10, 1), (0, 2)]
    """
    runs: list[TileRun[Work]] = []
    start = 0
    for width in balanced(total, largest):
        own = work(start, width)
        last = runs[-1] if runs else None
        if last is not None and (last.width, last.work) == (width, own):
            runs[-1] = TileRun(last.start, width, last.count + 1, own)
        else:
            runs.append(TileRun(start, width, 1, own))
        start += width
    return sorted(runs, key=lambda run: run.count)
