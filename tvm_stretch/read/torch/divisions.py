"""Divisions, remainders and roots of floats as torch computes them: far from 0, of infinities.

x % y            C's fmod, which is exact, moved to the sign of y
x // y           from that remainder: the quotient itself may round up to a whole number
x ** 0.5         a square root: pow(-inf, 0.5) is infinity
hypot(x, y)      without squares that overflow
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant
from tvm_stretch.read.torch.nodes import dtype_of, of_type

Converter = Callable[[Any, Any], relax.Expr]


class _Floats:
    """Emits arithmetic; numbers are constants of the type."""

    def __init__(self, importer: Any, dtype: str) -> None:
        self._builder, self._dtype = importer.block_builder, dtype

    def __call__(self, name: str, *values: relax.Expr | float) -> relax.Expr:
        """The result of Relax's operator of this name."""
        given = (v if isinstance(v, relax.Expr) else self.number(v) for v in values)
        return self._builder.emit(getattr(relax.op, name)(*given))

    def number(self, value: float) -> relax.Expr:
        """A constant."""
        return constant(np.asarray(value, self._dtype))


def is_zero(value: Any) -> bool:
    """Whether a number or a constant of one number is zero: TVM divides no constant by it."""
    if isinstance(value, GenericConst):
        found = value.value.numpy()
        return bool(found.size == 1 and found.item() == 0)
    return not isinstance(value, relax.Expr) and value == 0


def divided(importer: Any, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The quotient, also by a constant zero: a product with infinity is the same."""
    emit = _Floats(importer, str(x.ty.dtype))
    if not is_zero(y):
        return emit("divide", x, y)
    return emit("multiply", x, float(np.copysign(np.inf, y.value.numpy().item())))


def _operands(node: Any, importer: Any) -> tuple[_Floats, relax.Expr, relax.Expr]:
    dtype = dtype_of(node)
    x, y = (of_type(importer, value, dtype) for value in importer.retrieve_args(node)[:2])
    return _Floats(importer, dtype), x, y


def _truncated(emit: _Floats, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """C's fmod; of a constant zero it is NaN, as it is of infinite ``x``."""
    if is_zero(y):
        return emit("multiply", x, float("nan"))
    return emit("mod", x, y)


def _is_apart(emit: _Floats, rest: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Whether a remainder has the wrong sign."""
    signs = emit("logical_xor", emit("less", rest, 0.0), emit("less", y, 0.0))
    return emit("logical_and", emit("not_equal", rest, 0.0), signs)


def _fmod(node: Any, importer: Any) -> relax.Expr:
    emit, x, y = _operands(node, importer)
    return _truncated(emit, x, y) if "float" in dtype_of(node) else emit("mod", x, y)


def _remainder(node: Any, importer: Any) -> relax.Expr:
    emit, x, y = _operands(node, importer)
    if "float" not in dtype_of(node):
        return emit("floor_mod", x, y)
    rest = _truncated(emit, x, y)
    return emit("where", _is_apart(emit, rest, y), emit("add", rest, y), rest)


def floor_divided(importer: Any, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """The greatest whole number that is not above the quotient."""
    emit = _Floats(importer, str(x.ty.dtype))
    if "float" not in str(x.ty.dtype):
        return emit("floor_divide", x, y)
    quotient = divided(importer, x, y)
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


def root(importer: Any, x: relax.Expr, exponent: Any) -> relax.Expr | None:
    """A power of one half, or of minus one half; of other exponents nothing."""
    if exponent not in (0.5, -0.5):
        return None
    found = importer.block_builder.emit(relax.op.sqrt(x))
    if exponent > 0:
        return found
    return _Floats(importer, str(x.ty.dtype))("divide", 1.0, found)


def _hypot(node: Any, importer: Any) -> relax.Expr:
    emit, x, y = _operands(node, importer)
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


def _softshrink(node: Any, importer: Any) -> relax.Expr:
    """A NaN is neither above nor below, and stays."""
    x, *rest = importer.retrieve_args(node)
    emit = _Floats(importer, dtype_of(node))
    edge = float(rest[0] if rest else node.kwargs.get("lambd", 0.5))
    inside = emit("multiply", x, 0.0)
    below = emit("where", emit("less", x, -edge), emit("add", x, edge), inside)
    return emit("where", emit("greater", x, edge), emit("subtract", x, edge), below)


def _negative(node: Any, importer: Any) -> relax.Expr:
    """Negated unsigned numbers wrap around."""
    x, dtype = importer.env[node.args[0]], dtype_of(node)
    if not dtype.startswith("uint"):
        return importer.block_builder.emit(relax.op.negative(x))
    return _Floats(importer, dtype)("subtract", 0, x)


DIVISIONS: dict[str, Converter] = {
    **dict.fromkeys(("fmod.Scalar", "fmod.Tensor"), _fmod),
    **dict.fromkeys(
        ("remainder.Scalar", "remainder.Tensor", "remainder.Scalar_Tensor"), _remainder
    ),
    "hypot.default": _hypot,
    "softshrink.default": _softshrink,
    "neg.default": _negative,
}
"""By torch's name; `torch_numbers.py` has the others of arithmetic."""
