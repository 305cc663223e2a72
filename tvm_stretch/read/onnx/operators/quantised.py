"""Quantised operators: Relax's own where they say it, else written out in integers and floats."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant
from tvm_stretch.passes.decompose_quantisation import dequantised, quantised
from tvm_stretch.read.onnx.block_weights import check_scale
from tvm_stretch.read.onnx.node import Node, check_dtype, converter, dtype_of
from tvm_stretch.read.onnx.operators.layers import convolve


def _along_axis(node: Node, index: int, axis: int) -> relax.Expr:
    """A scale or zero point with the rank of input 0: per tensor, per axis or per block."""
    shape, target = node.shape(index), node.shape()
    if not shape or shape == [1]:
        return node.emit(relax.op.reshape(node[index], ()))
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
    check_scale(node)
    if is_plain(node, node.dtype(0), dtype):
        scale, zero = _constants(node, node.dtype(0))
        return relax.op.dequantize(node[0], scale, zero, axis=axis, out_dtype=dtype)
    zero = _along_axis(node, 2, axis) if node.has(2) else None
    return dequantised(node[0], _along_axis(node, 1, axis), zero, dtype)


@converter("QuantizeLinear")
def _quantize(node: Node) -> relax.Expr:
    axis = node.axis(1) if node.rank() > 1 else 0
    dtype = node.dtype(2) if node.has(2) else "uint8"
    if node.attr("output_dtype", 0):
        dtype = dtype_of(node.attr("output_dtype"))
    check_dtype(dtype, f"the result of {node.op} {node.name!r}")
    check_scale(node)
    if is_plain(node, dtype, node.dtype(0)):
        scale, zero = _constants(node, dtype)
        return relax.op.quantize(node[0], scale, zero, axis=axis, out_dtype=dtype)
    zero = _along_axis(node, 2, axis) if node.has(2) else None
    scale = relax.op.astype(_along_axis(node, 1, axis), node.dtype())
    return quantised(node[0], scale, zero, dtype)


def is_plain(node: Node, integer: str, real: str) -> bool:
    """Whether Relax's own operators say it: constants, per tensor or along an axis, float32."""
    known = integer in ("int8", "uint8", "int16", "uint16", "int32") and real == "float32"
    constants = all(node.is_const(i) for i in (1, 2) if node.has(i))
    if not known or not constants or node.attr("block_size", 0) or node.dtype(1) != "float32":
        return False
    return len(node.shape(1)) < 2 and (not node.has(2) or node.dtype(2) == integer)


def _constants(node: Node, dtype: str) -> tuple[relax.Expr, relax.Expr]:
    """Scale and zero point, of rank 0 where there is one for all."""
    scale = node.const(1, "scale")
    zero = node.const(2, "zero point") if node.has(2) else np.zeros_like(scale, dtype)
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    return constant(scale), constant(zero)


def _centred(node: Node, index: int, zero: int, lined_up: list[int] | None = None) -> relax.Expr:
    """Input ``index`` minus its zero point, as int32."""
    if node.is_const(index) and (node.is_const(zero) or not node.has(zero)):
        numbers = node.const(index, "numbers").astype("int32")
        offset = node.const(zero, "zero point").astype("int32") if node.has(zero) else np.int32(0)
        is_lined_up = lined_up is not None and offset.size > 1
        return constant(numbers - (offset.reshape(lined_up) if is_lined_up else offset))
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
