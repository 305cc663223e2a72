"""Element-wise operators: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

import numpy as np
import onnx
from tvm import relax

from tvm_stretch.frontend.onnx_importer import CONVERTERS, Node, Value, converter

_UNARY = {
    "Abs": relax.op.abs, "Acos": relax.op.acos, "Acosh": relax.op.acosh, "Asin": relax.op.asin,
    "Asinh": relax.op.asinh, "Atan": relax.op.atan, "Atanh": relax.op.atanh, "Ceil": relax.op.ceil,
    "Cos": relax.op.cos, "Cosh": relax.op.cosh, "Erf": relax.op.erf, "Exp": relax.op.exp,
    "Floor": relax.op.floor, "Log": relax.op.log, "Neg": relax.op.negative,
    "Not": relax.op.logical_not, "Relu": relax.op.nn.relu, "Round": relax.op.round,
    "Sigmoid": relax.op.sigmoid, "Sign": relax.op.sign, "Sin": relax.op.sin, "Sinh": relax.op.sinh,
    "Sqrt": relax.op.sqrt, "Tan": relax.op.tan, "Tanh": relax.op.tanh, "IsNaN": relax.op.isnan,
    "Softplus": relax.op.nn.softplus, "BitwiseNot": relax.op.bitwise_not,
}  # fmt: skip

_BINARY = {
    "Add": relax.op.add, "Sub": relax.op.subtract, "Mul": relax.op.multiply, "Pow": relax.op.power,
    "And": relax.op.logical_and, "Or": relax.op.logical_or, "Xor": relax.op.logical_xor,
    "Equal": relax.op.equal, "Greater": relax.op.greater, "Less": relax.op.less,
    "GreaterOrEqual": relax.op.greater_equal, "LessOrEqual": relax.op.less_equal,
    "BitwiseAnd": relax.op.bitwise_and, "BitwiseOr": relax.op.bitwise_or,
    "BitwiseXor": relax.op.bitwise_xor,
}  # fmt: skip


def scalar(value: float, dtype: str) -> relax.Expr:
    """A constant of rank 0."""
    return relax.const(value, dtype)


for _name, _function in _UNARY.items():
    CONVERTERS[_name] = lambda node, function=_function: function(node[0])
for _name, _function in _BINARY.items():
    CONVERTERS[_name] = lambda node, function=_function: function(node[0], node[1])


@converter("Identity", "Dropout")
def _identity(node: Node) -> Value:
    return node.inputs[0]


@converter("Div")
def _div(node: Node) -> relax.Expr:
    return relax.op.divide(node[0], node[1])


@converter("Reciprocal")
def _reciprocal(node: Node) -> relax.Expr:
    return relax.op.divide(scalar(1, node.dtype()), node[0])


@converter("Clip")
def _clip(node: Node) -> relax.Expr:
    low, high = node.attr("min"), node.attr("max")
    if node.opset >= 11:
        low, high = node.const(1, "min"), node.const(2, "max")
    dtype = np.dtype(node.dtype())
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    low = limits.min if low is None else np.asarray(low).item()
    high = limits.max if high is None else np.asarray(high).item()
    return relax.op.clip(node[0], relax.prim_value(low), relax.prim_value(high))


@converter("LeakyRelu")
def _leaky_relu(node: Node) -> relax.Expr:
    return relax.op.nn.leakyrelu(node[0], node.attr("alpha", 0.01))


@converter("HardSigmoid")
def _hard_sigmoid(node: Node) -> relax.Expr:
    return hard_sigmoid(node[0], node.attr("alpha", 0.2), node.attr("beta", 0.5), node.dtype())


def hard_sigmoid(x: relax.Expr, alpha: float, beta: float, dtype: str) -> relax.Expr:
    """``clip(alpha * x + beta, 0, 1)``."""
    line = relax.op.add(relax.op.multiply(x, scalar(alpha, dtype)), scalar(beta, dtype))
    return relax.op.clip(line, relax.prim_value(0.0), relax.prim_value(1.0))


@converter("HardSwish")
def _hard_swish(node: Node) -> relax.Expr:
    return relax.op.multiply(node[0], hard_sigmoid(node[0], 1 / 6, 0.5, node.dtype()))


@converter("Swish")
def _swish(node: Node) -> relax.Expr:
    alpha = node.attr("alpha", 1.0)
    if alpha == 1.0:
        return relax.op.nn.silu(node[0])
    return relax.op.multiply(node[0], relax.op.sigmoid(relax.op.multiply(node[0], scalar(alpha, node.dtype()))))


@converter("Cast")
def _cast(node: Node) -> relax.Expr:
    return relax.op.astype(node[0], str(onnx.helper.tensor_dtype_to_np_dtype(node.attr("to"))))


@converter("Where")
def _where(node: Node) -> relax.Expr:
    return relax.op.where(node[0], node[1], node[2])


@converter("Sum", "Max", "Min", "Mean")
def _variadic(node: Node) -> relax.Expr:
    function = {"Max": relax.op.maximum, "Min": relax.op.minimum}.get(node.op, relax.op.add)
    total = node[0]
    for index in range(1, len(node.inputs)):
        total = node.emit(function(total, node[index]))
    if node.op == "Mean":
        total = relax.op.multiply(total, scalar(1 / len(node.inputs), node.dtype()))
    return total
