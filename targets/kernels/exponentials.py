"""Exponentials and logarithms of float32 as arithmetic that vector units have.

They are accurate to a few units in the last place and keep NaN and infinities.

Hyperbolic functions of float32 and their inverses, as arithmetic that vector units have.

asinh(x) = log(1 + u), u = |x| + x^2 / (1 + sqrt(1 + x^2)), with the sign of x
acosh(x) = log(1 + u), u = x - 1 + sqrt((x - 1) * (x + 1))
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from .loops import f32

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has few bits
_EXP_TERMS = (1.0, 1.0, 0.5, 1.6666665e-1, 4.1665796e-2, 8.3334519e-3, 1.3981999e-3, 1.9875691e-4)
# log(1 + x) = x - x^2 / 2 + x^3 * P(x) for 1 + x from sqrt(1/2) to sqrt(2)
_LOG_TERMS = (
    *(3.3333331174e-1, -2.4999993993e-1, 2.0000714765e-1, -1.6668057665e-1, 1.4249322787e-1),
    *(-1.2420140846e-1, 1.1676998740e-1, -1.1514610310e-1, 7.0376836292e-2),
)
_BITS_OF_ROOT_HALF = 0x3F3504F3
LEAST_NORMAL, LARGEST = float(np.finfo("float32").tiny), float(np.finfo("float32").max)


def polynomial(x: Expr, terms: tuple[float, ...]) -> Expr:
    """``terms[0] + x * (terms[1] + x * (...))``."""
    total = f32(terms[-1])
    for term in reversed(terms[:-1]):
        total = total * x + f32(term)
    return total


def let(name: str, value: Expr, body: Callable[[tirx.Var], Expr]) -> Expr:
    """``body`` of one copy of ``value``; without it nested expansions would grow exponentially."""
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def clamp(x: tirx.Var, low: float, high: float) -> Expr:
    """``x`` within bounds; NaN stays NaN, since comparisons with it are false."""
    raised = tirx.Select(x < f32(low), f32(low), x)
    return tirx.Select(x > f32(high), f32(high), raised)


def exponential(x: Expr, name: str) -> Expr:
    """2^n * e^r with r in [-ln2/2, ln2/2]; 2^n as two factors, since n may be -150 or 128."""

    def scaled(clamped: Expr, n: Expr) -> Expr:
        r = clamped - n * f32(_LN2_HIGH) - n * f32(_LN2_LOW)
        return let(
            "whole",
            n.astype("int32"),
            lambda whole: (
                let("r", r, lambda r: polynomial(r, _EXP_TERMS))
                * _power_of_two(whole >> 1)
                * _power_of_two(whole - (whole >> 1))
            ),
        )

    def reduced(clamped: Expr) -> Expr:
        n = tirx.floor(clamped * f32(_LOG2_E) + f32(0.5))
        return let("n", n, lambda n: scaled(clamped, n))

    return let(name, x, lambda x: let("clamped", clamp(x, -104.0, 89.0), reduced))


def logarithm(x: Expr, name: str) -> Expr:
    """``n * ln 2 + log(m)`` with x = 2^n * m."""

    def of_parts(m: Expr, n: Expr) -> Expr:
        square = m * m
        rest = m * square * polynomial(m, _LOG_TERMS) + n * f32(_LN2_LOW) - f32(0.5) * square
        return m + rest + n * f32(_LN2_HIGH)

    def apart(bits: Expr, shift: Expr) -> Expr:
        exponent = (bits - _BITS_OF_ROOT_HALF) >> 23
        return let(
            "exponent",
            exponent,
            lambda e: let(
                "m",
                tirx.reinterpret("float32", bits - (e << 23)) - f32(1.0),
                lambda m: of_parts(m, e.astype("float32") - shift),
            ),
        )

    def with_limits(x: Expr) -> Expr:
        is_tiny = x < f32(LEAST_NORMAL)
        normal = tirx.Select(is_tiny, x * f32(1 << 23), x)
        shift = tirx.Select(is_tiny, f32(23.0), f32(0.0))
        bits = tirx.reinterpret("int32", normal)
        number = let("bits", bits, lambda bits: apart(bits, shift))
        at_zero = tirx.Select(x == f32(0.0), f32(-math.inf), f32(math.nan))
        positive = tirx.Select(x > f32(0.0), number, at_zero)
        return tirx.Select(x > f32(LARGEST), x, positive)

    return let(name, x, with_limits)


def _power_of_two(exponent: Expr) -> Expr:
    return tirx.reinterpret("float32", (exponent + 127) << 23)


def with_sign(size: Expr, x: Expr) -> Expr:
    """A number that is not negative with the sign of ``x``, which may be that of -0."""
    sign = tirx.reinterpret("int32", x) & tirx.const(-(1 << 31), "int32")
    return tirx.reinterpret("float32", tirx.reinterpret("int32", size) | sign)


# sinh(x) = x * P(x^2) for |x| < 1
_SINH = (1.0, 1.66667160211e-1, 8.33028376239e-3, 2.03721912945e-4)


def sinh(x: Expr, name: str) -> Expr:
    """``(e^x - e^-x) / 2``."""

    def small(x: Expr) -> Expr:
        return x * polynomial(x * x, _SINH)

    def either(x: Expr) -> Expr:
        return tirx.Select(tirx.abs(x) < f32(1.0), small(x), _of_halves(x, -1.0))

    return let(name, x, either)


def cosh(x: Expr, name: str) -> Expr:
    """``(e^x + e^-x) / 2``."""
    return let(name, x, lambda x: _of_halves(x, 1.0))


def _of_halves(x: Expr, sign: float) -> Expr:
    """``(e^x + sign * e^-x) / 2`` from e^(x/2), which is finite where the result is."""

    def combined(half: Expr) -> Expr:
        return f32(0.5) * half * half + f32(0.5 * sign) / half / half

    return let("half", exponential(x * f32(0.5), "halved"), combined)


_MOST = 1e4
"""The logarithm of twice a larger number is its asinh and acosh."""


def asinh(x: Expr, name: str) -> Expr:
    """The number whose sinh is ``x``."""

    def either(x: Expr) -> Expr:
        def of_size(a: Expr) -> Expr:
            more = a + a * a / (f32(1.0) + tirx.sqrt(f32(1.0) + a * a))
            return with_sign(_grown(a, more), x)

        return let("size", tirx.abs(x), of_size)

    return let(name, x, either)


def acosh(x: Expr, name: str) -> Expr:
    """The number that is not negative and whose cosh is ``x``."""

    def either(x: Expr) -> Expr:
        more = x - f32(1.0)
        grown = _grown(x, more + tirx.sqrt(more * (more + f32(2.0))))
        return tirx.Select(x < f32(1.0), f32(math.nan), grown)

    return let(name, x, either)


def _grown(size: Expr, more: Expr) -> Expr:
    """``log(1 + more)``, or the logarithm of twice a large ``size``.

    The last digits of ``more`` are lost in 1 + more; the quotient makes up for them.
    """

    def of_sum(more: Expr, total: Expr) -> Expr:
        def either(log: Expr) -> Expr:
            exact = log * more / (total - f32(1.0))
            near = tirx.Select(total == f32(1.0), more, exact)
            return tirx.Select(size > f32(_MOST), log + f32(math.log(2)), near)

        grown = tirx.Select(size > f32(_MOST), size, total)
        return let("log", logarithm(grown, "grown"), either)

    return let("more", more, lambda m: let("total", f32(1.0) + m, lambda t: of_sum(m, t)))
