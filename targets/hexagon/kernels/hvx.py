"""Helpers for HVX: vectors of 128 bytes, which are 32 words in LLVM, and their instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.targets.kernels.loops import SERIAL, Index, const, load, store

LANES = 32
"""Words of a vector."""

VECTOR = 4 * LANES
"""Bytes of a vector."""

KIND = f"int32x{LANES}"


def hvx(name: str, *operands: Expr, kind: str = KIND) -> Expr:
    """The result of an instruction on vectors; ``name`` is LLVM's."""
    return tirx.call_llvm_pure_intrin(kind, f"llvm.hexagon.V6.{name}.128B", *operands)


def low(pair: Expr) -> Expr:
    """The first vector of a pair."""
    return hvx("lo", pair)


def high(pair: Expr) -> Expr:
    """The second vector of a pair."""
    return hvx("hi", pair)


def pair(name: str, *operands: Expr) -> Expr:
    """The result of an instruction that returns two vectors."""
    return hvx(name, *operands, kind=f"int32x{2 * LANES}")


def whole(vector: tirx.Buffer) -> Expr:
    """The value of a buffer of one vector of words."""
    return load(vector, tirx.Ramp(const(0), const(1), LANES))


def keep(vector: tirx.Buffer, value: Expr) -> tirx.Stmt:
    """Store into a buffer of one vector of words."""
    return store(vector, value, tirx.Ramp(const(0), const(1), LANES))


def bytes_at(buffer: tirx.Buffer, *place: Index) -> Expr:
    """A vector of bytes from ``place`` on, as words; it may reach beyond the last index."""
    *outer, first = place
    ramp = tirx.Ramp(const(first), const(1), VECTOR)
    return tirx.reinterpret(KIND, load(buffer, *outer, ramp))


def keep_bytes(buffer: tirx.Buffer, value: Expr, *place: Index) -> tirx.Stmt:
    """Store words as bytes, from ``place`` on."""
    *outer, first = place
    taken = tirx.reinterpret(f"{buffer.dtype}x{VECTOR}", value)
    return store(buffer, taken, *outer, tirx.Ramp(const(first), const(1), VECTOR))


def hidden_loop(count: int, body: Callable[[Expr], tirx.Stmt], name: str) -> tirx.Stmt:
    """A loop whose number of iterations is hidden from LLVM, which would unroll it and spill.

    It counts in registers of 32 bits, so that it becomes a hardware loop, whose iterations
    overlap.
    """
    var = tirx.Var(name, "int32")
    passes = tirx.call_llvm_pure_intrin("int32", "llvm.hexagon.A2.sxth", word(count))
    return tirx.For(var, word(0), passes, SERIAL, body(var))


def moved(value: Expr) -> Expr:
    """The same vector, in a form that LLVM does not turn into ``memcpy`` or ``memset``."""
    return hvx("vassign", value)


def again(words: Sequence[Expr]) -> Expr:
    """A vector that repeats 1, 2, 4 .. int32.

    LLVM shuffles signed bytes wrongly in this case, so it must not see a shuffle.
    """
    vector = every(0)
    for one in reversed(words):
        vector = hvx("vinsertwr", hvx("vror", vector, word(VECTOR - 4)), one)
    size = 4 * len(words)
    while size < VECTOR:
        vector, size = hvx("vor", vector, hvx("vror", vector, word(VECTOR - size))), 2 * size
    return vector


def word(value: int) -> Expr:
    """An int32."""
    return tirx.const(value, "int32")


def every(value: int) -> Expr:
    """The same 32 bits in all words; ``value`` may be given as unsigned."""
    return tirx.Broadcast(word(value - (1 << 32) if value >= 1 << 31 else value), LANES)


def every_byte(value: int) -> Expr:
    """The same 8-bit number in all bytes."""
    return every((value & 0xFF) * 0x01010101)


def dense_axes(buffer: tirx.Buffer) -> int:
    """How many of the last axes are contiguous."""
    shape, strides = [int(e) for e in buffer.shape], [int(s) for s in buffer.strides]
    if not strides:
        return len(shape)
    step, count = 1, 0
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            break
        step, count = step * extent, count + 1
    return count
