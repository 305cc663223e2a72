"""A few words for writing TIR loop nests by hand.

TVM's schedule primitives cannot express "this tile has fewer taps than that one", which is what
makes padding free.  The templates therefore write their loops out with these helpers::

    loop(4, lambda i: store(out, load(a, i) + 1.0, i))     # for i in range(4): out[i] = a[i] + 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tvm import tirx
from tvm.ir import Expr

Index: TypeAlias = int | Expr
Body = Callable[[Expr], tirx.Stmt]

CACHE_LINE = 64
"""Bytes that the processor reads from memory at once."""

SERIAL, PARALLEL, VECTORIZED, UNROLLED = 0, 1, 2, 3


def const(value: Index) -> Expr:
    """An index expression (64-bit, as Relax shapes are)."""
    return tirx.const(value, "int64") if isinstance(value, int) else value


def f32(value: float) -> Expr:
    """A float32 constant."""
    return tirx.const(value, "float32")


def block(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Statements one after the other."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def span(start: Index, extent: Index, body: Body, name: str = "i", kind: int = SERIAL) -> tirx.Stmt:
    """``for name in range(start, start + extent)``; a loop of one pass leaves no loop behind.

    The loop variable counts from zero: TVM 0.27 miscompiles some nests of loops that do not.
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
    """A loop whose number of passes LLVM cannot see, not even of one.

    So its body is a block of its own: LLVM neither writes the passes out nor mixes them with those
    of the next loop, and what several of them read takes no registers from one to the other.
    """
    fence, passes = "llvm.arithmetic.fence.f32", const(extent).astype("float32")
    hidden = tirx.call_llvm_pure_intrin("float32", fence, passes).astype("int64")
    var = tirx.Var(name, "int64")
    return tirx.For(var, const(0), hidden, SERIAL, body(const(start) + var))


def unravelled(index: Expr, shape: Sequence[int]) -> list[Expr]:
    """Where the element of such a number stands in an array of this shape."""
    found: list[Expr] = []
    for size in reversed(shape):
        found.insert(0, index % size)
        index = index // size
    return found


def lanes(count: int, body: Body) -> tirx.Stmt:
    """One vector operation of ``count`` lanes."""
    return loop(count, body, "lane", VECTORIZED)


def store(buffer: tirx.Buffer, value: Expr, *indices: Index) -> tirx.Stmt:
    """``buffer[indices] = value``."""
    return tirx.BufferStore(buffer, value, [const(i) for i in indices])


def load(buffer: tirx.Buffer, *indices: Index) -> Expr:
    """``buffer[indices]``."""
    return tirx.BufferLoad(buffer, [const(i) for i in indices])


def prefetch(buffer: tirx.Buffer, *indices: Index) -> tirx.Stmt:
    """Ask for the cache line of ``buffer[indices]``, which need not exist."""
    read, second_level, data = (tirx.const(value, "int32") for value in (0, 2, 1))
    address = tirx.address_of(load(buffer, *indices))
    return tirx.Evaluate(
        tirx.call_llvm_intrin("void", "llvm.prefetch", address, read, second_level, data)
    )


STACK_BYTES = 1020
"""The most that TVM leaves on the stack of one buffer; larger ones are heap memory."""


def scratch(name: str, *shape: int, scope: str = "global", dtype: str = "float32") -> tirx.Buffer:
    """A temporary buffer.

    For a CPU, TVM puts buffers of scope ``"global"`` and less than 1,024 bytes on the stack, where
    LLVM can make registers of them, and all others on the heap, ``"local"`` ones included.
    """
    return tirx.decl_buffer([const(s) for s in shape], dtype, name, scope=scope)


def vectors(
    name: str, count: int, width: int, scope: str = "global", dtype: str = "float32"
) -> list[tirx.Buffer]:
    """Temporary vectors, a buffer for each: whatever becomes of one, the others are registers."""
    return [scratch(f"{name}{i}", width, scope=scope, dtype=dtype) for i in range(count)]


def within(buffers: Sequence[tirx.Buffer], statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """Statements that may use temporary buffers."""
    return block([*(tirx.AllocBuffer(buffer) for buffer in buffers), *statements])


_WRITTEN_OUT = 4  # more makes larger code and not faster


def unrolled(start: int, extent: int, body: Body, name: str = "i") -> tirx.Stmt:
    """``for name in range(start, start + extent)`` with a few passes written out at a time."""
    passes, rest = divmod(extent, _WRITTEN_OUT)

    def few(first: Expr, count: int) -> tirx.Stmt:
        return loop(count, lambda i: body(first + i), name, UNROLLED)

    parts = [span(0, passes, lambda i: few(start + i * _WRITTEN_OUT, _WRITTEN_OUT), name)]
    if rest:
        parts.append(few(const(start + passes * _WRITTEN_OUT), rest))
    return block(parts if passes else parts[1:])


class Accumulators:
    """The registers of one tile: ``pixels`` x ``blocks`` vectors of sums."""

    def __init__(
        self,
        pixels: int,
        blocks: int,
        count: int,
        scope: str = "global",
        dtype: str = "float32",
    ) -> None:
        self.blocks, self.count = blocks, count
        self.buffers = vectors("acc", pixels * blocks, count, scope, dtype)
        # Outer loop over the longer side: the operand of the shorter side stays in few registers.
        self._cells = [(p, o) for p in range(pixels) for o in range(blocks)]
        if blocks > pixels:
            self._cells = [(p, o) for o in range(blocks) for p in range(pixels)]

    def cells(self, pixels: Sequence[int], blocks: range | None = None) -> list[tuple[int, int]]:
        """Those of some pixels and output blocks, by default of all blocks, in good order."""
        return [(p, o) for p, o in self._cells if p in pixels and (blocks is None or o in blocks)]

    def add(self, p: int, o: int, lane: Expr, value: Expr) -> tirx.Stmt:
        """Add to the sum of one lane of a cell."""
        return self.set(p, o, lane, self.value(p, o, lane) + value)

    def add_products(
        self,
        pixels: Sequence[int],
        left: Callable[[int, Expr], Expr],
        right: Callable[[Expr, int, Expr], Expr],
        extent: int,
        by_element: bool,
        blocks: range | None = None,
    ) -> tirx.Stmt:
        """Add ``left(pixel, i) * right(i, block, lane)`` for all ``i`` below ``extent``.

        Args:
            pixels: whose sums they are.
            left: of neighbours in memory.
            right: the vectors that they are multiplied with.
            extent: how many.
            by_element: read vectors of what is left and multiply by an element at a time.
            blocks: to whose sums they are added; by default all.
        """
        cells = self.cells(pixels, blocks)
        vectors = extent // self.count if by_element else 0

        def products(i: Expr) -> tirx.Stmt:
            one = {p: left(p, i) for p in pixels}
            return block(
                [
                    lanes(
                        self.count,
                        lambda v, p=p, o=o: self.add(p, o, v, one[p] * right(i, o, v)),
                    )
                    for p, o in cells
                ]
            )

        def vector(first: Expr) -> tirx.Stmt:
            number, lane = range(self.count), tirx.Ramp(const(0), const(1), self.count)
            read = {p: left(p, tirx.Ramp(first, const(1), self.count)) for p in pixels}
            one = {
                (p, i): tirx.Shuffle([read[p]], [i] * self.count) for p in pixels for i in number
            }
            return block(
                [
                    self.add(p, o, lane, one[p, i] * right(first + i, o, lane))
                    for i in number
                    for p, o in cells
                ]
            )

        parts = [loop(vectors, lambda i: vector(i * self.count), "ii")] if vectors else []
        if rest := extent - vectors * self.count:
            parts.append(unrolled(extent - rest, rest, products, "ii"))
        return block(parts)

    def value(self, p: int, o: int, lane: Expr) -> Expr:
        """The sum of one lane of a cell."""
        return load(self.buffers[p * self.blocks + o], lane)

    def set(self, p: int, o: int, lane: Expr, value: Expr) -> tirx.Stmt:
        """Store the sum of one lane of a cell."""
        return store(self.buffers[p * self.blocks + o], value, lane)

    def each(
        self,
        statement: Callable[[int, int, Expr], tirx.Stmt],
        pixels: Sequence[int] | None = None,
    ) -> list[tirx.Stmt]:
        """``statement(pixel, block, lane)`` as a vector operation, for every cell of ``pixels``."""
        return [
            lanes(self.count, lambda v, p=p, o=o: statement(p, o, v))
            for p, o in self._cells
            if pixels is None or p in pixels
        ]


def balanced(total: int, largest: int) -> list[int]:
    """Cut ``total`` into the fewest parts of at most ``largest``, nearly equal, big ones first.

    >>> balanced(14, 6)
    [5, 5, 4]
    """
    count = -(-total // largest)
    size, extra = divmod(total, count)
    return [size + 1] * extra + [size] * (count - extra)


Work = TypeVar("Work")


@dataclass(frozen=True)
class TileRun(Generic[Work]):
    """``count`` tiles of ``width`` pixels from pixel ``start`` of a row that do the same work."""

    start: int
    width: int
    count: int
    work: Work


def tile_runs(total: int, largest: int, work: Callable[[int, int], Work]) -> list[TileRun[Work]]:
    """Cut a row of ``total`` pixels into runs of tiles; ``work(start, width)`` is one tile's.

    Short runs come first: behind a loop of other tiles LLVM keeps none of their accumulators in
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
