"""Write functions like exp, log, erf, sin and atan as arithmetic that vector units have.

    y[i] = T.sigmoid(x[i])      ->      y[i] = 1 / (1 + <polynomial of -x[i]>)

LLVM has no vector form of these functions without a vector math library: it would call `expf` once
per lane.  The expansions are accurate to a few units in the last place and keep NaN and infinities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, Op
from tvm.ir.expr import TensorLoad

from tvm_stretch.network.expressions import nodes_of
from tvm_stretch.network.rewriting import rewrite, rewrite_kernels
from tvm_stretch.targets.kernels.exponentials import (
    LARGEST,
    acosh,
    asinh,
    clamp,
    cosh,
    exponential,
    let,
    logarithm,
    polynomial,
    sinh,
    with_sign,
)
from tvm_stretch.targets.kernels.loops import f32

# tanh(x) = x * P(x^2) / Q(x^2) for |x| < 7.9, beyond which it is 1 in float32
_TANH_P = (
    4.89352455891786e-03,
    6.37261928875436e-04,
    1.48572235717979e-05,
    5.12229709037114e-08,
    -8.60467152213735e-11,
    2.00018790482477e-13,
    -2.76076847742355e-16,
)
_TANH_Q = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
# erf(x) = x * P(x^2) / Q(x^2) for |x| < 4
_ERF_P = (
    -1.60960333262415e-02,
    -2.95459980854025e-03,
    -7.34990630326855e-04,
    -5.69250639462346e-05,
    -2.10102402082508e-06,
    2.77068142495902e-08,
    -2.72614225801306e-10,
)
_ERF_Q = (
    -1.42647390514189e-02,
    -7.37332916720468e-03,
    -1.68282697438203e-03,
    -2.13374055278905e-04,
    -1.45660718464996e-05,
)

# asin(x) = x + x * x^2 * P(x^2) for |x| < 1/2
_ASIN = (1.666675393e-1, 7.495241741e-2, 4.547710262e-2, 2.414758155e-2, 4.221860161e-2)
# atan(x) = x + x * x^2 * P(x^2) for |x| < tan(pi / 8)
_ATAN = (-3.33333155e-1, 1.999848942e-1, -1.424384846e-1, 1.059599954e-1, -6.08344833e-2)
_TAN_EIGHTH, _TAN_THREE_EIGHTHS = 0.4142135623730951, 2.414213562373095  # of pi
# sin(x) = x * P(x^2) and cos(x) = P(x^2) for |x| < pi / 4
_SIN = (1.0, -1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COS = (1.0, -0.5, 4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
_TWO_OVER_PI = 0.6366197723675814
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963267341256, 6.077100506506192e-11  # the first has 33 bits
_MOST_SINE = 6e7
"""Numbers further from 0 are moved to it: beyond, neighbours in float32 are 4 and more apart, and
the reduction to a quarter of a circle runs out of bits."""

Expand: TypeAlias = "Callable[[Expr, str], Expr]"

_ARGUMENT = "argument"
_DEEPEST = 2
"""How deep nested functions are expanded; a third one is called for each lane. To analyse
let-bindings, TVM's code generator substitutes them: that takes minutes for three functions."""


@tvm.transform.module_pass(opt_level=0, name="ExpandMath")
class ExpandMath:
    """See the module docstring; only float32 is expanded.

    Args:
        doubles: whether the processor has vectors of float64, which sines and cosines need.
    """

    def __init__(self, doubles: bool = False) -> None:
        self.doubles = doubles

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, self._expanded)

    def _expanded(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        expansion = _Expansion(_EXPANSIONS | (_OF_DOUBLES if self.doubles else {}))
        rules = (Call, expansion.expand), (tirx.BufferStore, expansion.remember)
        return func.with_body(rewrite(func.body, *rules))


class _Expansion:
    """Expands the functions of one kernel, and counts how deep they are nested in each buffer."""

    def __init__(self, expansions: Mapping[str, Expand]) -> None:
        self._expansions = expansions
        self._depth_of: dict[object, int] = {}

    def expand(self, call: Call) -> Expr:
        """The expansion of a call; the call itself if it has none."""
        name = call.op.name if isinstance(call.op, Op) else ""
        if name not in self._expansions or str(call.ty.dtype) != "float32":
            return call
        depth = 1 + self._depth(call.args[0])
        if depth > _DEEPEST:
            return call
        return self._expansions[name](call.args[0], f"{_ARGUMENT}{depth}")

    def remember(self, store: tirx.BufferStore) -> tirx.BufferStore:
        """Record the depth of a stored value: readers of the buffer may be fused with it."""
        self._depth_of[store.buffer] = self._depth(store.value)
        return store

    def _depth(self, value: Expr) -> int:
        loads = nodes_of(value, TensorLoad)
        copies = nodes_of(value, tirx.Let)
        names = [copy.var.name for copy in copies if copy.var.name.startswith(_ARGUMENT)]
        return max(
            [0]
            + [int(name.removeprefix(_ARGUMENT)) for name in names]
            + [self._depth_of.get(load.source, 0) for load in loads]
        )


def _sigmoid(x: Expr, name: str) -> Expr:
    return f32(1.0) / (f32(1.0) + exponential(f32(0.0) - x, name))


def _odd_rational(
    x: Expr, name: str, limit: float, numerator: tuple[float, ...], denominator: tuple[float, ...]
) -> Expr:
    """``x P(x^2) / Q(x^2)`` up to ``limit``, and from there exactly 1 with the sign of ``x``.

    GELU needs exactly 1: its ``x * (1 + tanh(x))`` is -1e23 for -1e30 if 1e-7 is missing.
    """

    def ratio(x: tirx.Var, square: Expr) -> Expr:
        inside = x * polynomial(square, numerator) / polynomial(square, denominator)
        one = tirx.Select(x < f32(0.0), f32(-1.0), f32(1.0))
        return tirx.Select(tirx.abs(x) > f32(limit), one, inside)

    return let(name, x, lambda x: let("square", x * x, lambda square: ratio(x, square)))


def _tanh(x: Expr, name: str) -> Expr:
    return _odd_rational(x, name, 7.9, _TANH_P, _TANH_Q)


def _erf(x: Expr, name: str) -> Expr:
    return _odd_rational(x, name, 3.6, _ERF_P, _ERF_Q)


def _asin(x: Expr, name: str) -> Expr:
    def either(x: Expr) -> Expr:
        def of_angle(angle: Expr) -> Expr:
            size = tirx.Select(_is_steep(x), f32(math.pi / 2) - f32(2.0) * angle, angle)
            return with_sign(size, x)

        return _small_angle(x, of_angle)

    return let(name, x, either)


def _acos(x: Expr, name: str) -> Expr:
    def either(x: Expr) -> Expr:
        def of_angle(angle: Expr) -> Expr:
            double = f32(2.0) * angle
            steep = tirx.Select(x < f32(0.0), f32(math.pi) - double, double)
            flat = tirx.Select(x < f32(0.0), f32(math.pi / 2) + angle, f32(math.pi / 2) - angle)
            return tirx.Select(_is_steep(x), steep, flat)

        return _small_angle(x, of_angle)

    return let(name, x, either)


def _is_steep(x: Expr) -> Expr:
    """Whether the slope of asin at ``x`` is too large for its polynomial."""
    return tirx.abs(x) > f32(0.5)


def _small_angle(x: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """``body`` of asin(|x|), or, where that is steep, of asin(sqrt((1 - |x|) / 2)).

    Half the angle between |x| and 1 has a small sine, so its polynomial loses no bits.
    """

    def angle(sine: Expr) -> Expr:
        square = sine * sine
        return sine + sine * square * polynomial(square, _ASIN)

    half = tirx.sqrt(f32(0.5) - f32(0.5) * tirx.abs(x))
    sine = tirx.Select(_is_steep(x), half, tirx.abs(x))
    return let("sine", sine, lambda sine: let("angle", angle(sine), body))


def _atan(x: Expr, name: str) -> Expr:
    """The angle from the nearest of 0, 45 and 90 degrees, and that angle."""

    def turned(x: Expr) -> Expr:
        size = tirx.abs(x)
        is_steep, is_flat = size > f32(_TAN_THREE_EIGHTHS), size <= f32(_TAN_EIGHTH)
        over = tirx.Select(is_steep, f32(-1.0), tirx.Select(is_flat, size, size - f32(1.0)))
        under = tirx.Select(is_steep, size, tirx.Select(is_flat, f32(1.0), size + f32(1.0)))
        nearest = tirx.Select(
            is_steep, f32(math.pi / 2), tirx.Select(is_flat, f32(0.0), f32(math.pi / 4))
        )

        def of_tangent(tangent: Expr) -> Expr:
            square = tangent * tangent
            angle = nearest + (tangent + tangent * square * polynomial(square, _ATAN))
            return with_sign(angle, x)

        return let("tangent", over / under, of_tangent)

    return let(name, x, turned)


def _quarters(x: Expr, name: str, shift: int) -> Expr:
    """The sine of ``x`` plus ``shift`` quarters of a circle.

    The rest of x in its quarter is computed in float64, so large arguments lose no bits.
    """

    def of_rest(rest: Expr, quarter: Expr) -> Expr:
        square = rest * rest
        is_cosine = tirx.any(quarter == f32(1.0), quarter == f32(3.0))
        value = tirx.Select(is_cosine, polynomial(square, _COS), rest * polynomial(square, _SIN))
        return tirx.Select(quarter >= f32(2.0), f32(0.0) - value, value)

    def reduced(wide: Expr, turns: Expr) -> Expr:
        rest = wide - turns * _f64(_HALF_PI_HIGH) - turns * _f64(_HALF_PI_LOW)
        shifted = turns + _f64(shift)
        quarter = shifted - _f64(4.0) * tirx.floor(shifted * _f64(0.25))
        return let(
            "rest",
            rest.astype("float32"),
            lambda rest: let("quarter", quarter.astype("float32"), lambda q: of_rest(rest, q)),
        )

    def of_wide(wide: Expr) -> Expr:
        turns = tirx.floor(wide * _f64(_TWO_OVER_PI) + _f64(0.5))
        return let("turns", turns, lambda turns: reduced(wide, turns))

    def clamped(x: Expr) -> Expr:
        finite = tirx.abs(x) <= f32(LARGEST)  # an infinity has no sine
        within = tirx.Select(finite, clamp(x, -_MOST_SINE, _MOST_SINE), f32(math.nan))
        return let("wide", within.astype("float64"), of_wide)

    return let(name, x, clamped)


def _f64(value: float) -> Expr:
    """A constant in float64."""
    return tirx.const(value, "float64")


_EXPANSIONS: dict[str, Expand] = {
    "tirx.exp": exponential,
    "tirx.log": logarithm,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
    "tirx.sinh": sinh,
    "tirx.cosh": cosh,
    "tirx.asin": _asin,
    "tirx.acos": _acos,
    "tirx.atan": _atan,
    "tirx.asinh": asinh,
    "tirx.acosh": acosh,
}

_OF_DOUBLES: dict[str, Expand] = {
    "tirx.sin": lambda x, name: _quarters(x, name, 0),
    "tirx.cos": lambda x, name: _quarters(x, name, 1),
}
