"""Layers with weights: convolutions and dense layers."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.frontend.onnx_importer import Node, Value, as_expr, converter


def spatial_padding(node: Node, size: list[int], window: list[int], stride: list[int], dilation: list[int]) -> list[int]:
    """Explicit padding (all begins, then all ends) of a sliding-window node."""
    mode = node.attr("auto_pad", "NOTSET")
    rank = len(window)
    if mode in ("NOTSET", ""):
        return [int(p) for p in node.attr("pads", [0] * 2 * rank)]
    if mode == "VALID":
        return [0] * 2 * rank
    begins, ends = [], []
    for extent, k, s, d in zip(size, window, stride, dilation, strict=True):
        total = max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
        small, large = total // 2, total - total // 2
        begins.append(large if mode == "SAME_LOWER" else small)
        ends.append(small if mode == "SAME_LOWER" else large)
    return begins + ends


def channel_bias(value: Value, rank: int) -> relax.Expr:
    """A bias of shape (C,) as (1, C, 1, ..): a constant stays a constant."""
    shape = (1, -1) + (1,) * rank
    if isinstance(value, np.ndarray):
        return as_expr(value.reshape(shape))
    return relax.op.reshape(value, shape)


@converter("Conv")
def _conv(node: Node) -> relax.Expr:
    weight = node.shape(1)
    rank = len(weight) - 2
    functions = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
    if rank not in functions or len(node.shape()) != rank + 2:
        raise node.refuse("1 to 3 spatial dimensions", str(rank))
    stride = list(node.attr("strides", [1] * rank))
    dilation = list(node.attr("dilations", [1] * rank))
    result = functions[rank](
        node[0],
        node[1],
        strides=stride,
        padding=spatial_padding(node, node.shape()[2:], weight[2:], stride, dilation),
        dilation=dilation,
        groups=node.attr("group", 1),
    )
    if node.has(2):
        result = relax.op.add(node.emit(result), channel_bias(node.inputs[2], rank))
    return result


@converter("MatMul")
def _matmul(node: Node) -> relax.Expr:
    return relax.op.matmul(node[0], node[1])


@converter("Gemm")
def _gemm(node: Node) -> relax.Expr:
    dtype = node.dtype()
    a = relax.op.permute_dims(node[0]) if node.attr("transA", 0) else node[0]
    b = node.inputs[1]
    if node.attr("transB", 0):
        b = np.ascontiguousarray(b.T) if isinstance(b, np.ndarray) else relax.op.permute_dims(b)
    result = node.emit(relax.op.matmul(a, as_expr(b)))
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if alpha != 1.0:
        result = node.emit(relax.op.multiply(result, relax.const(alpha, dtype)))
    if node.has(2) and beta != 0.0:
        bias = node[2]
        if beta != 1.0:
            bias = relax.op.multiply(bias, relax.const(beta, dtype))
        result = relax.op.add(result, bias)
    return result
