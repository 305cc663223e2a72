"""Quantised operators, written out in integers and floats."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.frontend.onnx_node import Node, check_dtype, converter, dtype_of
from tvm_stretch.frontend.onnx_ops.layers import add_bias, convolve, not_empty


def _along_axis(node: Node, index: int, axis: int) -> relax.Expr:
    """A scale or zero point with the rank of input 0: per tensor, per axis or per block."""
    shape, target = node.shape(index), node.shape()
    if not shape or shape == [1]:
        return relax.op.reshape(node[index], ())
    block = node.attr("block_size", 0)
    if block:
        repeated = relax.op.repeat(node[index], block, axis)
        if shape[axis] * block == target[axis]:
            return node.emit(repeated)
        cut = relax.op.strided_slice(node.emit(repeated), [axis], [0], [target[axis]])
        return node.emit(cut)
    lined_up = [target[axis] if i == axis else 1 for i in range(len(target))]
    return node.emit(relax.op.reshape(node[index], lined_up))


@converter("DequantizeLinear")
def _dequantize(node: Node) -> relax.Expr:
    axis = node.axis(1) if node.rank() > 1 else 0
    dtype = node.dtype(1)
    if node.attr("output_dtype", 0):
        dtype = check_dtype(dtype_of(node.attr("output_dtype")), "output_dtype")
    x = relax.op.astype(node[0], "int32")
    if node.has(2):
        x = relax.op.subtract(x, relax.op.astype(_along_axis(node, 2, axis), "int32"))
    scale = _along_axis(node, 1, axis)
    result = relax.op.multiply(relax.op.astype(x, node.dtype(1)), scale)
    return relax.op.astype(result, dtype) if dtype != node.dtype(1) else result


@converter("QuantizeLinear")
def _quantize(node: Node) -> relax.Expr:
    axis = node.axis(1) if node.rank() > 1 else 0
    dtype = node.dtype(2) if node.has(2) else "uint8"
    if node.attr("output_dtype", 0):
        dtype = dtype_of(node.attr("output_dtype"))
    check_dtype(dtype, f"the result of {node.op} {node.name!r}")
    zero = _along_axis(node, 2, axis) if node.has(2) else None
    scaled = relax.op.divide(node[0], relax.op.astype(_along_axis(node, 1, axis), node.dtype()))
    return saturate(node, scaled, zero, dtype)


def saturate(node: Node, x: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Round to even, add the zero point, clip to the range of ``dtype``."""
    limits = np.iinfo(dtype)
    wide = node.emit(relax.op.astype(relax.op.round(x), "float32"))
    if zero is not None:
        wide = relax.op.add(wide, relax.op.astype(zero, "float32"))
    low, high = relax.prim_value(float(limits.min)), relax.prim_value(float(limits.max))
    return relax.op.astype(relax.op.clip(wide, low, high), dtype)


def _centred(node: Node, index: int, zero: int, lined_up: list[int] | None = None) -> relax.Expr:
    """Input ``index`` minus its zero point, as int32."""
    x = relax.op.astype(node[index], "int32")
    if not node.has(zero):
        return node.emit(x)
    offset = relax.op.astype(node[zero], "int32")
    if lined_up is not None and node.shape(zero) not in ([], [1]):
        offset = relax.op.reshape(offset, lined_up)
    elif node.shape(zero) == [1]:
        offset = relax.op.reshape(offset, ())
    return node.emit(relax.op.subtract(x, offset))


@converter("MatMulInteger")
def _matmul_integer(node: Node) -> relax.Expr:
    rows = [node.shape()[-2], 1] if node.rank() > 1 else None
    return relax.op.matmul(_centred(node, 0, 2, rows), _centred(node, 1, 3), out_dtype="int32")


@converter("ConvInteger")
def _conv_integer(node: Node) -> relax.Expr:
    per_channel = [node.shape(1)[0]] + [1] * (node.rank(1) - 1)
    x, weight = _centred(node, 0, 2), _centred(node, 1, 3, per_channel)
    return convolve(node, x, weight, node.shape(1))


@converter("QLinearMatMul")
def _qlinear_matmul(node: Node) -> relax.Expr:
    if any(np.prod(node.shape(i)) != 1 for i in (1, 2, 4, 5, 6, 7)):
        raise node.refuse("one scale and zero point per tensor", "several")
    product = relax.op.matmul(_centred(node, 0, 2), _centred(node, 3, 5), out_dtype="int32")
    return _requantize(node, product, (1, 4, 6), 7)


@converter("QLinearConv")
def _qlinear_conv(node: Node) -> relax.Expr:
    rank = node.rank(3) - 2
    per_channel = [node.shape(3)[0]] + [1] * (rank + 1)
    x, weight = _centred(node, 0, 2), _centred(node, 3, 5, per_channel)
    result = convolve(node, x, weight, node.shape(3))
    result = add_bias(node, not_empty(node, result), 8)
    return _requantize(node, result, (1, 4, 6), 7, [1, -1] + [1] * rank)


def _requantize(
    node: Node,
    x: relax.Expr,
    scales: tuple[int, int, int],
    zero: int,
    lined_up: list[int] | None = None,
) -> relax.Expr:
    """``x * (scale_a * scale_b / scale_y)`` in the output's integer type."""
    a, b, y = (relax.op.astype(_scale(node, index, lined_up), "float32") for index in scales)
    factor = relax.op.divide(relax.op.multiply(a, b), y)
    scaled = relax.op.multiply(relax.op.astype(x, "float32"), factor)
    offset = relax.op.reshape(node[zero], ())
    return saturate(node, node.emit(scaled), offset, node.dtype(zero))


def _scale(node: Node, index: int, lined_up: list[int] | None) -> relax.Expr:
    count = int(np.prod(node.shape(index)))
    shape = [count if size == -1 else size for size in lined_up or []] if count > 1 else []
    return relax.op.reshape(node[index], relax.ShapeExpr(shape))
