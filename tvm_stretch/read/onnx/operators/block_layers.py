"""Dense layers and tables of weights in blocks of 4 or 8 bits.

y = com.microsoft.MatMulNBits(x, B, scales, zero_points)       # B: two weights of 4 bits a byte
y = MatMul(x, DequantizeLinear(int4, scales, zero_points, block_size=32))
->
y = R.call_tir(nibbles, (x, weight, scale, zero))              # `targets/cpu/kernels/nibbles.py`
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from tvm import relax

from tvm_stretch.base.errors import ModelError
from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.steps import UNITS
from tvm_stretch.read.onnx.block_weights import Blocks
from tvm_stretch.read.onnx.node import Node, converter
from tvm_stretch.targets.cpu.kernels.nibble_dots import PART
from tvm_stretch.targets.cpu.kernels.nibble_words import pack_words, words_call
from tvm_stretch.targets.cpu.kernels.nibbles import nibbles_call, pack
from tvm_stretch.targets.kernels.dots import WORD

PARTS_OF_LEVEL = {2: 2, 3: 2, 4: 1}
"""Bytes that inputs are rounded to, by the `accuracy_level`; 2 and 3 are types of 16 bits."""
_STEPS, _SMALLEST = 127, 1e-30
_MIDDLES = {"int4": 8, "uint4": 0}
"""What makes numbers of a type those from 0 to 15."""


@converter("com.microsoft.MatMulNBits")
def _matmul_block(node: Node) -> relax.Expr:
    depth, outputs, size = (int(node.attr(name, 0)) for name in ("K", "N", "block_size"))
    bits = int(node.attr("bits", 4))
    if bits not in (4, 8):
        raise node.refuse("weights of 4 or 8 bits", f"{bits}")
    if size < 16 or size & (size - 1) or node.shape()[-1:] != [depth] or outputs < 1:
        raise node.refuse(
            "K as the input has it, N above 0 and block_size a power of 2 from 16 on",
            f"K={depth}, N={outputs}, block_size={size} for an input of {node.shape()}",
        )
    blocks = -(-depth // size)
    values = _numbers(node, 1, "weights", outputs, blocks * size, bits)[:, :depth]
    scale = _shaped(node, node.const(2, "scales"), outputs, blocks).astype("float32")
    if not np.isfinite(scale).all():
        raise ModelError(f"expected finite scales for {node.label}, got NaN or infinity")
    if node.has(4):
        order = node.const(4, "g_idx").ravel()
        if not np.array_equal(order[:depth], np.arange(depth) // size):
            raise node.refuse("inputs in the order of their blocks", "another g_idx")
    zero = np.full((outputs, blocks), 1 << (bits - 1), "float32")
    if node.has(3) and node.dtype(3) == "uint8":
        padded = blocks + blocks % (8 // bits)
        zero = _numbers(node, 3, "zero points", outputs, padded, bits)[:, :blocks]
    elif node.has(3):
        zero = _shaped(node, node.const(3, "zero points"), outputs, blocks)
    weights = Blocks(values, scale, zero.astype("float32"), size, axis=1, bits=bits)
    y = block_product(node, node[0], weights, _parts(node))
    return relax.op.add(node.emit(y), node[5]) if node.has(5) else y


def block_product(
    node: Node,
    x: relax.Expr,
    blocks: Blocks,
    parts: int = 0,  # bytes that inputs are rounded to; 0 if they are not
) -> relax.Expr:
    """``x @ weights.T`` by the kernel; with floats for what it does not take."""
    shape = shape_of(x)
    rows, (outputs, depth) = prod(shape[:-1]), blocks.values.shape
    x = node.emit(relax.op.reshape(x, (rows, depth))) if len(shape) != 2 else x
    if node.dtype() != "float32":
        weight = replace(blocks, axis=0).floats().astype(node.dtype())
        y = relax.op.matmul(x, constant(weight))
    elif parts and _is_exact(blocks, parts):
        y = _rounded_product(node, x, blocks, parts)
    else:
        values, bits = blocks.values, blocks.bits
        if depth % 2 and bits == 4:
            # a byte holds two weights; the second one of the last byte meets a zero
            values = np.pad(values, ((0, 0), (0, 1)))
            x = node.emit(relax.op.concat([x, constant(np.zeros((rows, 1), "float32"))], axis=1))
        size = min(blocks.size, values.shape[1])
        size += size % 2 if bits == 4 else 0
        y = nibbles_call(node.bb, x, values, blocks.scale, blocks.zero, size, bits)
    return relax.op.reshape(node.emit(y), (*shape[:-1], outputs)) if len(shape) != 2 else y


def _parts(node: Node) -> int:
    return PARTS_OF_LEVEL.get(int(node.attr("accuracy_level", 0)), 0)


def _is_exact(blocks: Blocks, parts: int) -> bool:
    """Whether int32 sums hold the products of a block."""
    most = _STEPS * PART ** (parts - 1) * (2**blocks.bits - 1)
    return blocks.size * most < 2**31


def _rounded_product(node: Node, x: relax.Expr, blocks: Blocks, parts: int) -> relax.Expr:
    """The product of inputs that are rounded to 8 or 16 bits, with one scale for each block."""
    depth, size, count = blocks.values.shape[1], blocks.size, blocks.scale.shape[1]
    rows, missing = int(x.ty.shape.values[0]), count * size - depth
    values = np.pad(blocks.values, ((0, 0), (0, missing)))
    if missing:
        rest = constant(np.zeros((rows, missing), "float32"))
        x = node.emit(relax.op.concat([x, rest], axis=1))
    # one shape from here on: a reshape in between would split the kernel that rounds
    x = node.emit(relax.op.reshape(x, (rows, 1, count, size)))
    most = node.emit(relax.op.max(node.emit(relax.op.abs(x)), axis=-1, keepdims=True))
    least = constant(np.array(_SMALLEST, "float32"))  # a block of zeros is divided by it
    steps = constant(np.array(_STEPS * PART ** (parts - 1), "float32"))
    factor = node.emit(relax.op.divide(node.emit(relax.op.maximum(most, least)), steps))
    q = node.emit(relax.op.round(node.emit(relax.op.divide(x, factor))))
    q = node.emit(relax.op.astype(_high_and_low(node, q) if parts == 2 else q, "int8"))
    q = node.emit(relax.op.reshape(q, (rows, parts * count * size)))
    factor = node.emit(relax.op.reshape(factor, (rows, count)))
    return words_call(node.bb, q, factor, values, blocks.scale, blocks.zero, size, blocks.bits)


def _high_and_low(node: Node, q: relax.Expr) -> relax.Expr:
    """``high`` and ``low`` of numbers that are ``PART * high + low``, along the second axis."""
    part, of_high, of_whole = (
        constant(np.array(values, "float32").reshape(1, -1, 1, 1))
        for values in ([1 / PART], [1, -PART], [0, 1])
    )
    high = node.emit(relax.op.round(node.emit(relax.op.multiply(q, part))))
    high = node.emit(relax.op.multiply(high, of_high))
    return node.emit(relax.op.add(high, node.emit(relax.op.multiply(q, of_whole))))


@converter("com.microsoft.GatherBlockQuantized")
def _gather(node: Node) -> relax.Expr:
    """Rows of a table of 4 or 8 bits; only those that are read become floats."""
    numbers, shape, bits = node.const(0, "data"), node.shape(), int(node.attr("bits", 4))
    kind = node.dtype()
    if kind not in ("uint8", *_MIDDLES) or bits not in (4, 8) or len(shape) != 2:
        raise node.refuse("a matrix of 4 or 8 bits", f"{bits} bits, {kind} of shape {shape}")
    is_packed = kind == "uint8" and bits == 4
    rows, columns = shape[0], shape[1] * (2 if is_packed else 1)
    if node.axis(0, "gather_axis") != 0 or node.axis(1, "quantize_axis") != 1:
        raise node.refuse("rows, in blocks of columns", "another gather_axis or quantize_axis")
    size = int(node.attr("block_size", 128))
    blocks, scale = -(-columns // size), node.const(2, "scales")
    zero = np.full((rows, blocks), _MIDDLES.get(kind, 1 << (bits - 1)), "float32")
    if node.has(3) and is_packed and node.dtype(3) == "uint8":
        zero = _unpacked(node, 3, "zero points", rows, blocks + blocks % 2)[:, :blocks]
    elif node.has(3):
        zero = node.const(3, "zero points").astype("float32") + _MIDDLES.get(kind, 0)
    if is_packed:
        numbers = _unpacked(node, 0, "data", rows, columns)
    elif kind in _MIDDLES:
        numbers, bits = (numbers.astype("int32") + _MIDDLES[kind]).astype("uint8"), 4
    values = _rows_of_units(node, numbers, bits)
    values = node.emit(relax.op.astype(values, node.dtype(2)))
    middle: relax.Expr = node.scalar(float(zero.flat[0]), node.dtype(2))
    if (zero != zero.flat[0]).any():
        zero = zero.astype(node.dtype(2))
        middle = node.emit(relax.op.take(constant(zero), node[1], 0))
        middle = _along_blocks(node, middle, size, columns)
    scale = node.emit(relax.op.take(constant(scale), node[1], 0))
    scale = _along_blocks(node, scale, size, columns)
    return relax.op.multiply(node.emit(relax.op.subtract(values, middle)), scale)


def _rows_of_units(node: Node, numbers: np.ndarray, bits: int) -> relax.Expr:
    """Some rows of numbers, from the bytes that a product with the same matrix reads."""
    columns, in_words = numbers.shape[1], _parts(node) > 0
    together = WORD if in_words else 1  # bytes of an output that are neighbours
    numbers = np.pad(numbers, ((0, 0), (0, -columns % (together * 8 // bits))))
    packed = (pack_words if in_words else pack)(numbers, bits)
    size = packed[0].size
    token = node.emit(relax.op.astype(node[1], "int64"))
    sizes = [relax.const(number, "int64") for number in (0, len(numbers), UNITS, size, together)]
    later = node.emit(relax.op.add(token, sizes[1]))
    token = node.emit(relax.op.where(relax.op.less(token, sizes[0]), later, token))
    unit = node.emit(relax.op.floor_divide(token, sizes[2]))
    lane = node.emit(relax.op.subtract(token, relax.op.multiply(unit, sizes[2])))
    lane = node.emit(relax.op.multiply(lane, sizes[4]))
    first = node.emit(relax.op.add(relax.op.multiply(unit, sizes[3]), lane))
    first = node.emit(relax.op.expand_dims(first, -1))
    number = np.arange(size // UNITS)
    places = constant(number // together * (UNITS * together) + number % together)
    x = node.emit(
        relax.op.take(constant(packed.ravel()), node.emit(relax.op.add(first, places)), 0)
    )
    return _halves_of_bytes(node, x, columns, together) if bits == 4 else x


def _halves_of_bytes(node: Node, x: relax.Expr, columns: int, together: int) -> relax.Expr:
    """Two numbers of each byte, the lower halves of neighbours first."""
    *rows, count = shape_of(x)
    low = node.emit(relax.op.bitwise_and(x, relax.const(15, "uint8")))
    high = node.emit(relax.op.right_shift(x, relax.const(4, "uint8")))
    parts = [
        node.emit(relax.op.reshape(part, [*rows, count // together, together]))
        for part in (low, high)
    ]
    both = node.emit(relax.op.stack(parts, len(rows) + 1))
    both = node.emit(relax.op.reshape(both, [*rows, 2 * count]))
    return node.emit(relax.op.strided_slice(both, [len(rows)], [0], [columns]))


def _along_blocks(node: Node, x: relax.Expr, size: int, columns: int) -> relax.Expr:
    """A number of each block, repeated for its columns."""
    axis = len(shape_of(x)) - 1
    repeated = node.emit(relax.op.repeat(x, size, axis))
    return node.emit(relax.op.strided_slice(repeated, [axis], [0], [columns]))


def _unpacked(node: Node, index: int, what: str, outputs: int, count: int) -> np.ndarray:
    """Numbers of 4 bits, ``count`` for each output, the lower half of a byte first."""
    packed = _shaped(node, node.const(index, what), outputs, count // 2)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(outputs, count)


def _numbers(node: Node, index: int, what: str, outputs: int, count: int, bits: int) -> np.ndarray:
    """Numbers of 4 or 8 bits."""
    if bits == 4:
        return _unpacked(node, index, what, outputs, count)
    return _shaped(node, node.const(index, what), outputs, count)


def _shaped(node: Node, array: np.ndarray, outputs: int, count: int) -> np.ndarray:
    if array.size != outputs * count:
        raise node.refuse(f"{outputs} x {count} numbers", f"shape {[*array.shape]}")
    return array.reshape(outputs, count)
