"""Arithmetic, comparison, bits and casts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tvm import relax, te, tirx

from tvm_stretch.passes.store_small_types import STORED
from tvm_stretch.read.onnx.node import (
    Node,
    Value,
    as_expr,
    check_dtype,
    converter,
    dtype_of,
    numpy_dtype,
)

_UNARY = {
    "Abs": relax.op.abs, "Acos": relax.op.acos, "Acosh": relax.op.acosh, "Asin": relax.op.asin,
    "Asinh": relax.op.asinh, "Atan": relax.op.atan, "Atanh": relax.op.atanh,
    "BitwiseNot": relax.op.bitwise_not, "Ceil": relax.op.ceil, "Cos": relax.op.cos,
    "Cosh": relax.op.cosh, "Erf": relax.op.erf, "Exp": relax.op.exp, "Floor": relax.op.floor,
    "IsNaN": relax.op.isnan, "Log": relax.op.log, "Neg": relax.op.negative,
    "Not": relax.op.logical_not, "Round": relax.op.round,
    "Sin": relax.op.sin, "Sinh": relax.op.sinh, "Sqrt": relax.op.sqrt, "Tan": relax.op.tan,
}  # fmt: skip

_BINARY = {
    "Add": relax.op.add, "And": relax.op.logical_and, "BitwiseAnd": relax.op.bitwise_and,
    "BitwiseOr": relax.op.bitwise_or, "BitwiseXor": relax.op.bitwise_xor, "Div": relax.op.divide,
    "Greater": relax.op.greater,
    "GreaterOrEqual": relax.op.greater_equal, "Less": relax.op.less,
    "LessOrEqual": relax.op.less_equal, "Mul": relax.op.multiply, "Or": relax.op.logical_or,
    "Sub": relax.op.subtract, "Xor": relax.op.logical_xor,
}  # fmt: skip


@converter(*_UNARY)
def _unary(node: Node) -> relax.Expr:
    return _UNARY[node.op](node[0])


@converter(*_BINARY)
def _binary(node: Node) -> relax.Expr:
    return _BINARY[node.op](node[0], node[1])


@converter("Identity", "Optional", "OptionalGetElement")
def _identity(node: Node) -> Value:
    return node.inputs[0]


@converter("OptionalHasElement")
def _has_element(node: Node) -> Value:
    return np.asarray(bool(node.inputs) and node.inputs[0] is not None)


@converter("Sign")
def _sign(node: Node) -> relax.Expr:
    sign = relax.op.sign(node[0])
    if "float" not in node.dtype():
        return sign
    return relax.op.where(relax.op.isnan(node[0]), node[0], sign)


@converter("Dropout")
def _dropout(node: Node) -> tuple[Value, ...]:
    training = node.has(2) and np.any(node.const(2, "training_mode"))
    if training and (not node.has(1) or np.any(node.const(1, "ratio"))):
        raise node.refuse("inference mode, or a ratio of 0", "training_mode=True, which is random")
    if len(node.outputs) == 1:
        return (node.inputs[0],)
    shape = relax.ShapeExpr(node.shape())
    dtype = "bool" if node.opset >= 10 else node.dtype()
    return node.inputs[0], relax.op.full(shape, node.scalar(value=True, dtype=dtype), dtype)


@converter("Reciprocal")
def _reciprocal(node: Node) -> relax.Expr:
    return relax.op.divide(node.scalar(1), node[0])


@converter("Pow")
def _pow(node: Node) -> relax.Expr:
    base, exponent = node.dtype(0), node.dtype(1)
    if base == exponent and "float" in base:
        return relax.op.power(node[0], node[1])
    if "float" in base:
        return relax.op.power(node[0], relax.op.astype(node[1], base))
    given = node.inputs[1]
    if isinstance(given, np.ndarray) and given.size == 1 and given.item() in (2, 3):
        square = node.emit(relax.op.multiply(node[0], node[0]))
        power = square if given.item() == 2 else node.emit(relax.op.multiply(square, node[0]))
        return relax.op.broadcast_to(power, np.broadcast_shapes(node.shape(), given.shape))
    wide = [node.emit(relax.op.astype(node[i], "float64")) for i in (0, 1)]
    return relax.op.astype(relax.op.power(*wide), base)


@converter("Mod")
def _mod(node: Node) -> relax.Expr:
    remainder = node.emit(relax.op.mod(node[0], node[1]))
    if node.attr("fmod", 0):
        return remainder
    if node.dtype().startswith("uint"):
        return remainder
    zero = node.scalar(0)
    signs_differ = relax.op.logical_xor(
        relax.op.less(remainder, zero), relax.op.less(node[1], zero)
    )
    wrong_side = relax.op.logical_and(relax.op.not_equal(remainder, zero), signs_differ)
    return relax.op.where(wrong_side, relax.op.add(remainder, node[1]), remainder)


@converter("BitShift")
def _bit_shift(node: Node) -> relax.Expr:
    """C leaves shifts by the width and more undefined; ONNX says that all bits leave."""
    dtype, left = node.dtype(), node.attr("direction") == "LEFT"
    signed = dtype.startswith("int")
    most = node.scalar(int(dtype[3 if signed else 4 :]) - 1)
    outside = relax.op.greater(node[1], most)
    if signed:
        outside = relax.op.logical_or(outside, relax.op.less(node[1], node.scalar(0)))
    outside = node.emit(outside)
    amount = relax.op.where(outside, most, node[1])
    shifted = (relax.op.left_shift if left else relax.op.right_shift)(node[0], amount)
    if signed and not left:
        return shifted  # by the largest amount: only copies of the sign are left
    return relax.op.where(outside, node.scalar(0), shifted)


@converter("BitCast")
def _bit_cast(node: Node) -> relax.Expr:
    dtype = check_dtype(dtype_of(node.attr("to")), f"the result of {node.op} {node.name!r}")
    if np.dtype(numpy_dtype(dtype)).itemsize != np.dtype(numpy_dtype(node.dtype())).itemsize:
        raise node.refuse("a type of the same size", f"{node.dtype()} to {dtype}")
    if "bool" in (dtype, node.dtype()):  # a byte that is 0 or 1
        if dtype == "bool":
            raise node.refuse("numbers", "bytes that become booleans, of which only 0 and 1 are")
        return relax.op.astype(node[0], dtype)
    bits = node.bb.emit_te(
        lambda x: te.compute(x.shape, lambda *i: tirx.reinterpret(dtype, x(*i))),
        node.emit(relax.op.reshape(node[0], node.shape() or [1])),  # a kernel needs an axis
        primfunc_name_hint="bit_cast",
    )
    return relax.op.reshape(bits, node.shape())


@converter("IsInf")
def _is_inf(node: Node) -> relax.Expr:
    tests = []
    if node.attr("detect_positive", 1):
        tests.append(relax.op.equal(node[0], node.scalar(np.inf)))
    if node.attr("detect_negative", 1):
        tests.append(relax.op.equal(node[0], node.scalar(-np.inf)))
    if not tests:
        return relax.op.full(
            relax.ShapeExpr(node.shape()), node.scalar(value=False, dtype="bool"), "bool"
        )
    return tests[0] if len(tests) == 1 else relax.op.logical_or(*tests)


@converter("Cast", "CastLike")
def _cast(node: Node) -> relax.Expr:
    dtype = node.dtype(1) if node.op == "CastLike" else dtype_of(node.attr("to"))
    check_dtype(dtype, f"the result of {node.op} {node.name!r}")
    if dtype not in STORED or "int" in dtype:
        return cast(node, node[0], dtype)
    return to_small_float(node, node[0], dtype, saturate=bool(node.attr("saturate", 1)))


def to_small_float(node: Node, x: relax.Expr, dtype: str, *, saturate: bool) -> relax.Expr:
    """``x`` in a float of 4 or 8 bits, clipped to its largest number if it shall ``saturate``."""
    if str(x.ty.dtype) == "float64" or dtype == "float8_e8m0fnu":
        raise node.refuse("a cast of float32 or less, not to e8m0", f"{x.ty.dtype} to {dtype}")
    wide = node.emit(relax.op.astype(x, "float32"))
    if saturate:
        most = float(ml_dtypes.finfo(dtype).max)
        wide = relax.op.clip(wide, relax.prim_value(-most), relax.prim_value(most))
    return relax.op.astype(wide, dtype)


def cast(node: Node, x: relax.Expr, dtype: str) -> relax.Expr:
    """``x`` as ``dtype``; anything but zero is true."""
    source = str(x.ty.dtype)
    if source == dtype:
        return x
    if dtype == "bool":
        if source in STORED:
            x, source = node.emit(relax.op.astype(x, "float32")), "float32"
        return relax.op.not_equal(x, node.scalar(0, source))
    return relax.op.astype(x, dtype)


@converter("Equal")
def _equal(node: Node) -> relax.Expr:
    if node.dtype() == "bool":  # TVM compares booleans as if they were floats
        return relax.op.logical_not(relax.op.logical_xor(node[0], node[1]))
    return relax.op.equal(node[0], node[1])


@converter("Where")
def _where(node: Node) -> relax.Expr:
    return relax.op.where(node[0], node[1], node[2])


@converter("Sum", "Mean")
def _sum(node: Node) -> relax.Expr:
    total = node[0]
    for index in range(1, len(node.inputs)):
        total = node.emit(relax.op.add(total, node[index]))
    if node.op == "Mean":
        total = relax.op.multiply(total, node.scalar(1 / len(node.inputs)))
    return total


@converter("Max", "Min")
def _extreme(node: Node) -> relax.Expr:
    """A NaN in either operand stays; a constant cannot hold one that matters."""
    function = relax.op.maximum if node.op == "Max" else relax.op.minimum
    best = node[0]
    for index in range(1, len(node.inputs)):
        other = node[index]
        larger = node.emit(function(best, other))
        scalar = node.is_const(index) and node.const(index, "bound").size == 1
        if "float" in node.dtype() and not scalar:
            larger = node.emit(relax.op.where(relax.op.isnan(best), best, larger))
        best = larger
    return best


def constant(value: float | np.ndarray, dtype: str) -> relax.Expr:
    """``value`` as a constant of ``dtype``."""
    return as_expr(np.asarray(value).astype(dtype))
