"""Rounding of the sums of convolutions in integers, for HVX before v68, which has no floats.

    y = saturate(round(n * factor) + zero)
    high = n * mantissa >> 31                       # mantissa = factor * 2**(31 + bits), an int32
    y = saturate(((high >> bits - 1) + 1 >> 1) + zero)   # halves up; no sum leaves an int32

Factors of a layer differ from channel to channel, but not by much, so that all have the same
`bits`; the largest mantissa has 31 bits. Twice rounding down is rounding down once: halves go up,
which `integers.Rounding` rounds to even in float32, and all else is rounded to nearest as there.
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

from .hvx import every, every_byte, hvx, word
from .integers import Rounding

_MOST_BITS = 15
_LEAST_DIGITS = 22
"""Of the mantissa of the smallest factor that counts."""


def mantissas(factor: np.ndarray) -> tuple[np.ndarray, int] | None:
    """The mantissa of each factor, and `bits`; None where one number of bits is not for all.

    Channels whose factor is zero do not count: what they compute is zero anyway.
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
    """An int32 times its factor, as an integer of 8 bits."""
    whole = halves_up(number, mantissa, bits)
    low, most = (word(v - rounding.zero) for v in (rounding.low, rounding.high))
    return (tirx.max(low, tirx.min(most, whole)) + word(rounding.zero)).astype(rounding.dtype)


def halves_up(number: Expr, mantissa: Expr, bits: int) -> Expr:
    """An int32 times its factor, rounded."""
    product = number.astype("int64") * mantissa.astype("int64")
    high = tirx.shift_right(product, tirx.const(31, "int64")).astype("int32")
    doubled = tirx.shift_right(high, word(bits - 1))
    return tirx.shift_right(doubled + word(1), word(1))


@dataclass(frozen=True)
class Narrowing:
    """What `rounded` made, taken apart again.

    Attributes:
        number, mantissa: its operands.
        bits: as there.
        rounding: to which type.
    """

    number: Expr
    mantissa: Expr
    bits: int
    rounding: Rounding

    def same(self, other: Narrowing | None) -> bool:
        """Whether another one differs in its operands only."""
        return other is not None and (self.bits, self.rounding) == (other.bits, other.rounding)

    def product(self, number: Expr, mantissa: Expr) -> Expr:
        """The high word of a product, of vectors."""
        low = hvx("vmpyewuh", number, mantissa)
        return hvx("vmpyowh.sacc", low, number, mantissa)

    def narrowed(self, four: Sequence[Expr]) -> Expr:
        """The bytes of four vectors of such words, one behind the other.

        Each step puts elements of two vectors side by side; dealt twice, they stand in order.
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
    """An expression is not what `rounded` makes."""


def narrowing_of(value: Expr | None) -> Narrowing | None:
    """The parts of `rounded`; None for anything else."""
    try:
        result = _of(tirx.Cast, value)
        shifted = isinstance(result.value, tirx.Add | tirx.Sub)  # TVM leaves `+ 0` out
        limits = _of(tirx.Max, result.value.a if shifted else result.value)
        inner = _of(tirx.Min, limits.b)
        halved, last = _shifted(inner.b)
        more = _of(tirx.Add, halved)
        high, bits = (more.a, 1) if isinstance(more.a, tirx.Cast) else _shifted(more.a, 1)
        product, down = _shifted(_of(tirx.Cast, high).value)
        factors = _of(tirx.Mul, product)
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


def _of(kind: type[Expr] | tuple[type[Expr], ...], node: Expr | None) -> Any:
    """The node, if it is such a one.

    Raises:
        _OtherError: it is another.
    """
    if not isinstance(node, kind):
        raise _OtherError
    return node


def _shifted(node: Expr, more: int = 0) -> tuple[Expr, int]:
    """What is shifted to the right, and how far, and so many bits more."""
    shift = _of(tirx.RShift, node)
    return shift.a, int(_of(tirx.IntImm, shift.b)) + more


def _narrow(value: Expr) -> Expr:
    """What TVM made an int64, part by part."""
    if isinstance(value, tirx.Add):
        return _narrow(value.a) + _narrow(value.b)
    if isinstance(value, tirx.IntImm):
        return word(int(value))
    return _of(tirx.Cast, value).value
