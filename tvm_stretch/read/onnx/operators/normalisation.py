"""Normalisation layers."""

from __future__ import annotations

from tvm import relax

from tvm_stretch.read.network_limits import MOST_ITERATIONS
from tvm_stretch.read.onnx.node import Node, converter
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.read.onnx.operators.layers import per_channel


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
