"""Layers with weights: convolutions and dense layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from tvm_stretch.read.onnx.block_weights import blocks_of_product
from tvm_stretch.read.onnx.node import Node, as_expr, converter
from tvm_stretch.read.onnx.operators.block_layers import block_product

_CONV = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}


def spatial_padding(
    node: Node, size: list[int], window: list[int], stride: list[int], dilation: list[int]
) -> list[int]:
    """Explicit padding (all begins, then all ends) of a sliding-window node."""
    mode = node.attr("auto_pad", "NOTSET")
    rank = len(window)
    if mode in ("NOTSET", ""):
        return [int(p) for p in node.attr("pads", [0] * 2 * rank)]
    if mode not in ("VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.refuse("auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER", mode)
    if any(node.attr("pads", [])):
        raise node.refuse("pads or auto_pad", "both")
    if mode == "VALID":
        return [0] * 2 * rank
    totals = [
        max((-(-extent // s) - 1) * s + (k - 1) * d + 1 - extent, 0)
        for extent, k, s, d in zip(size, window, stride, dilation, strict=True)
    ]
    return split_padding(totals, lower=mode == "SAME_LOWER")


def split_padding(totals: list[int], *, lower: bool) -> list[int]:
    """Halve each total; the odd one goes to the begin if ``lower``, to the end otherwise."""
    small = [total // 2 for total in totals]
    large = [total - total // 2 for total in totals]
    return large + small if lower else small + large


def per_channel(node: Node, index: int, channels: int, rank: int) -> relax.Expr:
    """Input ``index`` of shape (C,) as (1, C, 1, ..): a constant stays a constant."""
    if node.shape(index) != [channels]:
        got = f"{node.shape(index)} for input {index}"
        raise node.refuse(f"a number for each of the {channels} channels", got)
    value, shape = node.inputs[index], (1, channels) + (1,) * rank
    if isinstance(value, np.ndarray):
        return as_expr(value.reshape(shape))
    return relax.op.reshape(value, shape)


def add_bias(node: Node, result: relax.Expr, index: int = 2) -> relax.Expr:
    """``result`` with the bias that input ``index`` may give."""
    if not node.has(index):
        return result
    result = node.emit(result)
    _, channels, *sizes = (int(dim) for dim in result.ty.shape.values)
    return relax.op.add(result, per_channel(node, index, channels, len(sizes)))


def not_empty(node: Node, result: relax.Expr) -> relax.Expr:
    """Refuse a window that fits nowhere into the map."""
    result = node.emit(result)
    sizes = [int(dim) for dim in result.ty.shape.values]
    if min(sizes[2:]) <= 0 < min(node.shape()):
        raise node.refuse("a window that fits into the map", f"a result of shape {sizes}")
    return result


def window_attributes(node: Node, rank: int) -> tuple[list[int], list[int]]:
    """Strides and dilations."""
    return list(node.attr("strides", [1] * rank)), list(node.attr("dilations", [1] * rank))


@converter("Conv")
def _conv(node: Node) -> relax.Expr:
    result = convolve(node, node[0], node[1], node.shape(1))
    return add_bias(node, not_empty(node, result))


def convolve(
    node: Node, x: relax.Expr, weight: relax.Expr, weight_shape: Sequence[int]
) -> relax.Expr:
    """The convolution of ``x`` that the attributes of ``node`` describe."""
    rank = len(weight_shape) - 2
    if rank not in _CONV or node.rank() != rank + 2:
        raise node.refuse("1 to 3 spatial dimensions", f"input of rank {node.rank()}")
    stride, dilation = window_attributes(node, rank)
    return _CONV[rank](
        x,
        weight,
        strides=stride,
        padding=spatial_padding(node, node.shape()[2:], list(weight_shape[2:]), stride, dilation),
        dilation=dilation,
        groups=node.attr("group", 1),
    )


@converter("ConvTranspose")
def _conv_transpose(node: Node) -> relax.Expr:
    rank = node.rank(1) - 2
    if rank not in _TRANSPOSED or node.rank() != rank + 2:
        raise node.refuse("1 to 3 spatial dimensions", f"input of rank {node.rank()}")
    stride, dilation = window_attributes(node, rank)
    for more, s, d in zip(node.attr("output_padding", []), stride, dilation, strict=False):
        if more >= max(s, d):
            raise node.refuse(f"output_padding below {max(s, d)}", str(more))
    pads, extra = _transposed_padding(node, rank, stride, dilation)
    taken = [0] * rank
    if all(more < s for more, s in zip(extra, stride, strict=True)):  # what TVM takes
        taken, extra = extra, taken
    result = _TRANSPOSED[rank](
        node[0],
        node[1],
        strides=stride,
        padding=[max(p, 0) for p in pads],
        output_padding=taken,
        dilation=dilation,
        groups=node.attr("group", 1),
    )
    if any(extra) or any(p < 0 for p in pads):
        # Rows that no input reaches are zero.
        widths = [0] * 4
        for axis in range(rank):
            widths += [max(-pads[axis], 0), max(-pads[rank + axis], 0) + extra[axis]]
        result = relax.op.nn.pad(node.emit(result), widths)
    return add_bias(node, not_empty(node, result))


def _transposed_padding(
    node: Node, rank: int, stride: list[int], dilation: list[int]
) -> tuple[list[int], list[int]]:
    """Padding of a transposed convolution, and the rows to add at the end of each axis.

    Output padding first takes back padding at the end; the rest of it adds rows of zeros.
    ``auto_pad`` cuts down to ``size * stride`` rows and, as in ONNX Runtime, adds none where there
    are fewer.
    """
    extra = list(node.attr("output_padding", [0] * rank))
    reach = [(k - 1) * d + 1 for k, d in zip(node.shape(1)[2:], dilation, strict=True)]
    size = node.shape()[2:]
    wanted = node.attr("output_shape")
    mode = node.attr("auto_pad", "NOTSET")
    whole = [s * (n - 1) + e + r for s, n, e, r in zip(stride, size, extra, reach, strict=True)]
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [min(n * s, w) for n, s, w in zip(size, stride, whole, strict=True)]
    if wanted is not None:
        totals = [w - v for w, v in zip(whole, list(wanted)[-rank:], strict=True)]
        extra = [e + max(-t, 0) for e, t in zip(extra, totals, strict=True)]
        pads = split_padding([max(t, 0) for t in totals], lower=mode != "SAME_UPPER")
    else:
        pads = spatial_padding(node, size, reach, stride, dilation)
    for axis in range(rank):
        taken = min(extra[axis], pads[rank + axis])
        pads[rank + axis] -= taken
        extra[axis] -= taken
    return pads, extra


@converter("MatMul")
def _matmul(node: Node) -> relax.Expr:
    if blocks := blocks_of_product(node):
        return block_product(node, node[0], blocks)
    return relax.op.matmul(node[0], node[1])


@converter("Gemm")
def _gemm(node: Node) -> relax.Expr:
    a = relax.op.permute_dims(node[0]) if node.attr("transA", 0) else node[0]
    if blocks := blocks_of_product(node):
        result = node.emit(block_product(node, node.emit(a), blocks))
    else:
        result = node.emit(relax.op.matmul(a, _right(node)))
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if alpha != 1.0:
        result = node.emit(relax.op.multiply(result, node.scalar(alpha)))
    if node.has(2) and beta != 0.0:
        bias = node[2] if beta == 1.0 else relax.op.multiply(node[2], node.scalar(beta))
        result = relax.op.add(result, bias)
    return result


def _right(node: Node) -> relax.Expr:
    """The right operand of a Gemm."""
    b = node.inputs[1]
    if node.attr("transB", 0):
        b = np.ascontiguousarray(b.T) if isinstance(b, np.ndarray) else relax.op.permute_dims(b)
    return as_expr(b)
