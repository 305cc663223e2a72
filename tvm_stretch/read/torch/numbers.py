"""Arithmetic and comparisons in torch's types, and as exact: far from 0, of infinities.

x + 1.5, of whole numbers        both become float32, as the result is
x.add(y, alpha=2)                TVM's importer drops the factor
n == 0.5, n > m                  both become the type that holds both
x ** n, 2 ** n, x.exp()          of whole numbers
log1p(x), expm1(x)               exact for small x, too
elu(x, 2, 1, 0.5)                with its scales: selu and celu
x % y            C's fmod, which is exact, moved to the sign of y
x // y           from that remainder: the quotient itself may round up to a whole number
x ** 0.5         a square root: pow(-inf, 0.5) is infinity
hypot(x, y)      without squares that overflow
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant
from tvm_stretch.read.torch.importer import Call, Converter

Function = Callable[..., relax.Expr]


class _Floats:
    """Emits arithmetic; numbers are constants of the type."""

    def __init__(self, call: Call, dtype: str = "") -> None:
        self._emit, self._dtype = call.emit, dtype or call.dtype

    def __call__(self, name: str, *values: relax.Expr | float) -> relax.Expr:
        """The result of Relax's operator of this name."""
        given = (v if isinstance(v, relax.Expr) else self.number(v) for v in values)
        return self._emit(getattr(relax.op, name)(*given))

    def number(self, value: float) -> relax.Expr:
        """A constant."""
        return constant(np.asarray(value, self._dtype))


def is_zero(value: Any) -> bool:
    """Whether a number or a constant of one number is zero: TVM divides no constant by it."""
    if isinstance(value, GenericConst):
        number = value.value.numpy()
        return bool(number.size == 1 and number.item() == 0)
    return not isinstance(value, relax.Expr) and value == 0


def divided(call: Call, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The quotient, also by a constant zero: a product with infinity is the same."""
    emit = _Floats(call, str(x.ty.dtype))
    if not is_zero(y):
        return emit("divide", x, y)
    return emit("multiply", x, float(np.copysign(np.inf, y.value.numpy().item())))


def _operands(call: Call) -> tuple[_Floats, relax.Expr, relax.Expr]:
    x, y = map(call.typed, call.args[:2])
    return _Floats(call), x, y


def _truncated(emit: _Floats, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """C's fmod; of a constant zero it is NaN, as it is of infinite ``x``."""
    if is_zero(y):
        return emit("multiply", x, float("nan"))
    return emit("mod", x, y)


def _is_apart(emit: _Floats, rest: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Whether a remainder has the wrong sign."""
    signs = emit("logical_xor", emit("less", rest, 0.0), emit("less", y, 0.0))
    return emit("logical_and", emit("not_equal", rest, 0.0), signs)


def _fmod(call: Call) -> relax.Expr:
    emit, x, y = _operands(call)
    return _truncated(emit, x, y) if "float" in call.dtype else emit("mod", x, y)


def _remainder(call: Call) -> relax.Expr:
    emit, x, y = _operands(call)
    if "float" not in call.dtype:
        return emit("floor_mod", x, y)
    rest = _truncated(emit, x, y)
    return emit("where", _is_apart(emit, rest, y), emit("add", rest, y), rest)


def floor_divided(call: Call, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The greatest whole number that is not above the quotient."""
    emit = _Floats(call, str(x.ty.dtype))
    if "float" not in str(x.ty.dtype):
        return emit("floor_divide", x, y)
    quotient = divided(call, x, y)
    if is_zero(y):
        return quotient
    rest = _truncated(emit, x, y)
    whole = emit("divide", emit("subtract", x, rest), y)
    whole = emit("where", _is_apart(emit, rest, y), emit("subtract", whole, 1.0), whole)
    below = emit("floor", whole)  # `whole` is one but for its rounding
    up = emit("greater", emit("subtract", whole, below), 0.5)
    below = emit("where", up, emit("add", below, 1.0), below)
    zero = emit("multiply", quotient, 0.0)  # with its sign
    result = emit("where", emit("equal", whole, 0.0), zero, below)
    return emit("where", emit("equal", y, 0.0), quotient, result)


def root(call: Call, x: relax.Expr, exponent: Any) -> relax.Expr | None:
    """A power of one half, or of minus one half; of other exponents nothing."""
    if exponent not in (0.5, -0.5):
        return None
    result = call.emit(relax.op.sqrt(x))
    if exponent > 0:
        return result
    return _Floats(call, str(x.ty.dtype))("divide", 1.0, result)


def _hypot(call: Call) -> relax.Expr:
    emit, x, y = _operands(call)
    x, y = emit("abs", x), emit("abs", y)
    most, least = emit("maximum", x, y), emit("minimum", x, y)
    ratio = emit("divide", least, most)
    scale = emit("sqrt", emit("add", emit("multiply", ratio, ratio), 1.0))
    zeros = emit("equal", most, 0.0)
    length = emit("where", zeros, most, emit("multiply", most, scale))
    infinite = emit("logical_or", emit("isinf", x), emit("isinf", y))
    nan = emit("logical_or", emit("isnan", x), emit("isnan", y))
    length = emit("where", nan, float("nan"), length)
    return emit("where", infinite, float("inf"), length)


def _softshrink(call: Call) -> relax.Expr:
    """A NaN is neither above nor below, and stays."""
    x, *rest = call.args
    emit = _Floats(call)
    edge = float(rest[0] if rest else call.node.kwargs.get("lambd", 0.5))
    inside = emit("multiply", x, 0.0)
    below = emit("where", emit("less", x, -edge), emit("add", x, edge), inside)
    return emit("where", emit("greater", x, edge), emit("subtract", x, edge), below)


def _negative(call: Call) -> relax.Expr:
    """Negated unsigned numbers wrap around."""
    if not call.dtype.startswith("uint"):
        return call.emit(relax.op.negative(call.x))
    return _Floats(call)("subtract", 0, call.x)


_OF_BOOLS = {
    relax.op.add: relax.op.logical_or,
    relax.op.multiply: relax.op.logical_and,
    relax.op.bitwise_and: relax.op.logical_and,
    relax.op.bitwise_or: relax.op.logical_or,
    relax.op.bitwise_xor: relax.op.logical_xor,
}


def _arithmetic(function: Function, *, turned: bool = False) -> Converter:
    """Both operands, the second one times ``alpha``, in the result's type."""

    def convert(call: Call) -> relax.Expr:
        x, y = map(call.typed, call.args[:2])
        x, y = (y, x) if turned else (x, y)
        alpha = call.get(2, "alpha", 1)
        if alpha != 1:
            y = call.emit(relax.op.multiply(y, relax.const(alpha, call.dtype)))
        applied = _OF_BOOLS.get(function, function) if call.dtype == "bool" else function
        return call.emit(applied(x, y))

    return convert


def _compared(function: Function) -> Converter:
    """Promote both operands to their common type, as torch does."""

    def convert(call: Call) -> relax.Expr:
        import torch

        kinds = [getattr(arg, "meta", {}).get("val", arg) for arg in call.node.args[:2]]
        dtype = str(torch.result_type(*kinds)).removeprefix("torch.")
        dtype = "int8" if dtype == "bool" else dtype  # TVM does not compare booleans
        x, y = (call.typed(value, dtype) for value in call.args[:2])
        return call.emit(function(x, y))

    return convert


def _unary(function: Function) -> Converter:
    """The result of whole numbers has fractions."""
    return lambda call: call.emit(function(call.typed(call.x)))


def _log1p(x: relax.Expr) -> relax.Expr:
    """``log(u) * x / (u - 1)`` with ``u = 1 + x``, whose two roundings are the same."""
    one = relax.const(1, x.ty.dtype)
    u = relax.op.add(x, one)
    rounded = relax.op.subtract(u, one)
    exact = relax.op.multiply(relax.op.log(u), relax.op.divide(x, rounded))
    exact = relax.op.where(relax.op.equal(rounded, x), relax.op.log(u), exact)
    return relax.op.where(relax.op.equal(u, one), x, exact)


def _expm1(x: relax.Expr) -> relax.Expr:
    """``2 * t / (1 - t)`` with ``t = tanh(x / 2)``, which is exact for small numbers."""
    one, two = (relax.const(number, x.ty.dtype) for number in (1, 2))
    t = relax.op.tanh(relax.op.divide(x, two))
    exact = relax.op.divide(relax.op.multiply(two, t), relax.op.subtract(one, t))
    near = relax.op.less(relax.op.abs(x), one)
    return relax.op.where(near, exact, relax.op.subtract(relax.op.exp(x), one))


def _of_numbers(function: Callable[[relax.Expr, Any], relax.Expr]) -> Function:
    return lambda x: function(x, lambda number: relax.const(number, x.ty.dtype))


_exp2 = _of_numbers(lambda x, const: relax.op.exp(relax.op.multiply(x, const(math.log(2)))))
_erfc = _of_numbers(lambda x, const: relax.op.subtract(const(1), relax.op.erf(x)))
_log2 = _of_numbers(lambda x, const: relax.op.multiply(relax.op.log(x), const(1 / math.log(2))))
_log10 = _of_numbers(lambda x, const: relax.op.multiply(relax.op.log(x), const(1 / math.log(10))))
_reciprocal = _of_numbers(lambda x, const: relax.op.divide(const(1), x))


def _power(call: Call) -> relax.Expr:
    base, exponent = call.args[:2]
    x = call.typed(base)
    if "float" in call.dtype:
        if (result := root(call, x, exponent)) is not None:
            return result
        return call.emit(relax.op.power(x, call.typed(exponent)))
    is_number = isinstance(exponent, int)
    y = np.asarray(exponent, call.dtype) if is_number else call.typed(exponent)
    return call.onnx("Pow", [x, y])


def _elu(call: Call) -> relax.Expr:
    """``scale * (x if x > 0 else alpha * (exp(x * input_scale) - 1))``."""
    emit, x = call.emit, call.x
    names = ("alpha", "scale", "input_scale")
    alpha, scale, inner = (call.get(1 + i, n, 1.0) for i, n in enumerate(names))
    dtype = x.ty.dtype
    below = relax.op.minimum(x, relax.const(0, dtype))
    if inner != 1:
        below = relax.op.multiply(below, relax.const(inner, dtype))
    grown = relax.op.subtract(relax.op.exp(below), relax.const(1, dtype))
    if alpha != 1:
        grown = relax.op.multiply(relax.const(alpha, dtype), grown)
    result = relax.op.add(relax.op.nn.relu(x), grown)
    return emit(result if scale == 1 else relax.op.multiply(relax.const(scale, dtype), result))


def _clamp(call: Call) -> relax.Expr:
    """Bounds are numbers, tensors or missing; the upper one wins."""
    emit, dtype = call.emit, call.dtype
    x = call.typed(call.x)
    low, high = _bounds(call)
    if any(isinstance(bound, float) and math.isnan(bound) for bound in (low, high)):
        return emit(relax.op.multiply(x, relax.const(math.nan, dtype)))
    if "float" in dtype and not any(isinstance(b, relax.Expr) for b in (low, high)):
        low = -math.inf if low is None else float(low)
        high = math.inf if high is None else float(high)
        bounds = (relax.prim_value(bound) for bound in (min(low, high), high))
        return emit(relax.op.clip(x, *bounds))
    for op, bound in (("Max", low), ("Min", high)):
        if bound is not None:
            x = call.onnx(op, [x, call.typed(bound)])
    return x


def _bounds(call: Call) -> tuple[Any, Any]:
    """The least and the largest number that stay."""
    if call.node.target.__name__.startswith("clamp_max"):
        return None, call.get(1, "max", None)
    return call.get(1, "min", None), call.get(2, "max", None)


def _where(call: Call) -> relax.Expr:
    condition, *values = call.args
    return call.emit(relax.op.where(condition, *map(call.typed, values)))


def _keeping_nan(function: Function) -> Function:
    """``T.max`` of NaN and a number is its second operand."""

    def keeping(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        result = function(x, y)
        return (
            relax.op.where(relax.op.isnan(x), x, result) if "float" in str(x.ty.dtype) else result
        )

    return keeping


_maximum, _minimum = map(_keeping_nan, (relax.op.maximum, relax.op.minimum))
_OF_BOOLS |= {_maximum: relax.op.logical_or, _minimum: relax.op.logical_and}


def _named(names: str, converter: Converter) -> dict[str, Converter]:
    return dict.fromkeys(names.split(), converter)


NUMBERS: dict[str, Converter] = {
    **_named("add.Tensor add.Scalar add_.Tensor", _arithmetic(relax.op.add)),
    **_named("sub.Tensor sub.Scalar", _arithmetic(relax.op.subtract)),
    **_named("rsub.Tensor rsub.Scalar", _arithmetic(relax.op.subtract, turned=True)),
    **_named("mul.Tensor mul.Scalar mul_.Tensor", _arithmetic(relax.op.multiply)),
    **_named("maximum.default max.other", _arithmetic(_maximum)),
    **_named("minimum.default min.other", _arithmetic(_minimum)),
    **_named("atan2.default", _arithmetic(relax.op.atan2)),
    **_named("logaddexp.default", _arithmetic(relax.op.log_add_exp)),
    **dict.fromkeys(("fmod.Scalar", "fmod.Tensor"), _fmod),
    **dict.fromkeys(
        ("remainder.Scalar", "remainder.Tensor", "remainder.Scalar_Tensor"), _remainder
    ),
    "hypot.default": _hypot,
    "softshrink.default": _softshrink,
    "neg.default": _negative,
    **{
        f"{name}.{kind}": _arithmetic(function)
        for name, function in (
            *((f"bitwise_{n}", getattr(relax.op, f"bitwise_{n}")) for n in ("and", "or", "xor")),
            *((f"__{n}__", getattr(relax.op, f"bitwise_{n}")) for n in ("and", "or", "xor")),
        )
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"{name}.{kind}": _compared(function)
        for name, function in {
            "eq": relax.op.equal,
            "ne": relax.op.not_equal,
            "lt": relax.op.less,
            "le": relax.op.less_equal,
            "gt": relax.op.greater,
            "ge": relax.op.greater_equal,
        }.items()
        for kind in ("Tensor", "Scalar")
    },
    **{
        f"{name}.default": _unary(getattr(relax.op, name))
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp"),
            *("log", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
        )
    },
    **{
        f"{name}.default": _unary(function)
        for name, function in {
            "log1p": _log1p,
            "expm1": _expm1,
            "exp2": _exp2,
            "erfc": _erfc,
            "log2": _log2,
            "log10": _log10,
            "reciprocal": _reciprocal,
        }.items()
    },
    **_named("pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor", _power),
    **_named("elu.default", _elu),
    **_named("clamp.default clamp.Tensor clamp_min.default clamp_min.Tensor", _clamp),
    **_named("clamp_max.default clamp_max.Tensor", _clamp),
    **_named("where.self", _where),
    **_named("__lshift__.Scalar __lshift__.Tensor", _arithmetic(relax.op.left_shift)),
    **_named("__rshift__.Scalar __rshift__.Tensor", _arithmetic(relax.op.right_shift)),
    **_named("bitwise_left_shift.Tensor", _arithmetic(relax.op.left_shift)),
    **_named("bitwise_right_shift.Tensor", _arithmetic(relax.op.right_shift)),
}
"""By torch's name."""
