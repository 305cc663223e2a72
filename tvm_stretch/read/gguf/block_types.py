"""What the bytes of a tensor of a GGUF file mean: the types, and weights in blocks.

Q4_1   d, m, 16 bytes      w = d q + m           q: 4 bits, halves of a block in halves of a byte
Q4_K   d, m, 12, 128       w = d s q - m t       s, t: 6 bits for each 32 of 256 weights
Q6_K   128, 64, 16, d      w = d s (q - 32)      q: 6 bits in two places, s: 8 bits for each 16

Blocks stay as they are: ``scale * (values - zero)`` is exact for all of these types, because their
scales and products of scales have fewer digits than float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tvm_stretch.read.onnx.block_weights import Blocks


@dataclass(frozen=True)
class BlockType:
    """A type of tensors."""

    name: str
    weights: int  # of a block
    bytes: int  # of a block
    read: Callable[[np.ndarray], Blocks] | None = None  # from (rows, blocks, bytes)
    floats: type | None = None  # the type of NumPy of those without blocks
    stored: str = ""  # how the weights are kept where that is not as in the file


def _halves(data: np.ndarray, begin: int) -> np.ndarray:
    """A float16 of each block, as float32."""
    pair = np.ascontiguousarray(data[..., begin : begin + 2])
    return pair.view("<f2")[..., 0].astype("float32")


def _nibbles(data: np.ndarray) -> np.ndarray:
    """The lower halves of all bytes, then the upper ones."""
    return np.concatenate([data & 15, data >> 4], -1)


def _blocks(values: np.ndarray, scale: np.ndarray, zero: np.ndarray | float, bits: int) -> Blocks:
    rows = len(values)
    zeros = np.broadcast_to(np.asarray(zero, "float32"), scale.shape)
    flat = [np.ascontiguousarray(part.reshape(rows, -1)) for part in (values, scale, zeros)]
    return Blocks(flat[0], flat[1], flat[2], values.shape[-1], axis=1, bits=bits)


def _with_minimum(values: np.ndarray, scale: np.ndarray, least: np.ndarray) -> Blocks:
    """``scale * values + least``; blocks without a scale have ones instead of values."""
    flat = (scale == 0) & (least != 0)
    values = np.where(flat[..., None], np.uint8(1), values)
    scale, least = np.where(flat, least, scale), np.where(flat, 0, least)
    with np.errstate(all="ignore"):  # NaN and infinity are refused later
        zero = -least / np.where(scale == 0, 1, scale)
    return _blocks(values, scale, zero, 4)


def _q4_0(data: np.ndarray) -> Blocks:
    return _blocks(_nibbles(data[..., 2:]), _halves(data, 0), 8, 4)


def _q4_1(data: np.ndarray) -> Blocks:
    return _with_minimum(_nibbles(data[..., 4:]), _halves(data, 0), _halves(data, 2))


def _q8_0(data: np.ndarray) -> Blocks:
    return _blocks(data[..., 2:] ^ np.uint8(128), _halves(data, 0), 128, 8)


def _q4_k(data: np.ndarray) -> Blocks:
    packed = data[..., 4:16]
    low, high, both = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    factor = np.concatenate([low & 63, both & 15 | low >> 6 << 4], -1)
    least = np.concatenate([high & 63, both >> 4 | high >> 6 << 4], -1)
    chunks = data[..., 16:].reshape(*data.shape[:-1], 4, 32)
    values = _nibbles(chunks).reshape(*data.shape[:-1], 8, 32)
    scale = _halves(data, 0)[..., None] * factor
    return _with_minimum(values, scale, -_halves(data, 2)[..., None] * least)


def _q6_k(data: np.ndarray) -> Blocks:
    shape = data.shape[:-1]
    low = _nibbles(data[..., :128].reshape(*shape, 2, 64)).reshape(*shape, 2, 4, 32)
    high = data[..., 128:192].reshape(*shape, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], "uint8")[:, None]
    values = (low | (high >> shifts & 3) << 4).reshape(*shape, 16, 16)
    factor = data[..., 192:208].view("int8").astype("float32")
    return _blocks(values, _halves(data, 208)[..., None] * factor, 32, 8)


_AS_FLOATS = "in blocks of {} with float32 scales"
TYPES = {
    0: BlockType("F32", 1, 4, floats=np.float32),
    1: BlockType("F16", 1, 2, floats=np.float16),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k, stored=f"4 bits {_AS_FLOATS.format(32)}"),
    14: BlockType("Q6_K", 256, 210, _q6_k, stored=f"8 bits {_AS_FLOATS.format(16)}"),
    30: BlockType("BF16", 1, 2, floats=ml_dtypes.bfloat16, stored="float32"),
}
"""By the number that files have for them."""
BY_NAME = {one.name: one for one in TYPES.values()}


def blocks_of(kind: str, data: np.ndarray) -> Blocks | None:
    """The weights of rows of bytes, if their type has blocks."""
    own = BY_NAME[kind]
    if own.read is None:
        return None
    return own.read(np.asarray(data).reshape(len(data), -1, own.bytes))


def floats_of(kind: str, data: np.ndarray) -> np.ndarray:
    """The weights of rows of bytes as float32."""
    blocks, own = blocks_of(kind, data), BY_NAME[kind].floats
    if blocks is not None:
        return blocks.floats()
    floats: np.ndarray = np.ascontiguousarray(data).view(np.dtype(own)).astype("float32")
    return floats
