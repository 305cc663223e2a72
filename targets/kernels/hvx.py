"""Words for HVX: vectors of 128 bytes, which LLVM has as 32 words, and its instructions on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr

from .loops import SERIAL, Index, const, load, store

LANES = 32
"""Words of a vector."""

VECTOR = 4 * LANES
"""Its bytes."""

KIND = f"int32x{LANES}"


def hvx(name: str, *operands: Expr, kind: str = KIND) -> Expr:
    """What an instruction makes of vectors; ``name`` is LLVM's."""
    return tirx.call_llvm_pure_intrin(kind, f"llvm.hexagon.V6.{name}.128B", *operands)


def low(pair: Expr) -> Expr:
    """The first vector of a pair."""
    return hvx("lo", pair)


def high(pair: Expr) -> Expr:
    """The second vector of a pair."""
    return hvx("hi", pair)


def pair(name: str, *operands: Expr) -> Expr:
    """What an instruction makes that has two vectors as its result."""
    return hvx(name, *operands, kind=f"int32x{2 * LANES}")


def whole(vector: tirx.Buffer) -> Expr:
    """A buffer of one vector of words."""
    return load(vector, tirx.Ramp(const(0), const(1), LANES))


def keep(vector: tirx.Buffer, value: Expr) -> tirx.Stmt:
    """Store such a buffer."""
    return store(vector, value, tirx.Ramp(const(0), const(1), LANES))


def bytes_at(buffer: tirx.Buffer, *place: Index) -> Expr:
    """A vector of bytes from a place on, as words; it may go beyond the last index."""
    *outer, first = place
    ramp = tirx.Ramp(const(first), const(1), VECTOR)
    return tirx.reinterpret(KIND, load(buffer, *outer, ramp))


def keep_bytes(buffer: tirx.Buffer, value: Expr, *place: Index) -> tirx.Stmt:
    """Store words as bytes, from a place on."""
    *outer, first = place
    taken = tirx.reinterpret(f"{buffer.dtype}x{VECTOR}", value)
    return store(buffer, taken, *outer, tirx.Ramp(const(first), const(1), VECTOR))


def hidden_loop(count: int, body: Callable[[Expr], tirx.Stmt], name: str) -> tirx.Stmt:
    """A loop whose number of passes LLVM does not see: written out, it would spill.

    It counts in registers of 32 bits, so that it becomes a loop of the hardware, whose passes
    overlap.
    """
    var = tirx.Var(name, "int32")
    passes = tirx.call_llvm_pure_intrin("int32", "llvm.hexagon.A2.sxth", word(count))
    return tirx.For(var, word(0), passes, SERIAL, body(var))


def moved(value: Expr) -> Expr:
    """The same vector, in a loop of which LLVM makes no call of ``memcpy`` or ``memset``."""
    return hvx("vassign", value)


def again(words: Sequence[Expr]) -> Expr:
    """A vector in which some int32, 1, 2, 4 .. of them, stand one time after the other.

    LLVM shuffles bytes with a sign wrongly there, so that it gets no shuffle to see.
    """
    made = every(0)
    for one in reversed(words):
        made = hvx("vinsertwr", hvx("vror", made, word(VECTOR - 4)), one)
    size = 4 * len(words)
    while size < VECTOR:
        made, size = hvx("vor", made, hvx("vror", made, word(VECTOR - size))), 2 * size
    return made


def word(value: int) -> Expr:
    """An int32."""
    return tirx.const(value, "int32")


def every(value: int) -> Expr:
    """The same 32 bits in all words; those of ``value - 2**32`` where that is an int32."""
    return tirx.Broadcast(word(value - (1 << 32) if value >= 1 << 31 else value), LANES)


def every_byte(value: int) -> Expr:
    """The same number of 8 bits in all bytes."""
    return every((value & 0xFF) * 0x01010101)


def dense_axes(buffer: tirx.Buffer) -> int:
    """How many of the last axes lie behind each other without gaps."""
    shape, strides = [int(e) for e in buffer.shape], [int(s) for s in buffer.strides]
    if not strides:
        return len(shape)
    step, count = 1, 0
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            break
        step, count = step * extent, count + 1
    return count
