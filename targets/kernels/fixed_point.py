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
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.errors import StretchError
from tvm_stretch.ir.integers import Rounding

from .hvx import every, every_byte, hvx, word

_MOST_BITS = 15
_LEAST_DIGITS = 22
"""Least bits of the smallest mantissa, not counting factors of zero."""


def mantissas(factor: np.ndarray) -> tuple[np.ndarray, int] | None:
    """The mantissa of each factor, and `bits`; None if one number of bits does not suit all.

    Factors of zero are ignored, because their results are zero anyway.
    """
    counting = factor[factor > 0].astype("float64")
    if factor.min(initial=0) < 0 or not counting.size:
        return None
    bits = min(_MOST_BITS, -math.frexp(float(counting.max()))[1])
    found = np.rint(factor.astype("float64") * 2.0 ** (31 + bits))
    smallest = counting.min() * 2.0 ** (31 + bits)
    if bits < 1 or found.max() >= 2**31 or smallest < 2**_LEAST_DIGITS:
        return None
    return found.astype("int32"), bits


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
class Narrowing:
    """The parts of a result of `rounded`.

    Attributes:
        number, mantissa: its operands.
        bits: its bits.
        rounding: its rounding.
    """

    number: Expr
    mantissa: Expr
    bits: int
    rounding: Rounding

    def same(self, other: Narrowing | None) -> bool:
        """Whether another narrowing differs in its operands only."""
        return other is not None and (self.bits, self.rounding) == (other.bits, other.rounding)

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


class _OtherError(StretchError):
    """An expression is not a result of `rounded`."""


def narrowing_of(value: Expr | None) -> Narrowing | None:
    """The parts of a result of `rounded`; None for other expressions."""
    try:
        result = _expect(tirx.Cast, value)
        shifted = isinstance(result.value, tirx.Add | tirx.Sub)  # TVM omits `+ 0`
        limits = _expect(tirx.Max, result.value.a if shifted else result.value)
        inner = _expect(tirx.Min, limits.b)
        halved, last = _shifted(inner.b)
        more = _expect(tirx.Add, halved)
        high, bits = (more.a, 1) if isinstance(more.a, tirx.Cast) else _shifted(more.a, 1)
        product, down = _shifted(_expect(tirx.Cast, high).value)
        factors = _expect(tirx.Mul, product)
        number, mantissa = _narrow(factors.a), _narrow(factors.b)
        zero = int(result.value.b) if shifted else 0
        least, most, one = map(int, (limits.a, inner.a, more.b))
    except _OtherError:
        return None
    zero = -zero if isinstance(result.value, tirx.Sub) else zero
    if (down, one, last) != (31, 1, 1) or not 1 <= bits <= _MOST_BITS:
        return None
    rounding = Rounding(str(result.ty.dtype), zero, least + zero, most + zero)
    return Narrowing(number, mantissa, bits, rounding)


def _expect(kind: type[Expr] | tuple[type[Expr], ...], node: Expr | None) -> Any:
    """The node, if it is of this kind.

    Raises:
        _OtherError: it is of another kind.
    """
    if not isinstance(node, kind):
        raise _OtherError
    return node


def _shifted(node: Expr, more: int = 0) -> tuple[Expr, int]:
    """The operand of a right shift, and the shift's bits plus ``more``."""
    shift = _expect(tirx.RShift, node)
    return shift.a, int(_expect(tirx.IntImm, shift.b)) + more


def _narrow(value: Expr) -> Expr:
    """The int32 expression that TVM converted to int64, part by part."""
    if isinstance(value, tirx.Add):
        return _narrow(value.a) + _narrow(value.b)
    if isinstance(value, tirx.IntImm):
        return word(int(value))
    return _expect(tirx.Cast, value).value
