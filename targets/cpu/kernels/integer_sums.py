"""Round sums of products in integers, for vectors that hold no floats.

    round(float(n) * factor) + zero   ->   (high word of n * mantissa + half) >> shift, + zero

A factor becomes a mantissa of 31 bits and a shift: the high word of the 64-bit product, plus half a
unit, shifted right, is the exact product rounded to nearest. It differs from float32 for halves,
which go up instead of to even, and where float32 itself rounds the product to a half.

Sums of several products, as in an addition, share one scale, in which each number has 8 or 9 bits.
For two numbers of 8 bits only halves differ, or none does: `fitted_sum` computes sums of two 8-bit
numbers in integers so that they equal float32's, bit by bit.

    round(float(a) * 0.37 + (float(b) * 0.0131 - 9.25))   ->   a * w + b * v + o >> bits

Factors of 21 bits have errors of up to 255 * 2**-22 in a product, so one sum in ten thousand is
rounded wrongly, while float32 with its own roundings fails once in a million. But there are only
65,536 pairs of numbers, and few sums come near to a half: among the integers next to `factor *
2**bits` those are chosen for which every pair gives the result of float32. If the sums themselves
are halves (factors of one), float32 rounds them to even, and no such integers exist.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Expr

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.integer_kernels import Product
from tvm_stretch.network.integers import Rounding
from tvm_stretch.targets.hexagon.kernels.hvx import word
from tvm_stretch.targets.kernels.fixed_point import halves_up, mantissas

_BESIDE = 4
"""Number of integers that are tried on each side of a factor."""


def fitted_sum(
    numbers: Sequence[np.ndarray],  # all values of each operand
    factors: Sequence[float],  # of the operands
    # the sum in float32, of arrays for both operands
    value: Callable[[Iterator[np.ndarray]], np.ndarray],
    limits: tuple[int, int],  # the least and the greatest result
    bits: int,  # of the fraction
) -> tuple[list[int], int] | None:
    """The integer factors and the offset for which all sums equal float32's; None without any."""
    a, b = (grid.ravel() for grid in np.meshgrid(*numbers, indexing="ij"))
    low, high = limits
    results = np.rint(np.clip(value(iter((a, b))), low, high)).astype("int64")
    nearest = [round(factor * 2**bits) for factor in factors]
    # the offset must lift each sum to its result, but not to the next one
    least = (results << bits) - a * nearest[0] - b * nearest[1]
    most = least + (1 << bits) - 1
    up, down = results > low, results < high
    # other sums are too far from a half for any of the steps below
    room = 2 * _BESIDE * int(abs(a).max() + abs(b).max())
    up &= least > least[up].max(initial=-(2**62)) - room
    down &= most < most[down].min(initial=2**62) + room
    steps = range(-_BESIDE, _BESIDE + 1)
    for step in sorted(itertools.product(steps, steps), key=lambda s: max(map(abs, s))):
        moved = a * step[0] + b * step[1]
        first = int((least - moved)[up].max(initial=-(2**62)))
        last = int((most - moved)[down].min(initial=2**62))
        if first <= last:
            wholes = [n + s for n, s in zip(nearest, step, strict=True)]
            return wholes, (max(first, -(2**30)) + min(last, 2**30)) // 2
    return None


def in_integers(rounding: Rounding, products: Sequence[Product], offset: float | None) -> Expr:
    """The sum of products and an offset, rounded; see the module docstring."""
    low, high = rounding.low - rounding.zero, rounding.high - rounding.zero
    if len(products) == 1 and not offset:
        whole = _product(*products[0])
    else:
        whole = _sum(products, offset or 0.0, (low, high))
    limited = tirx.max(word(low), tirx.min(word(high), whole))
    return (limited + word(rounding.zero)).astype(rounding.dtype)


@dataclass(frozen=True)
class _Factor:
    """mantissa * 2**-(32 + shift), for a number that was shifted left by ``before``."""

    mantissa: Expr
    before: Expr
    shift: Expr


def _factor(factor: Expr) -> _Factor:
    """A non-negative float32, split into mantissa and exponent."""
    bits = tirx.reinterpret("int32", factor)
    mantissa = (bits & word(0x7FFFFF) | word(0x800000)) << word(7)
    shift = word(125) - (bits >> word(23))
    return _Factor(
        mantissa, tirx.max(word(0), word(1) - shift), tirx.max(word(1), tirx.min(word(31), shift))
    )


def _product(number: Expr, factor: Expr) -> Expr:
    """Rounded to nearest, halves up."""
    if isinstance(factor, tirx.FloatImm):
        mantissa = mantissas(np.array([factor.value], "float32"))
        if mantissa is not None:
            return halves_up(number.astype("int32"), word(int(mantissa[0][0])), mantissa[1])
    parts = _factor(factor)
    most = word(2**31 - 1) >> parts.before  # larger numbers are far beyond 8 bits anyway
    moved = tirx.max(-most, tirx.min(most, number.astype("int32"))) << parts.before
    high = moved.astype("int64") * parts.mantissa.astype("int64") >> tirx.const(32, "int64")
    half = word(1) << (parts.shift - word(1))
    return (high.astype("int32") + half) >> parts.shift


def _sum(products: Sequence[Product], offset: float, limits: tuple[int, int]) -> Expr:
    """Sum in units of 2**-bits, so that everything fits int32; rounded to nearest, halves up."""
    numbers = [number for number, _ in products]
    factors = [_number(factor) for _, factor in products]
    largest = sum(_MOST[_width(n)] * abs(f) for n, f in zip(numbers, factors, strict=True))
    bits = min(29, math.floor(30 - math.log2(max(largest + abs(offset), 1e-9))))
    if bits < 1:
        raise UnsupportedError(
            f"expected factors below {2**20} of an integer operator on this processor, got "
            f"{max(factors)}; place it on the CPU"
        )
    last = round(offset * 2**bits) + 2 ** (bits - 1)
    wholes = [round(factor * 2**bits) for factor in factors]
    if [_width(number) for number in numbers] == [8, 8]:
        types = tuple(str(number.ty.dtype) for number in numbers)
        wholes, last = _fitted(types, tuple(factors), offset, limits, bits) or (wholes, last)
    total: Expr = word(last)
    for number, factor, whole in zip(numbers, factors, wholes, strict=True):
        total = total + number.astype("int32") * word(whole)
        if _width(number) == 32:  # the lost bits of the factor count 2**16 times
            rest = word(round((factor * 2**bits - whole) * 2**_MORE))
            total = total + (number.astype("int32") * rest >> word(_MORE))
    return total >> word(bits)


@functools.lru_cache(maxsize=1024)  # a search lowers the same addition many times
def _fitted(
    types: tuple[str, ...],
    factors: tuple[float, ...],
    offset: float,
    limits: tuple[int, int],
    bits: int,
) -> tuple[list[int], int] | None:
    """Integers for the sum of two 8-bit numbers, if suitable ones exist."""
    every = [np.arange(np.iinfo(d).min, np.iinfo(d).max + 1) for d in types]
    return fitted_sum(every, factors, functools.partial(_in_float32, factors, offset), limits, bits)


def _in_float32(
    factors: tuple[float, ...], offset: float, numbers: Iterator[np.ndarray]
) -> np.ndarray:
    """The operator's result in float32 multiply-adds, each of which rounds once."""
    a, b = (next(numbers) * np.float64(np.float32(factor)) for factor in factors)  # exact
    inner = (b + np.float64(np.float32(offset))).astype("float32")
    return (a + inner).astype("float32").astype("float64")


_MORE = 14
"""Additional bits of a factor, beyond those that fit into sums."""


_MOST = {8: 2**8, 16: 2**16, 32: 2**16}
"""The greatest number of each bit width; numbers of 32 bits are products of two of 8."""


def _width(number: Expr) -> int:
    return tvm.DataType(str(number.ty.dtype)).bits


def _number(factor: Expr) -> float:
    if not isinstance(factor, tirx.FloatImm):
        raise UnsupportedError(
            "expected one factor for all channels of a sum of products, got one for each; "
            "place the operator on the CPU"
        )
    return float(factor.value)
