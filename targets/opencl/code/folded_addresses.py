"""Addresses that a driver's compiler folds into loads: a base in a register and a constant.

    for k:                                    for k:
      a0 += x[i*8 + k*4]     * w[k*96]          b0 = opaque(i*8 + k*4); b1 = opaque(k*96)
      a1 += x[i*8 + k*4]     * w[k*96 + 8]  ->  a0 += x[b0]     * w[b1]
      a2 += x[i*8 + k*4 + 8] * w[k*96]          a1 += x[b0]     * w[b1 + 8]
                                                a2 += x[b0 + 8] * w[b1]

LLVM knows that the low bits of ``i*8 + k*4`` are zero and writes ``+ 3`` as ``| 3``. Before LLVM 18
its x86 back end does not fold an OR into the displacement of a load, so each load first takes two
instructions to compute its address, and a register that the accumulators then lack. LLVM assumes
nothing about the bits of an opaque number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite

OPAQUE = "tvm_stretch_opaque"
"""A function of the prelude that returns its argument and hides its value from the compiler."""

PRELUDE = f"""\
#if defined(__clang__) && (defined(__x86_64__) || defined(__aarch64__))
static long {OPAQUE}(long number) {{
  __asm__("" : "+r"(number));
  return number;
}}
#else
#define {OPAQUE}(number) (number)
#endif
"""

_BYTES = ("int8", "uint8")
"""TVM loads vectors only from addresses that it knows to be aligned, others number by number, and
bytes as parts of one number, which loses all but four of them."""

_FEWEST = 4
"""Least accesses of a base that justify a register."""


def fold_addresses(
    body: tirx.Stmt,  # lowered: each access has one index, a number or a ramp
    # parameters whose tensors are addressed so; temporaries become registers
    memory: list[tirx.Var],
) -> tirx.Stmt:
    """The statement with opaque bases in its innermost loops."""
    tensors = [
        tensor.buffer
        for tensor in nodes_of(body, tirx.DeclBuffer)
        if any(pointer.same_as(tensor.data) for pointer in memory)
    ]

    def innermost(loop: tirx.For) -> tirx.For:
        if nodes_of(loop.body, tirx.For):
            return loop
        bases = _Bases(tensors)
        bases.count(loop.body)
        changed = bases.apply(loop.body)
        if not bases.bound:
            return loop
        statement = tirx.SeqStmt([*bases.bound, changed])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, statement)

    return rewrite(body, (tirx.For, innermost))


_Key = tuple[int, frozenset[tuple[int, int]]]


@dataclass
class _Base:
    """A sum of variables that accesses of one tensor share."""

    terms: Sequence[tuple[Expr, int]]  # expressions and what they are multiplied by
    accesses: int = 0  # number of accesses with this base
    offsets: set[int] = field(default_factory=set)  # constants that these accesses add to it
    lanes: int = 0  # a divisor of the lanes of all accesses
    variable: tirx.Var | None = None  # its value divided by `unit`, once it is used

    @property
    def multiple(self) -> int:
        """The largest power of two that divides one of the terms."""
        return max(times & -times for _, times in self.terms)

    @property
    def unit(self) -> int:
        """A divisor of the sum: TVM writes ``vload8`` where it sees that 8 divides an index."""
        return math.gcd(self.lanes, *(times for _, times in self.terms))

    @property
    def first(self) -> int:
        """The least offset, rounded down to a multiple, which the base itself adds."""
        return min(self.offsets) // self.multiple * self.multiple

    @property
    def is_worth_it(self) -> bool:
        """Whether additions may become ORs: an offset fits into bits that a term has as zeros."""
        fits = any(0 < offset - self.first < self.multiple for offset in self.offsets)
        return self.accesses >= _FEWEST and fits and self.unit == self.lanes

    def bind(self, name: str, dtype: str) -> tirx.Bind:
        """The statement that computes ``variable``."""
        unit = self.unit
        value = tirx.const(self.first // unit, dtype)
        for term, times in self.terms:
            value = value + term * tirx.const(times // unit, dtype)
        self.variable = tirx.Var(name, dtype)
        return tirx.Bind(self.variable, tirx.call_pure_extern(dtype, OPAQUE, value))


class _Bases:
    """The bases of one loop's body."""

    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors
        self.bases: dict[_Key, _Base] = {}
        self.bound: list[tirx.Stmt] = []

    def count(self, body: tirx.Stmt) -> None:
        """See all accesses."""
        for access in nodes_of(body, TensorLoad, tirx.BufferStore):
            tensor = access.source if isinstance(access, TensorLoad) else access.buffer
            key, terms, offset = self._key(tensor, access.indices)
            if key is not None:
                base = self.bases.setdefault(key, _Base(terms))
                base.accesses += 1
                base.offsets.add(offset)
                base.lanes = math.gcd(base.lanes, _lanes(access.indices[0]))

    def apply(self, body: tirx.Stmt) -> tirx.Stmt:
        """The body whose accesses use the bases; `bound` then holds their definitions."""

        def load(access: TensorLoad) -> TensorLoad:
            index = self._folded(access.source, access.indices)
            return access if index is None else tirx.BufferLoad(access.source, [index])

        def store(access: tirx.BufferStore) -> tirx.BufferStore:
            index = self._folded(access.buffer, access.indices)
            if index is None:
                return access
            return tirx.BufferStore(access.buffer, access.value, [index])

        return rewrite(body, (TensorLoad, load), (tirx.BufferStore, store))

    def _key(self, tensor: Any, indices: Any) -> tuple[_Key | None, list[tuple[Expr, int]], int]:
        """What identifies the base of an access, its terms, and the constant beside it."""
        place = next((i for i, t in enumerate(self.tensors) if t.same_as(tensor)), None)
        if place is None or len(indices) != 1 or str(tensor.dtype) in _BYTES:
            return None, [], 0
        start = _start(indices[0])
        if start is None:
            return None, [], 0
        terms, offset = _linear(start, 1)
        parts = {part: term for part, term in terms.items() if term[1]}
        key = place, frozenset((part, times) for part, (_, times) in parts.items())
        return (key if parts else None), list(parts.values()), offset

    def _folded(self, tensor: Any, indices: Any) -> Expr | None:
        key, _, offset = self._key(tensor, indices)
        base = self.bases.get(key) if key is not None else None
        if base is None or not base.is_worth_it:
            return None
        index = indices[0]
        start = _start(index)
        assert start is not None
        dtype = str(start.ty.dtype)
        if base.variable is None:
            self.bound.append(base.bind(f"base{len(self.bound)}", dtype))
        assert base.variable is not None
        place = base.variable * base.unit + tirx.const(offset - base.first, dtype)
        return tirx.Ramp(place, index.stride, index.lanes) if index is not start else place


def _lanes(index: Expr) -> int:
    return int(index.lanes) if isinstance(index, tirx.Ramp) else 1


def _start(index: Expr) -> Expr | None:
    """The first element that an access reads; None if its elements are not evenly apart."""
    if isinstance(index, tirx.Ramp):
        return index.base
    return index if str(index.ty.dtype) == "int64" else None


_Terms = dict[int, tuple[Expr, int]]


def _linear(expr: Expr, times: int) -> tuple[_Terms, int]:
    """An expression as a sum of multiples of other expressions, by their hash, and a constant."""
    if isinstance(expr, tirx.IntImm):
        return {}, int(expr.value) * times
    if isinstance(expr, tirx.Add | tirx.Sub):
        sign = 1 if isinstance(expr, tirx.Add) else -1
        terms, offset = _linear(expr.a, times)
        more, rest = _linear(expr.b, sign * times)
        for part, (other, count) in more.items():
            terms[part] = (other, terms.get(part, (other, 0))[1] + count)
        return terms, offset + rest
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        return _linear(expr.a, times * int(expr.b.value))
    return {tvm_ffi.structural_hash(expr, map_free_vars=False): (expr, times)}, 0
