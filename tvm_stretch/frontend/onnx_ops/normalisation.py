"""Normalisation layers and softmax."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.frontend.onnx_importer import Node, as_expr, converter


@converter("BatchNormalization")
def _batch_norm(node: Node) -> relax.Expr:
    if node.attr("training_mode", 0):
        raise node.refuse("inference mode", "training_mode=1")
    epsilon = node.attr("epsilon", 1e-5)
    parameters = [node[index] for index in range(1, 5)]
    normed = relax.op.nn.batch_norm(node[0], *parameters, axis=1, epsilon=epsilon, training=False)
    return relax.TupleGetItem(node.emit(normed), 0)


@converter("Softmax", "LogSoftmax")
def _softmax(node: Node) -> relax.Expr:
    function = relax.op.nn.softmax if node.op == "Softmax" else relax.op.nn.log_softmax
    shape = node.shape()
    if node.opset >= 13:
        return function(node[0], axis=node.attr("axis", -1))
    axis = node.attr("axis", 1) % len(shape)
    flat = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
    return relax.op.reshape(function(relax.op.reshape(node[0], flat), axis=1), shape)


@converter("LRN")
def _lrn(node: Node) -> relax.Expr:
    size, dtype, rank = node.attr("size"), node.dtype(), len(node.shape())
    alpha, beta, bias = node.attr("alpha", 1e-4), node.attr("beta", 0.75), node.attr("bias", 1.0)
    before = (size - 1) // 2
    square = node.emit(relax.op.multiply(node[0], node[0]))
    pads = [0, 0, before, size - 1 - before] + [0, 0] * (rank - 2)
    padded = node.emit(relax.op.nn.pad(square, pads))
    channels = node.shape()[1]
    total = None
    for offset in range(size):
        part = node.emit(relax.op.strided_slice(padded, [1], [offset], [offset + channels], [1]))
        total = part if total is None else node.emit(relax.op.add(total, part))
    scaled = relax.op.add(
        relax.op.multiply(total, as_expr(np.asarray(alpha / size, dtype))), as_expr(np.asarray(bias, dtype))
    )
    return relax.op.divide(node[0], relax.op.power(scaled, as_expr(np.asarray(beta, dtype))))
