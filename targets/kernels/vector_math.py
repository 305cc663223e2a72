"""Exponentials that vectorize: the compiler would call the C library once per lane.

    exp(x)      ->  2^n * p(x - n * ln 2)      with n = round(x / ln 2)
    sigmoid(x)  ->  1 / (1 + exp(-x))

Good to 2 units in the last place over the whole range, with overflow to infinity, gradual underflow
and NaN as in the C library.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr

from .loops import f32

# Adding and subtracting 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_LOWEST, _HIGHEST = -104.0, 89.0  # beyond, the result is 0 or infinity
_COEFFICIENTS = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


def vectorize_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the float32 exponentials and logistic functions written out."""
    rules: dict[str, Callable[[Expr], Expr]] = {"tirx.exp": _exp, "tirx.sigmoid": _sigmoid}

    def expand(call: Call) -> Expr:
        rule = rules.get(getattr(call.op, "name", ""))
        return rule(call.args[0]) if rule and str(call.ty) == "float32" else call

    body = tvm_ffi.structural_map(func.body, (Call, expand))
    return func if body.same_as(func.body) else func.with_body(body)


def _let(value: Expr, body: Callable[[Expr], Expr], dtype: str = "float32") -> Expr:
    var = tirx.Var("t", dtype)
    return tirx.Let(var, value, body(var))


def _exp(value: Expr) -> Expr:
    def of(x: Expr) -> Expr:
        shifted = x * f32(_LOG2_E) + f32(_ROUNDER)
        return _let(shifted, lambda s: _let(s - f32(_ROUNDER), lambda n: scaled(x, s, n)))

    def scaled(x: Expr, shifted: Expr, n: Expr) -> Expr:
        bits = tirx.reinterpret("int32", shifted) - tirx.const(_ROUNDER_BITS, "int32")
        rest = x - n * f32(_LN2_HIGH) - n * f32(_LN2_LOW)
        return _let(rest, lambda r: _let(bits, lambda i: times_two_to(polynomial(r), i), "int32"))

    def polynomial(r: Expr) -> Expr:
        total: Expr = f32(_COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            total = total * r + f32(coefficient)
        return total * (r * r) + r + f32(1.0)

    def times_two_to(p: Expr, power: Expr) -> Expr:
        # in two steps, because 2^power itself may be too large or too small for a normal number
        half = tirx.shift_right(power, tirx.const(1, "int32"))
        return _let(half, lambda h: p * _two_to(h) * _two_to(power - h), "int32")

    return _let(value, lambda v: _let(_clamped(v), of))


def _two_to(power: Expr) -> Expr:
    """2^power for powers of normal numbers, put together from its exponent bits."""
    biased = power + tirx.const(127, "int32")
    return tirx.reinterpret("float32", tirx.shift_left(biased, tirx.const(23, "int32")))


def _clamped(x: Expr) -> Expr:
    """Between the limits; NaN stays NaN because it compares to nothing."""
    above = tirx.Select(x > f32(_HIGHEST), f32(_HIGHEST), x)
    return tirx.Select(x < f32(_LOWEST), f32(_LOWEST), above)


def _sigmoid(value: Expr) -> Expr:
    return f32(1.0) / (f32(1.0) + _exp(f32(0.0) - value))
