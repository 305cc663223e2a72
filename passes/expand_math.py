"""Write exp, sigmoid, tanh and erf as arithmetic that vector units have.

    y[i] = T.sigmoid(x[i])      ->      y[i] = 1 / (1 + <polynomial of -x[i]>)

LLVM has no vector form of these functions without a vector math library: it would call `expf` once
per lane.  The expansions are accurate to a few units in the last place and keep NaN and infinities.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Op
from tvm.ir.expr import TensorLoad

from tvm_stretch.rewriting import rewrite, rewrite_kernels
from tvm_stretch.targets.kernels.loops import f32

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; the first has few bits
_EXP_TERMS = (1.0, 1.0, 0.5, 1.6666665e-1, 4.1665796e-2, 8.3334519e-3, 1.3981999e-3, 1.9875691e-4)
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

_ARGUMENT = "argument"
_DEEPEST = 2
"""How deep nested functions are expanded; a third one is called for each lane. To analyse
let-bindings, TVM's code generator substitutes them: that takes minutes for three functions."""


@tvm.transform.module_pass(opt_level=0, name="ExpandMath")
class ExpandMath:
    """See the module docstring; only float32 is expanded."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return rewrite_kernels(mod, _expanded)


def _expanded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    expansion = _Expansion()
    rules = (Call, expansion.expand), (tirx.BufferStore, expansion.remember)
    return func.with_body(rewrite(func.body, *rules))


class _Expansion:
    """Expands the functions of one kernel, and counts how deep they are nested in each buffer."""

    def __init__(self) -> None:
        self._depth_of: dict[object, int] = {}

    def expand(self, call: Call) -> Expr:
        """The expansion of a call; the call itself if it has none."""
        name = call.op.name if isinstance(call.op, Op) else ""
        if name not in _EXPANSIONS or str(call.ty.dtype) != "float32":
            return call
        depth = 1 + self._depth(call.args[0])
        if depth > _DEEPEST:
            return call
        return _EXPANSIONS[name](call.args[0], f"{_ARGUMENT}{depth}")

    def remember(self, store: tirx.BufferStore) -> tirx.BufferStore:
        """Record the depth of a stored value: readers of the buffer may be fused with it."""
        self._depth_of[store.buffer] = self._depth(store.value)
        return store

    def _depth(self, value: Expr) -> int:
        copies: list[tirx.Let] = []
        loads: list[TensorLoad] = []
        tvm_ffi.structural_walk(value, [(tirx.Let, copies.append), (TensorLoad, loads.append)])
        names = [copy.var.name for copy in copies if copy.var.name.startswith(_ARGUMENT)]
        return max(
            [0]
            + [int(name.removeprefix(_ARGUMENT)) for name in names]
            + [self._depth_of.get(load.source, 0) for load in loads]
        )


def _polynomial(x: Expr, terms: tuple[float, ...]) -> Expr:
    """``terms[0] + x * (terms[1] + x * (...))``."""
    total = f32(terms[-1])
    for term in reversed(terms[:-1]):
        total = total * x + f32(term)
    return total


def _let(name: str, value: Expr, body: Callable[[tirx.Var], Expr]) -> Expr:
    """``body`` of one copy of ``value``; without it nested expansions would grow exponentially."""
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _clamp(x: tirx.Var, low: float, high: float) -> Expr:
    """``x`` within bounds; NaN stays NaN, since comparisons with it are false."""
    raised = tirx.Select(x < f32(low), f32(low), x)
    return tirx.Select(x > f32(high), f32(high), raised)


def _exp(x: Expr, name: str) -> Expr:
    """2^n * e^r with r in [-ln2/2, ln2/2]; 2^n as two factors, since n may be -150 or 128."""

    def scaled(clamped: Expr, n: Expr) -> Expr:
        r = clamped - n * f32(_LN2_HIGH) - n * f32(_LN2_LOW)
        return _let(
            "whole",
            n.astype("int32"),
            lambda whole: (
                _let("r", r, lambda r: _polynomial(r, _EXP_TERMS))
                * _power_of_two(whole >> 1)
                * _power_of_two(whole - (whole >> 1))
            ),
        )

    def reduced(clamped: Expr) -> Expr:
        n = tirx.floor(clamped * f32(_LOG2_E) + f32(0.5))
        return _let("n", n, lambda n: scaled(clamped, n))

    return _let(name, x, lambda x: _let("clamped", _clamp(x, -104.0, 89.0), reduced))


def _power_of_two(exponent: Expr) -> Expr:
    return tirx.reinterpret("float32", (exponent + 127) << 23)


def _sigmoid(x: Expr, name: str) -> Expr:
    return f32(1.0) / (f32(1.0) + _exp(f32(0.0) - x, name))


def _odd_rational(
    x: Expr, name: str, limit: float, numerator: tuple[float, ...], denominator: tuple[float, ...]
) -> Expr:
    """``x P(x^2) / Q(x^2)``, with ``x`` clamped to ``limit``."""

    def ratio(clamped: Expr) -> Expr:
        return _let(
            "square",
            clamped * clamped,
            lambda s: clamped * _polynomial(s, numerator) / _polynomial(s, denominator),
        )

    return _let(name, x, lambda x: _let("clamped", _clamp(x, -limit, limit), ratio))


def _tanh(x: Expr, name: str) -> Expr:
    return _odd_rational(x, name, 7.9, _TANH_P, _TANH_Q)


def _erf(x: Expr, name: str) -> Expr:
    return _odd_rational(x, name, 4.0, _ERF_P, _ERF_Q)


_EXPANSIONS: dict[str, Callable[[Expr, str], Expr]] = {
    "tirx.exp": _exp,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
}
