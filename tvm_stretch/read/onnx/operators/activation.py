"""Activation functions."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.node import Node, Value, converter
from tvm_stretch.read.onnx.operators.elementwise import constant

_SIMPLE = {"Relu": relax.op.nn.relu, "Sigmoid": relax.op.sigmoid, "Tanh": relax.op.tanh}


@converter(*_SIMPLE)
def _simple(node: Node) -> relax.Expr:
    return _SIMPLE[node.op](node[0])


@converter("Clip")
def _clip(node: Node) -> relax.Expr:
    if any(node.has(i) and not node.is_const(i) for i in (1, 2)):
        low = relax.op.maximum(node[0], node[1]) if node.has(1) else node[0]
        return relax.op.minimum(node.emit(low), node[2]) if node.has(2) else low
    low, high = node.attr("min"), node.attr("max")
    if node.opset >= 11:
        low, high = node.optional_const(1, "min"), node.optional_const(2, "max")
    return clip(node, node[0], low, high)


def clip(
    node: Node, x: relax.Expr, low: float | np.ndarray | None, high: float | np.ndarray | None
) -> relax.Expr:
    """``min(max(x, low), high)``: the upper bound wins where they cross."""
    if low is None and high is None:
        return x
    low = None if low is None else np.asarray(low).item()
    high = None if high is None else np.asarray(high).item()
    if "float" not in node.dtype():
        x = x if low is None else relax.op.maximum(x, node.scalar(low))
        return x if high is None else relax.op.minimum(x, node.scalar(high))
    low = -np.inf if low is None else low
    high = np.inf if high is None else high
    return relax.op.clip(x, relax.prim_value(float(min(low, high))), relax.prim_value(float(high)))


@converter("LeakyRelu")
def _leaky_relu(node: Node) -> relax.Expr:
    return relax.op.nn.leakyrelu(node[0], node.attr("alpha", 0.01))


@converter("PRelu")
def _prelu(node: Node) -> relax.Expr:
    positive = relax.op.nn.relu(node[0])
    negative = relax.op.multiply(relax.op.minimum(node[0], node.scalar(0)), node[1])
    return relax.op.add(positive, negative)


@converter("HardSigmoid")
def _hard_sigmoid(node: Node) -> relax.Expr:
    return hard_sigmoid(node, node.attr("alpha", 0.2), node.attr("beta", 0.5))


def hard_sigmoid(node: Node, alpha: float, beta: float) -> relax.Expr:
    """``clip(alpha * x + beta, 0, 1)``."""
    line = relax.op.add(relax.op.multiply(node[0], node.scalar(alpha)), node.scalar(beta))
    return relax.op.clip(line, relax.prim_value(0.0), relax.prim_value(1.0))


@converter("HardSwish")
def _hard_swish(node: Node) -> relax.Expr:
    return relax.op.multiply(node[0], hard_sigmoid(node, 1 / 6, 0.5))


@converter("Swish")
def _swish(node: Node) -> relax.Expr:
    alpha = node.attr("alpha", 1.0)
    if alpha == 1.0:
        return relax.op.nn.silu(node[0])
    return relax.op.multiply(
        node[0], relax.op.sigmoid(relax.op.multiply(node[0], node.scalar(alpha)))
    )


@converter("Elu", "Celu", "Selu")
def _elu(node: Node) -> relax.Expr:
    """``gamma * (x if x > 0 else alpha * (exp(x / scale) - 1))``."""
    alpha = node.attr("alpha", 1.67326319217681884765625 if node.op == "Selu" else 1.0)
    gamma = node.attr("gamma", 1.05070102214813232421875) if node.op == "Selu" else 1.0
    below = relax.op.minimum(node[0], node.scalar(0))
    if node.op == "Celu":
        below = relax.op.divide(below, node.scalar(alpha))
    grown = relax.op.subtract(relax.op.exp(below), node.scalar(1))
    result = relax.op.add(relax.op.nn.relu(node[0]), relax.op.multiply(node.scalar(alpha), grown))
    return relax.op.multiply(node.scalar(gamma), result) if gamma != 1.0 else result


@converter("Gelu")
def _gelu(node: Node) -> relax.Expr:
    exact = node.attr("approximate", "none") == "none"
    return (relax.op.nn.gelu if exact else relax.op.nn.gelu_tanh)(node[0])


@converter("Softplus")
def _softplus(node: Node) -> relax.Expr:
    """``max(x, 0) + log(1 + e)`` with ``e = exp(-|x|)``, as a series where 1 + e loses e."""
    e = node.emit(relax.op.exp(relax.op.negative(relax.op.abs(node[0]))))
    square = relax.op.multiply(e, e)
    series = relax.op.subtract(e, relax.op.multiply(square, node.scalar(0.5)))
    whole = relax.op.log(relax.op.add(e, node.scalar(1)))
    grown = relax.op.where(relax.op.less(e, node.scalar(1e-3)), series, whole)
    return relax.op.add(relax.op.nn.relu(node[0]), grown)


@converter("Mish")
def _mish(node: Node) -> relax.Expr:
    """``x * n / (n + 2)`` with ``n = e * (e + 2)``, ``e = exp(x)``: tanh(softplus(x)) exactly."""
    e = node.emit(relax.op.exp(relax.op.minimum(node[0], node.scalar(20))))
    n = node.emit(relax.op.multiply(e, relax.op.add(e, node.scalar(2))))
    ratio = relax.op.divide(n, relax.op.add(n, node.scalar(2)))
    return relax.op.multiply(node[0], ratio)


@converter("Softsign")
def _softsign(node: Node) -> relax.Expr:
    return relax.op.divide(node[0], relax.op.add(relax.op.abs(node[0]), node.scalar(1)))


@converter("ThresholdedRelu")
def _thresholded_relu(node: Node) -> relax.Expr:
    above = relax.op.greater(node[0], node.scalar(node.attr("alpha", 1.0)))
    return relax.op.where(above, node[0], node.scalar(0))


@converter("Shrink")
def _shrink(node: Node) -> relax.Expr:
    limit, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    x, dtype = node[0], node.dtype()
    below = relax.op.less(x, constant(-limit, dtype))
    above = relax.op.greater(x, constant(limit, dtype))
    inner = relax.op.where(above, relax.op.subtract(x, constant(bias, dtype)), node.scalar(0))
    return relax.op.where(below, relax.op.add(x, constant(bias, dtype)), inner)


@converter("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: Node) -> Value:
    shape = node.shape()
    axis = node.axis(-1 if node.opset >= 13 else 1)
    function = {"Softmax": relax.op.nn.softmax, "LogSoftmax": relax.op.nn.log_softmax}.get(node.op)
    apply = function or (lambda x, axis: _hardmax(node, x, axis))
    if node.opset >= 13 or axis == len(shape) - 1:
        return apply(node[0], axis=axis)
    flat = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
    return relax.op.reshape(apply(node.emit(relax.op.reshape(node[0], flat)), axis=1), shape)


def _hardmax(node: Node, x: relax.Expr, axis: int) -> relax.Expr:
    shape = [int(dim) for dim in x.ty.shape.values]
    best = relax.op.argmax(x, axis=axis, keepdims=True)
    steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return relax.op.astype(relax.op.equal(constant(steps, "int64"), best), node.dtype())
