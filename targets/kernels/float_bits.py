"""Quantise floats by their bits, for vectors that hold no floats (HVX before v68).

    uint8(int32(max(0, min(255, nearbyint(x / 0.02) + 114))))     quantises a float image
      ->
    sign, exponent and mantissa of x in integer arithmetic; the same result for every x

`x / scale` lies between two integers n and n + 1, which a product of 15 by 15 bits determines.
The sign of `x - (2 * n + 1) * scale / 2` tells whether it is above n + 1/2: in units of a quarter
of the scale's last bit all three terms are integers, and the difference is below 2**31, so words
that wrap represent it. Float32 rounds the quotient before it is rounded to an integer: a quotient
closer to n + 1/2 than half of that number's last bit counts as a half, which goes to the even
integer. `scalar_calls` tells which float operators of Hexagon have no such form and are slow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.network.rewriting import rewrite
from tvm_stretch.targets.hexagon.kernels.hvx import word

_MOST = 511
"""Largest distance of results from the zero point: beyond 512 scales, all numbers are alike."""

_MOST_EXPONENT = 100
"""Largest exponent of scales: a quarter and 512 times of them are normal numbers too."""

_INFINITE = 0x7F800000
"""The bits of infinity; those of NaN are greater."""


def quantise_bits(body: tirx.Stmt) -> tirx.Stmt:
    """A scheduled kernel in which quantising by a constant scale is done in integers."""
    return rewrite(body, (tirx.Cast, _quantised))


def _quantised(cast: tirx.Cast) -> Expr:
    """`cast` itself unless it converts a value that is rounded, moved and clipped."""
    if str(cast.ty.dtype) != "int32" or not isinstance(cast.value, tirx.Max):
        return cast
    least, inner = cast.value.a, cast.value.b
    most = inner.a if isinstance(inner, tirx.Min) else None
    if not (isinstance(least, tirx.FloatImm) and isinstance(most, tirx.FloatImm)):
        return cast
    moved, zero = inner.b, 0.0
    if isinstance(moved, tirx.Add) and isinstance(moved.b, tirx.FloatImm):
        moved, zero = moved.a, float(moved.b.value)
    if getattr(getattr(moved, "op", None), "name", "") != "tirx.nearbyint":
        return cast
    limits = zero, float(least.value), float(most.value)
    if str(moved.ty.dtype) != "float32" or not is_saturating(*limits):
        return cast
    x, scale = _divided(moved.args[0])
    return quantised(x, scale, *map(int, limits))


def _divided(value: Expr) -> tuple[Expr, float]:
    """A dividend and its constant divisor."""
    if isinstance(value, tirx.Div | tirx.Mul) and isinstance(value.b, tirx.FloatImm):
        kind, number = "divide" if isinstance(value, tirx.Div) else "multiply", float(value.b.value)
        if is_scaling(kind, number):
            return value.a, number if kind == "divide" else 1 / number
    return value, 1.0


def is_scaling(kind: str, number: float) -> bool:
    """Whether `quantised` supports this division; multiplication only by powers of two."""
    digits, exponent = math.frexp(number)
    is_exact = kind == "divide" or (kind == "multiply" and digits == 0.5)
    return is_exact and 0.5 <= digits < 1 and abs(exponent) <= _MOST_EXPONENT


def is_saturating(zero: float, low: float, high: float) -> bool:
    """Whether `quantised` supports these limits, where ``zero`` is added before clipping."""
    is_whole = all(value.is_integer() for value in (zero, low, high))
    return is_whole and max(abs(low - zero), abs(high - zero)) <= _MOST


def quantised(x: Expr, scale: float, zero: int, low: int, high: int) -> Expr:
    """An int32: `round(x / scale)`, halves to even, plus ``zero``, limited to ``low``..``high``.

    NaN becomes 0, as on processors with floats.
    """
    bits = int(np.float32(scale).view("int32"))
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF | 0x800000
    whole = tirx.reinterpret("int32", x)
    size = whole & word(0x7FFFFFFF)
    inside = tirx.max(word(bits - (2 << 23)), tirx.min(word(bits + (9 << 23)), size))
    digits = inside & word(0x7FFFFF) | word(0x800000)
    left = (inside >> word(23)) - word(exponent - 2)  # 0 for a quarter of the scale .. 11
    inverse = min(0x7FFF, round(2**38 / mantissa))
    lower = (digits >> word(9)) * word(inverse) >> (word(31) - left)
    halves = lower * word(2) + word(1)
    middle = _wrapping(halves) * tirx.const(2 * mantissa, "uint32")
    above = (tirx.shift_left(_wrapping(digits), _wrapping(left)) - middle).astype("int32")
    # half of the quotient's last bit; its exponent is one less if x has fewer digits
    less = (digits - word(mantissa)) >> word(31)
    last = tirx.shift_right(word(4 * mantissa), word(26) - left - less)
    most = last ^ (word(0) - (lower & word(1)))  # the largest that rounds down: -1 - last if odd
    nearest = lower - (most - above >> word(31))
    sign = whole >> word(31)
    result = tirx.max(word(low), tirx.min(word(high), (nearest ^ sign) - sign + word(zero)))
    is_number = (size - word(_INFINITE + 1)) >> word(31)
    return result & is_number


def _wrapping(value: Expr) -> Expr:
    """As unsigned, because LLVM may assume that signed numbers do not overflow."""
    return value.astype("uint32")


CONVERTING = frozenset(
    ("astype", "round", "clip", "add", "subtract", "multiply", "divide", "reshape", "permute_dims")
)
"""The operators of quantising and dequantising, at the ends of an integer network.

Quantising by one scale works on the bits of floats, in vectors (`quantised`). Every
version computes other float32 operators in its general registers, one number at a time. Operators
on two tensors, as in a network of floats, are refused.
"""


def scalar_calls(
    calls: Mapping[str, relax.Call], version: str, *, has_floats: bool
) -> dict[str, str]:
    """Calls that compute one number at a time, with the reason; moves of numbers do not count."""
    if has_floats:
        return {}
    computing, vectors = CONVERTING - {"reshape", "permute_dims"}, _quantising(calls)
    reason = f"float32 one number at a time, vectors of {version} hold none; vectors of v68 do"
    return {
        name: reason
        for name, call in calls.items()
        if kind_of(call) in computing and _is_float(call) and name not in vectors
    }


def _quantising(calls: Mapping[str, relax.Call]) -> set[str]:
    """Operators that are fused into a kernel which `quantise_bits` rewrites in integers."""
    readers = Counter(
        arg.name for call in calls.values() for arg in call.args if isinstance(arg, relax.Var)
    )
    buffers: set[str] = set()
    for last, call in calls.items():
        names = [last]
        while len(names) < 5 and (before := getattr(call.args[0], "name", "")) in calls:
            if readers[before] != 1:
                break
            names, call = [*names, before], calls[before]
        kinds = [kind_of(calls[name]) for name in names]
        rounds = kinds.index("round") if "round" in kinds else 0
        if kinds[:rounds] not in (["astype", "clip"], ["astype", "clip", "add"]):
            continue
        zero = _number(calls[names[2]]) if rounds == 3 else 0.0
        low, high = (float(arg.value) for arg in calls[names[1]].args[1:])
        if str(calls[last].ty.dtype) == "int32" and is_saturating(zero, low, high):
            buffers.update(names[: rounds + 1])
            before = names[rounds + 1 :][:1]
            buffers.update(n for n in before if is_scaling(kinds[rounds + 1], _number(calls[n])))
    return buffers


def _number(call: relax.Call) -> float:
    """The constant second operand if it is a single number, otherwise NaN."""
    other = call.args[-1]
    is_one = isinstance(other, GenericConst) and not shape_of(other)
    return float(other.value.numpy()) if is_one else math.nan


def _is_float(call: relax.Call) -> bool:
    types = (expr.ty for expr in (call, *call.args))
    return any(isinstance(ty, relax.TensorType) and str(ty.dtype) == "float32" for ty in types)
