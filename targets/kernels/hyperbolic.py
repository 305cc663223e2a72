"""Hyperbolic functions of float32 and their inverses, as arithmetic that vector units have.

asinh(x) = log(1 + u), u = |x| + x^2 / (1 + sqrt(1 + x^2)), with the sign of x
acosh(x) = log(1 + u), u = x - 1 + sqrt((x - 1) * (x + 1))
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr

from .exponentials import exponential, let, logarithm, polynomial, with_sign
from .loops import f32

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
        found = _grown(x, more + tirx.sqrt(more * (more + f32(2.0))))
        return tirx.Select(x < f32(1.0), f32(math.nan), found)

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
