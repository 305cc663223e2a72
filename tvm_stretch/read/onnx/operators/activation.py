"""Activation functions and normalisation layers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.read.network_limits import MOST_ITERATIONS
from tvm_stretch.read.onnx.node import Node, Value, converter
from tvm_stretch.read.onnx.operators.elementwise import cast, constant
from tvm_stretch.read.onnx.operators.layers import per_channel
from tvm_stretch.read.onnx.operators.reduction import place_of_extreme

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
    one = Node(node.op, node.name, node.opset, [x], {}, ["place"], node.bb)
    best = place_of_extreme(one, axis, largest=True, last=False, keepdims=True)
    steps = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return relax.op.astype(relax.op.equal(constant(steps, "int64"), best), node.dtype())


@converter("BatchNormalization")
def _batch_norm(node: Node) -> relax.Expr | tuple[relax.Expr, ...]:
    if node.attr("training_mode", 0):
        return _batch_norm_of_batch(node)
    if len([name for name in node.outputs if name]) > 1:
        raise node.refuse("one output, or training_mode=1", "statistics of the batch")
    parameters = [node[index] for index in range(1, 5)]
    normed = relax.op.nn.batch_norm(
        node[0], *parameters, axis=1, epsilon=node.attr("epsilon", 1e-5), training=False
    )
    return relax.TupleGetItem(node.emit(normed), 0)


def _batch_norm_of_batch(node: Node) -> tuple[relax.Expr, ...]:
    """By the statistics of the batch, which also move the running ones."""
    x, scale, shift, *running = (node[index] for index in range(5))
    axes = [axis for axis in range(node.rank()) if axis != 1]
    normed, mean, _ = standardise(node, x, axes, node.attr("epsilon", 1e-5))
    shape = relax.ShapeExpr([1, node.shape()[1], *(1 for _ in axes[1:])])
    factor, summand = (node.emit(relax.op.reshape(value, shape)) for value in (scale, shift))
    result = relax.op.add(node.emit(relax.op.multiply(normed, factor)), summand)
    moved, momentum = [], node.attr("momentum", 0.9)
    for value, now in zip(running, (mean, relax.op.variance(x, axes)), strict=True):
        dtype = str(value.ty.dtype)
        flat = node.emit(relax.op.reshape(now, value.ty.shape))
        new = relax.op.multiply(relax.op.astype(flat, dtype), node.scalar(1 - momentum, dtype))
        old = node.emit(relax.op.multiply(value, node.scalar(momentum, dtype)))
        moved.append(relax.op.add(old, node.emit(new)))
    return result, *moved


def standardise(
    node: Node, x: relax.Expr, axes: list[int], epsilon: float
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """``(x - mean) / sqrt(var + epsilon)`` over ``axes``, with the mean and the factor."""
    dtype = str(x.ty.dtype)
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(x, mean))
    var = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    spread = relax.op.sqrt(relax.op.add(var, node.scalar(epsilon, dtype)))
    factor = node.emit(relax.op.divide(node.scalar(1, dtype), spread))
    return node.emit(relax.op.multiply(centred, factor)), mean, factor


@converter("InstanceNormalization")
def _instance_norm(node: Node) -> relax.Expr:
    channels, rank = node.shape()[1], node.rank() - 2
    normed, _, _ = standardise(
        node, node[0], list(range(2, node.rank())), node.attr("epsilon", 1e-5)
    )
    scaled = relax.op.multiply(normed, per_channel(node, 1, channels, rank))
    return relax.op.add(scaled, per_channel(node, 2, channels, rank))


@converter("MeanVarianceNormalization")
def _mean_variance_norm(node: Node) -> relax.Expr:
    axes = [axis % node.rank() for axis in node.attr("axes", [0, 2, 3])]
    x = node[0]
    mean = node.emit(relax.op.mean(x, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(x, mean))
    var = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    spread = relax.op.add(relax.op.sqrt(var), node.scalar(1e-9))
    return relax.op.divide(centred, spread)


@converter("LayerNormalization")
def _layer_norm(node: Node) -> tuple[relax.Expr, ...]:
    axes = list(range(node.axis(-1), node.rank()))
    dtype = node.dtype()
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = node.emit(cast(node, node[0], wide)) if wide != dtype else node[0]
    normed, mean, factor = standardise(node, x, axes, node.attr("epsilon", 1e-5))
    result = relax.op.multiply(cast(node, normed, dtype), node[1])
    if node.has(2):
        result = relax.op.add(result, node[2])
    return result, mean, factor


@converter("LRN")
def _lrn(node: Node) -> relax.Expr:
    size, rank, channels = node.attr("size"), node.rank(), node.shape()[1]
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    if size > MOST_ITERATIONS:
        raise node.refuse(f"a size of at most {MOST_ITERATIONS}", str(size))
    before = (size - 1) // 2
    square = node.emit(relax.op.multiply(node[0], node[0]))
    pads = [0, 0, before, size - 1 - before] + [0, 0] * (rank - 2)
    padded = node.emit(relax.op.nn.pad(square, pads))
    total = None
    for offset in range(size):
        part = node.emit(relax.op.strided_slice(padded, [1], [offset], [offset + channels], [1]))
        total = part if total is None else node.emit(relax.op.add(total, part))
    scaled = relax.op.add(relax.op.multiply(total, node.scalar(alpha / size)), node.scalar(bias))
    return relax.op.divide(node[0], relax.op.power(scaled, node.scalar(beta)))


@converter("LpNormalization")
def _lp_norm(node: Node) -> relax.Expr:
    axis, p = [node.axis(-1)], node.attr("p", 2)
    if p not in (1, 2):
        raise node.refuse("p of 1 or 2", str(p))
    if p == 1:
        norm = relax.op.sum(relax.op.abs(node[0]), axis, keepdims=True)
    else:
        square = relax.op.multiply(node[0], node[0])
        norm = relax.op.sqrt(relax.op.sum(square, axis, keepdims=True))
    norm = node.emit(norm)
    zero = node.scalar(0)
    safe = relax.op.where(relax.op.equal(norm, zero), node.scalar(1), norm)
    return relax.op.divide(node[0], safe)
