"""Round sums of convolutions in integers, for HVX before v68, which has no floats.

    y = saturate(round(n * factor) + zero)
    high = n * mantissa >> 31                       # mantissa = factor * 2**(31 + bits), an int32
    y = saturate(((high >> bits - 1) + 1 >> 1) + zero)   # halves up; no sum leaves an int32

Factors differ between the channels of a layer, but not by much, so all share `bits`; the
largest mantissa has 31 bits. Rounding down twice equals rounding down once. Halves go up, while
`integers.Rounding` rounds them to even in float32; all other numbers are rounded to nearest in
both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx
from tvm.ir import Call, Expr

from tvm_stretch.network.integers import Rounding
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.hexagon.kernels.hvx import every, every_byte, hvx, word

_MOST_BITS = 15
_LEAST_DIGITS = 22
"""Least bits of the smallest mantissa, not counting factors of zero."""


_ROUNDED = "tvm_stretch.rounded"


def mantissas(factor: np.ndarray) -> tuple[np.ndarray, int] | None:
    """The mantissa of each factor, and `bits`; None if one number of bits does not suit all.

    Factors of zero are ignored, because their results are zero anyway.
    """
    counting = factor[factor > 0].astype("float64")
    if factor.min(initial=0) < 0 or not counting.size:
        return None
    bits = min(_MOST_BITS, -math.frexp(float(counting.max()))[1])
    rounded = np.rint(factor.astype("float64") * 2.0 ** (31 + bits))
    smallest = counting.min() * 2.0 ** (31 + bits)
    if bits < 1 or rounded.max() >= 2**31 or smallest < 2**_LEAST_DIGITS:
        return None
    return rounded.astype("int32"), bits


def rounded(number: Expr, mantissa: Expr, bits: int, rounding: Rounding) -> Expr:
    """An int32 times its factor, rounded to an 8-bit integer."""
    whole = halves_up(number, mantissa, bits)
    low, most = (word(v - rounding.zero) for v in (rounding.low, rounding.high))
    return (tirx.max(low, tirx.min(most, whole)) + word(rounding.zero)).astype(rounding.dtype)


def halves_up(number: Expr, mantissa: Expr, bits: int) -> Expr:
    """An int32 times its factor, rounded with halves up."""
    product = number.astype("int64") * mantissa.astype("int64")
    high = tirx.shift_right(product, tirx.const(31, "int64")).astype("int32")
    doubled = tirx.shift_right(high, word(bits - 1))
    return tirx.shift_right(doubled + word(1), word(1))


@dataclass(frozen=True)
class FixedPoint:
    """How the sums of a block are rounded: with `bits` of the mantissas."""

    bits: int
    rounding: Rounding


@dataclass(frozen=True)
class Narrowing:
    """A result of `rounded`."""

    # number, mantissa: its operands
    number: Expr
    mantissa: Expr
    bits: int  # its bits
    rounding: Rounding  # its rounding

    def same(self, other: Narrowing | None) -> bool:
        """Whether another narrowing differs in its operands only."""
        return other is not None and (self.bits, self.rounding) == (other.bits, other.rounding)

    def result(self) -> tirx.Cast:
        """The arithmetic of `rounded`."""
        return rounded(self.number, self.mantissa, self.bits, self.rounding)

    def product(self, number: Expr, mantissa: Expr) -> Expr:
        """The high words of a product of vectors."""
        low = hvx("vmpyewuh", number, mantissa)
        return hvx("vmpyowh.sacc", low, number, mantissa)

    def narrowed(self, four: Sequence[Expr]) -> Expr:
        """The bytes of four vectors of such words, in order.

        Each step interleaves elements of two vectors; two deal instructions restore the order.
        """
        rounding, shift = self.rounding, word(self.bits)
        zero = every(rounding.zero & 0xFFFF | (rounding.zero & 0xFFFF) << 16)
        halves = [hvx("vasrwhrndsat", four[i + 2], four[i], shift) for i in (0, 1)]
        first, second = (hvx("vaddhsat", half, zero) for half in halves)
        unsigned = rounding.dtype == "uint8"
        if unsigned:
            whole = hvx("vsathub", second, first)
        else:
            whole = hvx("vasrhbsat", second, first, word(0))
        whole = hvx("vdealb", hvx("vdealb", whole))
        kind = "ub" if unsigned else "b"
        least, most = (0, 255) if unsigned else (-128, 127)
        if rounding.low > least:
            whole = hvx(f"vmax{kind}", whole, every_byte(rounding.low))
        if rounding.high < most:
            whole = hvx(f"vmin{kind}", whole, every_byte(rounding.high))
        return whole


def narrowing_call(number: Expr, mantissa: Expr, fixed: FixedPoint) -> Expr:
    """`rounded` as a call, by which stores are packed while a kernel is scheduled."""
    rounding = fixed.rounding
    numbers = (fixed.bits, rounding.zero, rounding.low, rounding.high)
    return tirx.call_pure_extern(rounding.dtype, _ROUNDED, number, mantissa, *map(word, numbers))


def narrowing_of(value: Expr | None) -> Narrowing | None:
    """The parts of a `narrowing_call`; None for other expressions."""
    is_extern = getattr(getattr(value, "op", None), "name", "") == "tirx.call_pure_extern"
    if value is None or not is_extern or value.args[0].value != _ROUNDED:
        return None
    number, mantissa, *numbers = value.args[1:]
    bits, *limits = map(int, numbers)
    return Narrowing(number, mantissa, bits, Rounding(str(value.ty.dtype), *limits))


def write_out(body: tirx.Stmt) -> tirx.Stmt:
    """``body`` with the arithmetic of `rounded` instead of calls."""

    def written(call: Call) -> Expr:
        narrowing = narrowing_of(call)
        return call if narrowing is None else narrowing.result()

    return rewrite(body, (Call, written))
