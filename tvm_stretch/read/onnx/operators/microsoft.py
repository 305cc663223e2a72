"""Operators of com.microsoft that ONNX Runtime's optimiser writes into a file.

FusedConv(x, w, b, z), Relu            ->  relu(conv(x, w) + b + z)
FusedGemm(a, b, c), Relu               ->  relu(a @ b + c)
FusedMatMul(a, b), transB, alpha       ->  alpha * a @ transpose(b)
BiasGelu(x, b), FastGelu(x, b)         ->  gelu(x + b)
SkipLayerNormalization(x, y, g, b, c)  ->  layer_norm(x + y + c) * g + b

`SimplifiedLayerNormalization`, which it writes without a domain, is here too;
attention is in `microsoft_attention.py`.
Quantised operators are Relax's own where it has them, else written out in integers and floats.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant
from tvm_stretch.passes.decompose_quantisation import dequantised, quantised
from tvm_stretch.passes.store_small_types import STORED
from tvm_stretch.read.onnx.block_weights import check_scale
from tvm_stretch.read.onnx.node import CONVERTERS, Node, Value, check_dtype, converter, dtype_of
from tvm_stretch.read.onnx.operators.elementwise import cast, to_small_float
from tvm_stretch.read.onnx.operators.layers import add_bias, convolve, not_empty


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


def _zero(node: Node, axis: int) -> relax.Expr | None:
    """The zero point, of a plain type if it is constant; None if there is none."""
    if not node.has(2):
        return None
    if node.is_const(2) and node.dtype(2) in STORED:
        plain = "float32" if "float" in node.dtype(2) else STORED[node.dtype(2)]
        node.inputs[2] = node.const(2, "zero point").astype(plain)
    return _along_axis(node, 2, axis)


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
    zero = _zero(node, axis)
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
    scale = relax.op.astype(_along_axis(node, 1, axis), node.dtype())
    if dtype in STORED and "float" in dtype:  # its zero point is 0
        saturate = bool(node.attr("saturate", 1))
        return to_small_float(
            node, node.emit(relax.op.divide(node[0], scale)), dtype, saturate=saturate
        )
    zero = _zero(node, axis)
    return quantised(node[0], scale, zero, dtype)


def is_plain(node: Node, integer: str, real: str) -> bool:
    """Whether Relax's own operators say it: constants, per tensor or along an axis, float32."""
    fits = integer in ("int8", "uint8", "int16", "uint16", "int32") and real == "float32"
    constants = all(node.is_const(i) for i in (1, 2) if node.has(i))
    if not fits or not constants or node.attr("block_size", 0) or node.dtype(1) != "float32":
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


def _with_bias(node: Node) -> relax.Expr:
    return node.emit(relax.op.add(node[0], node[1])) if node.has(1) else node[0]


@converter("com.microsoft.Gelu", "com.microsoft.BiasGelu")
def _gelu(node: Node) -> relax.Expr:
    return relax.op.nn.gelu(_with_bias(node))


@converter("com.microsoft.FastGelu")
def _fast_gelu(node: Node) -> relax.Expr:
    return relax.op.nn.gelu_tanh(_with_bias(node))


@converter("com.microsoft.QuickGelu")
def _quick_gelu(node: Node) -> relax.Expr:
    slope = node.scalar(node.attr("alpha", 1.702))
    return relax.op.multiply(node[0], relax.op.sigmoid(relax.op.multiply(node[0], slope)))


@converter("com.microsoft.FusedMatMul", "com.microsoft.TransposeMatMul")
def _fused_matmul(node: Node) -> relax.Expr:
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise node.refuse("transposes of the last two axes", "transBatchA or transBatchB")
    operands = []
    for index, name in enumerate(("transA", "transB")):
        x, rank = node[index], node.rank(index)
        if node.attr(name, 0) and rank > 1:
            x = node.emit(relax.op.permute_dims(x, [*range(rank - 2), rank - 1, rank - 2]))
        operands.append(x)
    product = relax.op.matmul(*operands)
    alpha = node.attr("alpha", 1.0)
    return product if alpha == 1 else relax.op.multiply(node.emit(product), node.scalar(alpha))


@converter("com.microsoft.FusedConv")
def _fused_conv(node: Node) -> Value:
    """ONNX Runtime adds the fourth input before its activation."""
    result = add_bias(node, not_empty(node, convolve(node, node[0], node[1], node.shape(1))))
    if node.has(3):
        result = relax.op.add(node.emit(result), node[3])
    numbers = [float(number) for number in node.attr("activation_params", [])]
    names = _ACTIVATIONS.get(node.attr("activation", ""), ())
    return _activated(node, result, dict(zip(names, numbers, strict=False)))


@converter("com.microsoft.FusedGemm")
def _fused_gemm(node: Node) -> Value:
    names = ("alpha", "beta", "gamma")
    given = {name: node.attr(f"activation_{name}") for name in names}
    kept = {name: float(number) for name, number in given.items() if number is not None}
    return _activated(node, CONVERTERS["Gemm"](node), kept)


_ACTIVATIONS = {
    "Relu": (), "Sigmoid": (), "Tanh": (), "Softsign": (), "Softplus": (),
    "LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}  # fmt: skip
"""Activations of fused layers, with the names of their numbers."""


def _activated(node: Node, result: relax.Expr, attributes: dict[str, float]) -> Value:
    kind = node.attr("activation", "")
    if not kind:
        return result
    if kind not in _ACTIVATIONS:
        raise node.refuse(f"an activation of {[*_ACTIVATIONS]}", kind)
    x = node.emit(result)
    return CONVERTERS[kind](Node(kind, node.name, 6, [x], attributes, node.outputs, node.bb))


@converter("com.microsoft.DynamicQuantizeLSTM")
def _dynamic_lstm(node: Node) -> Value | tuple[Value, ...]:
    """In floats with these weights; ONNX Runtime rounds inputs and states to 8 bits beside."""
    weights = []
    for index, place in ((1, 8), (2, 10)):  # (directions, inputs, gates)
        numbers = node.const(index, "weights").astype("float32")
        scale, zero = (
            node.const(place + i, what).astype("float32").reshape(len(numbers), 1, -1)
            for i, what in enumerate(("scale", "zero point"))
        )
        weights.append(np.ascontiguousarray(((numbers - zero) * scale).transpose(0, 2, 1)))
    inputs = [node.given(0), *weights, *node.inputs[3:8]]
    return CONVERTERS["LSTM"](
        Node("LSTM", node.name, 14, inputs, node.attrs, node.outputs, node.bb)
    )


def _normed(node: Node, x: relax.Expr, scale: Value, bias: Value | None) -> list[Value]:
    """ONNX's layer normalisation along the last axis: the result, the mean and the factor."""
    attributes = {"axis": -1, "epsilon": node.attr("epsilon", 1e-12)}
    inputs = [x, scale] if bias is None else [x, scale, bias]
    inner = Node("LayerNormalization", node.name, 17, inputs, attributes, node.outputs, node.bb)
    normed = CONVERTERS[inner.op](inner)
    return [*normed] if isinstance(normed, tuple) else [normed]


def _root_mean_square(node: Node, x: relax.Expr, scale: relax.Expr) -> list[relax.Expr]:
    """``x / sqrt(mean(x * x) + epsilon) * scale``, and the factor."""
    dtype = str(x.ty.dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = node.emit(cast(node, x, wide))
    square = relax.op.mean(relax.op.multiply(x, x), [-1], keepdims=True)
    spread = relax.op.add(square, node.scalar(node.attr("epsilon", 1e-5), wide))
    factor = node.emit(relax.op.divide(node.scalar(1, wide), relax.op.sqrt(spread)))
    normed = cast(node, node.emit(relax.op.multiply(x, factor)), dtype)
    return [relax.op.multiply(normed, scale), factor]


@converter("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def _simplified_layer_norm(node: Node) -> tuple[Value, ...]:
    if node.axis(-1) != node.rank() - 1:
        raise node.refuse("the last axis", f"axis {node.axis(-1)}")
    return tuple(_root_mean_square(node, node[0], node[1]))


@converter("com.microsoft.SkipLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization")
def _skip_layer_norm(node: Node) -> tuple[Value, ...]:
    """The fourth result is the sum."""
    whole = node.op == "SkipLayerNormalization"
    total = node.emit(relax.op.add(node[0], node[1]))
    last = 4 if whole else 3
    if node.has(last):
        total = node.emit(relax.op.add(total, node[last]))
    if whole:
        bias = node.inputs[3] if node.has(3) else None
        normed, mean, factor = _normed(node, total, node.given(2), bias)
        return normed, mean, factor, total
    normed, factor = _root_mean_square(node, total, node[2])
    return normed, factor, factor, total  # nothing computes its unused second result


@converter("com.microsoft.EmbedLayerNormalization")
def _embed_layer_norm(node: Node) -> tuple[Value, ...]:
    """Words, positions and segments; the second result counts the mask's ones."""
    batch, steps = node.shape()
    positions: relax.Expr = constant(np.arange(steps, dtype="int32")[None])
    total = node.emit(relax.op.take(node[2], node[0], 0))
    places = node[8] if node.has(8) else positions
    total = node.emit(relax.op.add(total, relax.op.take(node[3], places, 0)))
    if node.has(1) and node.has(4):
        total = node.emit(relax.op.add(total, relax.op.take(node[4], node[1], 0)))
    normed = _normed(node, total, node.given(5), node.given(6))[0]
    if node.has(7):
        counts = node.emit(relax.op.sum(cast(node, node[7], "int32"), [1]))
    else:
        counts = constant(np.zeros(batch, "int32"))
    return normed, counts, total
