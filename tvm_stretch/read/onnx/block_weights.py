"""Weights of 4 bits that a product may read as they are: what `DequantizeLinear` made them of.

w = DequantizeLinear(int4 (K, N), scale (K/32, N), axis=0, block_size=32)     y = MatMul(x, w)
    w is an array of floats that also knows its 4 bits, scales and zero points, so the product is
    that of `MatMulNBits`; any other operator that reads w reads floats.

Scales may also be those of whole columns (`axis` is that of the outputs) or of all weights, which
then are one block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tvm_stretch.base.errors import ModelError
from tvm_stretch.read.onnx.node import Node

_FLOAT = 1  # as ONNX numbers its types
_MIDDLES = {"int4": 8, "uint4": 0}
"""What makes weights of each type numbers from 0 to 15."""


@dataclass(frozen=True)
class Blocks:
    """Weights in blocks of inputs: ``scale * (values - zero)``."""

    values: np.ndarray  # (outputs, inputs), each below 16, or 256 for 8 bits
    scale: np.ndarray  # (outputs, blocks)
    zero: np.ndarray  # the same
    size: int  # inputs of a block
    axis: int  # of the inputs, in the tensor that was dequantised
    bits: int = 4

    def floats(self) -> np.ndarray:
        """The weights in the shape that the network sees."""
        depth = self.values.shape[1]
        factor, zero = (
            np.repeat(part, self.size, axis=1)[:, :depth] for part in (self.scale, self.zero)
        )
        weights = (self.values.astype("float32") - zero) * factor
        return weights if self.axis == 1 else np.ascontiguousarray(weights.T)


class BlockWeights(np.ndarray):
    """Floats that know their 4 bits; arrays that are computed from them do not."""

    blocks: Blocks | None = None

    def __array_finalize__(self, source: object) -> None:
        """Parts and results are ordinary weights."""
        self.blocks = None


def block_weights(node: Node) -> BlockWeights | None:
    """The result of a node that dequantises or transposes weights of 4 bits; None for others."""
    if node.op == "Transpose":
        given = node.inputs[0]
        blocks = given.blocks if isinstance(given, BlockWeights) else None
        if blocks is None or list(node.attr("perm", [1, 0])) != [1, 0]:
            return None
        return _with(replace(blocks, axis=1 - blocks.axis))
    blocks = _read(node) if node.op == "DequantizeLinear" else None
    return None if blocks is None else _with(blocks)


def blocks_of_product(node: Node) -> Blocks | None:
    """The blocks of the right operand of a product that can read their 4 bits."""
    weights = node.inputs[1] if node.op in ("MatMul", "Gemm") and node.has(1) else None
    blocks = weights.blocks if isinstance(weights, BlockWeights) else None
    if blocks is None or node.is_const(0) or node.dtype() != "float32" or node.rank() < 2:
        return None
    inputs = 1 if node.attr("transB", 0) else 0
    if blocks.axis != inputs:
        return _turned(blocks)
    return blocks if blocks.size % 2 == 0 or blocks.scale.shape[1] == 1 else None


def _turned(blocks: Blocks) -> Blocks | None:
    """The same weights with inputs and outputs exchanged, if all have one scale."""
    one = [np.unique(part) for part in (blocks.scale, blocks.zero)]
    if any(part.size > 1 for part in one):
        return None
    values = np.ascontiguousarray(blocks.values.T)
    outputs, depth = values.shape
    scale, zero = (np.full((outputs, 1), part) for part in one)
    return Blocks(values, scale, zero, depth, 1 - blocks.axis)


def check_scale(node: Node) -> None:
    """Refuse constant scales that nothing can be divided by."""
    scale = node.inputs[1]
    if not isinstance(scale, np.ndarray):
        return
    values = scale.astype("float32")
    if not (np.isfinite(values) & (values > 0)).all():
        bad = values[~(np.isfinite(values) & (values > 0))].flat[0]
        raise ModelError(
            f"expected scales above zero for {node.label}, got {bad:g}; quantise the model again"
        )


def _with(blocks: Blocks) -> BlockWeights:
    weights: BlockWeights = blocks.floats().view(BlockWeights)
    weights.blocks = blocks
    return weights


def _read(node: Node) -> Blocks | None:
    """The blocks of a `DequantizeLinear` of a matrix of 4 bits; None if its form is another."""
    kind, parts = node.dtype(0), [node.inputs[0], node.inputs[1]]
    has_zero = node.has(2)
    parts += [node.inputs[2]] if has_zero else []
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    fits = kind in _MIDDLES and node.attr("output_dtype", _FLOAT) in (0, _FLOAT)
    if not fits or len(arrays) < len(parts) or arrays[0].ndim != 2 or node.dtype(1) != "float32":
        return None
    check_scale(node)
    numbers = arrays[0].astype("int32") + _MIDDLES[kind]
    scale = arrays[1].astype("float32")
    zero = arrays[2].astype("float32") if has_zero else np.zeros(scale.shape, "float32")
    zero = zero + _MIDDLES[kind]
    axis, size = node.axis(1), int(node.attr("block_size", 0))
    if not size:
        inputs = 1 - axis if scale.size > 1 else 0
        size, shape = numbers.shape[inputs], [1, 1]
        shape[1 - inputs] = numbers.shape[1 - inputs]
        if scale.size not in (1, shape[1 - inputs]) or zero.size != scale.size:
            return None
        scale, zero = (
            np.broadcast_to(part.reshape(-1), shape[1 - inputs]).reshape(shape)
            for part in (scale, zero)
        )
        axis = inputs
    wanted = [*numbers.shape]
    wanted[axis] = -(-wanted[axis] // max(size, 1))
    if [*scale.shape] != wanted or [*zero.shape] != wanted:
        return None
    values, scale, zero = (
        np.ascontiguousarray(part if axis == 1 else part.T)
        for part in (numbers.astype("uint8"), scale, zero)
    )
    return Blocks(values, scale, zero, size, axis)
