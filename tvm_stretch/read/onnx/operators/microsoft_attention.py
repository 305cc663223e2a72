"""Attention of com.microsoft: what ONNX Runtime's optimiser and its builder of decoders write.

Attention(x, w, b, mask, past)           ->  q, k, v = split(x @ w + b); attention of past and new
QAttention(x, w, b, scales, ..)          ->  the same, with a product of integers
MultiHeadAttention(q, k, v, b, ..)       ->  the same after the product
GroupQueryAttention(q, k, v, past, ..)   ->  rotary positions; new keys written into the cache at
                                             their places; attention of the places that are used
RotaryEmbedding(x, positions, cos, sin)  ->  x * cos[positions] + turned x * sin[positions]
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.onnx.node import CONVERTERS, Node, Value, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import cast
from tvm_stretch.read.onnx.operators.gather import write_rows
from tvm_stretch.read.onnx.operators.heads import (
    Scores,
    after_past,
    attend,
    earlier,
    hide,
    lowest,
    merge_heads,
    padding,
    rotated,
    split_heads,
)


def _heads(node: Node) -> int:
    heads = int(node.attr("num_heads", 0))
    if heads < 1:
        raise node.refuse("num_heads above 0", str(heads))
    return heads


def _parts(node: Node, x: relax.Expr, sizes: list[int]) -> list[relax.Expr]:
    """Pieces of the last axis."""
    ends, last = [int(end) for end in np.cumsum([0, *sizes])], len(shape_of(x)) - 1
    return [
        node.emit(relax.op.strided_slice(x, [last], [begin], [end]))
        for begin, end in pairwise(ends)
    ]


@converter("com.microsoft.Attention")
def _attention(node: Node) -> tuple[Value, ...]:
    """One product gives queries, keys and values."""
    if node.has(6) or node.attr("do_rotary", 0):
        raise node.refuse("a past as long as it is", "a shared buffer or rotary positions")
    width = node.shape(1)[1]
    sizes = [int(size) for size in node.attr("qkv_hidden_sizes", []) or [width // 3] * 3]
    if sum(sizes) != width:
        raise node.refuse(f"qkv_hidden_sizes of {width} columns", str(sizes))
    product = node.emit(relax.op.matmul(node[0], node[1]))
    if node.has(2):
        product = node.emit(relax.op.add(product, node[2]))
    return _of_product(node, product, sizes, mask=3, past=4)


@converter("com.microsoft.QAttention")
def _quantised_attention(node: Node) -> tuple[Value, ...]:
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        raise node.refuse("a past as long as it is", "a shared buffer or rotary positions")
    width = node.shape(1)[1]
    given = [node.inputs[i] if node.has(i) else None for i in (0, 1, 6, 7)]
    inner = Node("MatMulInteger", node.name, 10, given, {}, node.outputs, node.bb)
    sums = node.emit(CONVERTERS[inner.op](inner))
    scale = node.emit(relax.op.multiply(node[3], node[4]))
    product = node.emit(relax.op.multiply(cast(node, sums, node.dtype(3)), scale))
    if node.has(2):
        product = node.emit(relax.op.add(product, node[2]))
    return _of_product(node, product, [width // 3] * 3, mask=5, past=8)


def _of_product(
    node: Node, product: relax.Expr, sizes: list[int], mask: int, past: int
) -> tuple[Value, ...]:
    """Attention of one tensor that holds queries, keys and values.

    Args:
        mask: the input that is the mask.
        past: the input that is the past.
    """
    heads = _heads(node)
    query, key, value = (split_heads(node, x, heads) for x in _parts(node, product, sizes))
    before, present = 0, []
    if node.has(past):
        before, both = node.shape(past)[3], []
        for index, new in enumerate((key, value)):
            old = node.emit(relax.op.strided_slice(node[past], [0], [index], [index + 1]))
            old = node.emit(relax.op.squeeze(old, [0]))
            both.append(node.emit(relax.op.concat([old, new], 2)) if before else new)
        key, value = both
    if any(node.outputs[1:]):
        present = [relax.op.stack([key, value], 0)]
    summands = _masks(node, query, key, mask, before, _hidden(node))
    if node.op == "Attention" and node.has(5):
        summands.append(node[5])
    scores = Scores(node.attr("scale", 0.0), summands)
    return merge_heads(node, attend(node, query, key, value, scores)), *present


def _masks(
    node: Node, query: relax.Expr, key: relax.Expr, mask: int, past: int, later: float
) -> list[relax.Expr]:
    """Summands that hide keys by the input ``mask``, and by ``later`` those after their query."""
    batch, _, steps, _ = shape_of(query)
    dtype = str(query.ty.dtype)
    masks: list[relax.Expr] = []
    if node.has(mask):
        shown = padding(node, mask, batch, steps, shape_of(key)[2])
        masks.append(hide(node, shown, dtype, _hidden(node)))
    if node.attr("unidirectional", 0):
        masks.append(earlier(steps, past, dtype, later))
    return masks


def _hidden(node: Node) -> float:
    return float(node.attr("mask_filter_value", -10000.0))


@converter("com.microsoft.MultiHeadAttention")
def _multi_head(node: Node) -> tuple[Value, ...]:
    """Keys and values may be split into heads already."""
    if node.has(8) or node.has(9):
        raise node.refuse("a past as long as it is", "a shared buffer")
    heads = _heads(node)
    operands = _operands(node, heads)
    if node.has(3):
        operands = _with_bias(node, operands)
    query = operands[0]
    past, (key, value) = after_past(node, (6, 7), operands[1:])
    summands = _masks(node, query, key, 4, past, lowest(str(query.ty.dtype)))
    if node.has(5):
        summands.append(node[5])
    scores = Scores(node.attr("scale", 0.0), summands)
    present = [key, value] if any(node.outputs[1:]) else []
    return merge_heads(node, attend(node, query, key, value, scores)), *present


def _operands(node: Node, heads: int) -> list[relax.Expr]:
    """Queries, keys and values as (batch, heads, steps, width)."""
    if node.rank() != 3 or not node.has(1) or node.rank(1) == 5:
        raise node.refuse("queries, keys and values as inputs of their own", "packed ones")
    both = ((node.rank(i), node[i]) for i in (1, 2))
    return [
        split_heads(node, node[0], heads),
        *(x if rank == 4 else split_heads(node, x, heads) for rank, x in both),
    ]


def _with_bias(node: Node, operands: list[relax.Expr]) -> list[relax.Expr]:
    """One vector holds the biases of queries, keys and values."""
    sizes = [shape_of(x)[1] * shape_of(x)[3] for x in operands]
    if node.shape(3) != [sum(sizes)]:
        raise node.refuse(f"a bias of {sum(sizes)} numbers", str(node.shape(3)))
    biased = []
    for x, bias in zip(operands, _parts(node, node[3], sizes), strict=True):
        _, heads, _, width = shape_of(x)
        column = node.emit(relax.op.reshape(bias, [1, heads, 1, width]))
        biased.append(node.emit(relax.op.add(x, column)))
    return biased


@converter("com.microsoft.RotaryEmbedding")
def _rotary(node: Node) -> relax.Expr:
    if node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) != 1.0:
        raise node.refuse("rows of one length, and a scale of 1", "packed rows or a scale")
    whole = node.rank() == 3
    half = node.shape(2)[1]
    heads = int(node.attr("num_heads", 0))
    own = heads or node.shape()[2] // (2 * half)
    x = split_heads(node, node[0], own) if whole else node[0]
    batch, _, steps, _ = shape_of(x)
    positions = node[1]
    if node.shape(1) == [1]:  # the position of the first
        steps_after = as_expr(np.arange(steps, dtype=node.dtype(1))[None])
        positions = node.emit(relax.op.add(positions, steps_after))
        positions = node.emit(relax.op.broadcast_to(positions, [batch, steps]))
    interleaved = bool(node.attr("interleaved", 0))
    y = rotated(node, x, positions, (node[2], node[3]), interleaved)
    return merge_heads(node, y) if whole else y


_UNKNOWN = ("kv_cache_bit_width", "sliding_window_cache", "qk_output")


@converter("com.microsoft.GroupQueryAttention")
def _group_query(node: Node) -> tuple[Value, ...]:
    """The cache begins with what came first; ``seqlens_k`` says how much of it is used."""
    _check_group_query(node)
    heads, groups = _heads(node), int(node.attr("kv_num_heads", 0)) or _heads(node)
    if node.has(1):
        query, key, value = (node[i] for i in range(3))
    else:
        width = node.shape()[2] // (heads + 2 * groups)
        query, key, value = _parts(node, node[0], [heads * width, groups * width, groups * width])
    query = split_heads(node, query, heads)
    key, value = (split_heads(node, x, groups) for x in (key, value))
    batch, _, steps, _ = shape_of(query)
    total = int(node.const(6, "total_sequence_length").reshape(-1)[0])
    used = node.emit(relax.op.reshape(cast(node, node[5], "int64"), [batch, 1]))
    first = relax.op.subtract(used, node.scalar(steps - 1, "int64"))
    if steps == total:
        first = as_expr(np.zeros((batch, 1), "int64"))
    places = node.emit(relax.op.add(node.emit(first), as_expr(np.arange(steps)[None])))
    if node.attr("do_rotary", 0):
        positions = node[9] if node.has(9) else places
        interleaved = bool(node.attr("rotary_interleaved", 0))
        query, key = (
            rotated(node, x, positions, (node[7], node[8]), interleaved) for x in (query, key)
        )
    slots = places if _keeps(node) is None else _slots(node, places, total)
    parts, present = ((3, key), (4, value)), []
    if node.attr(ROUNDS, 0):
        caches = [_rounded(node, index, new, slots, total) for index, new in parts]
        wide = [(node.emit(cast(node, c, node.dtype())), scale) for c, scale in caches]
        key, value = (node.emit(relax.op.multiply(cache, scale)) for cache, scale in wide)
        present = [part for cache in zip(*caches, strict=True) for part in cache]
    else:
        key, value = (_cached(node, index, new, slots, total) for index, new in parts)
        present = [key, value] if any(node.outputs[1:]) else []
    scores = Scores(
        node.attr("scale", 0.0),
        _group_query_masks(node, places, shape_of(key)[2], total),
        node.attr("softcap", 0.0),
        _sinks(node, heads),
    )
    return merge_heads(node, attend(node, query, key, value, scores)), *present


def _check_group_query(node: Node) -> None:
    if any(node.attr(name, 0) for name in _UNKNOWN) or any(
        node.has(i) for i in range(14 if node.attr(ROUNDS, 0) else 12, 17)
    ):
        raise node.refuse(
            "a cache of the type of the queries, and queries as they are",
            "quantised or windowed caches, normalised queries, or padded ones",
        )


KEEP, SPARE = "tvm_stretch_keep", "tvm_stretch_spare"
"""Attributes of a cache that slides, which `read_gguf` writes: its first places keep their tokens,
and the others are a ring. A query sees all tokens of the ring but the oldest ones, as many as a run
may write: so answers do not depend on the lengths of runs, and guesses can be taken back.
"""


ROUNDS = "tvm_stretch_rounds"
"""The attribute of caches of int8; inputs 12 and 13 and the last outputs are the scales of rows."""


def _rounded(
    node: Node, index: int, new: relax.Expr, places: relax.Expr, total: int
) -> tuple[relax.Expr, relax.Expr]:
    """A cache in int8 and the scales of its rows, both with the new rows at their places."""
    most = node.emit(relax.op.max(node.emit(relax.op.abs(new)), -1, keepdims=True))
    scale = node.emit(relax.op.divide(most, node.scalar(127, node.dtype())))
    is_zero = node.emit(relax.op.equal(scale, node.scalar(0, node.dtype())))
    divisor = node.emit(relax.op.where(is_zero, node.scalar(1, node.dtype()), scale))
    steps = node.emit(relax.op.round(node.emit(relax.op.divide(new, divisor))))
    whole = node.emit(cast(node, steps, "int8"))
    scales = _cached(node, index + 9, scale, places, total)
    return _cached(node, index, whole, places, total), scales


def _keeps(node: Node) -> int | None:
    keep = int(node.attr(KEEP, -1))
    return keep if keep >= 0 else None


def _slots(node: Node, places: relax.Expr, total: int) -> relax.Expr:
    """Where the tokens at these positions lie in a cache that slides."""
    keep, steps = int(node.attr(KEEP)), shape_of(places)[1]
    if steps > int(node.attr(SPARE)):
        raise node.refuse(f"runs of at most {node.attr(SPARE)} tokens, as it slides,", f"{steps}")
    after = node.emit(relax.op.subtract(places, node.scalar(keep, "int64")))
    ring = node.emit(relax.op.floor_mod(after, node.scalar(total - keep, "int64")))
    ring = node.emit(relax.op.add(ring, node.scalar(keep, "int64")))
    is_kept = node.emit(relax.op.less(places, node.scalar(keep, "int64")))
    return node.emit(relax.op.where(is_kept, places, ring))


def _shown_of_ring(node: Node, places: relax.Expr, keys: int) -> relax.Expr:
    """Which places of a cache that slides each query sees; ``places`` are the queries' positions.

    A place of the ring has the last position that is its number, modulo the size of the ring.
    """
    keep, (batch, steps) = int(node.attr(KEEP)), shape_of(places)
    ring = keys - keep
    numbers, is_kept = as_expr(np.arange(keys)[None, None, None]), as_expr(np.arange(keys) < keep)
    own = node.emit(relax.op.reshape(places, [batch, 1, steps, 1]))
    last = node.emit(relax.op.strided_slice(own, [2], [steps - 1], [steps]))
    ago = node.emit(relax.op.subtract(last, numbers))
    ago = node.emit(relax.op.floor_mod(ago, node.scalar(ring, "int64")))
    position = node.emit(relax.op.subtract(last, ago))
    # places of the ring that no token has hold a position of those that are kept, or none
    oldest = node.emit(relax.op.subtract(own, node.scalar(ring - int(node.attr(SPARE)), "int64")))
    oldest = node.emit(relax.op.maximum(oldest, node.scalar(keep - 1, "int64")))
    is_late = node.emit(relax.op.logical_or(is_kept, node.emit(relax.op.greater(position, oldest))))
    position = node.emit(relax.op.where(is_kept, numbers, position))
    is_early = node.emit(relax.op.less_equal(position, own))
    shown = node.emit(relax.op.logical_and(is_early, is_late))
    return _inside_window(node, shown, position, own)


def _inside_window(
    node: Node, shown: relax.Expr, numbers: relax.Expr, own: relax.Expr
) -> relax.Expr:
    """Without the positions before the window of a query, if the layer has one."""
    window = int(node.attr("local_window_size", -1))
    if window <= 0:
        return shown
    begin = node.emit(relax.op.subtract(own, node.scalar(window, "int64")))
    inside = node.emit(relax.op.greater(numbers, begin))
    return node.emit(relax.op.logical_and(shown, inside))


def _sinks(node: Node, heads: int) -> relax.Expr | None:
    if node.has(11):
        return cast(node, node[11], node.dtype())
    smooth = int(node.attr("smooth_softmax", 0)) > 0
    return as_expr(np.zeros(heads, node.dtype())) if smooth else None


def _cached(node: Node, index: int, new: relax.Expr, places: relax.Expr, total: int) -> relax.Expr:
    """The cache, which is at least ``total`` long, with the new rows at their places."""
    batch, heads, steps, width = shape_of(new)
    length = node.shape(index)[2] if node.has(index) else 0
    whole = max(length, total)
    if whole == steps:
        return new
    dtype = str(new.ty.dtype)
    missing = as_expr(np.zeros([batch, heads, whole - length, width], dtype))
    old: Any = missing
    if length:
        old = node[index]
        if whole > length:
            old = node.emit(relax.op.concat([old, missing], 2))
    return write_rows(node, old, new, places, 2)


def _group_query_masks(node: Node, places: relax.Expr, keys: int, total: int) -> list[relax.Expr]:
    """Later keys are hidden, and those before the window of a query."""
    batch, steps = shape_of(places)
    numbers = as_expr(np.arange(keys)[None, None, None])
    own = node.emit(relax.op.reshape(places, [batch, 1, steps, 1]))
    if _keeps(node) is not None:
        shown = _shown_of_ring(node, places, keys)
    elif node.attr("causal", 1):
        shown = node.emit(relax.op.less_equal(numbers, own))
    else:
        used = node.emit(relax.op.reshape(cast(node, node[5], "int64"), [batch, 1, 1, 1]))
        shown = node.emit(relax.op.less_equal(numbers, used))
    if _keeps(node) is None:
        shown = _inside_window(node, shown, numbers, own)
    dtype = node.dtype()
    summands: list[relax.Expr] = [hide(node, shown, dtype, lowest(dtype))]
    if node.has(10):
        bias, columns = node[10], node.shape(10)[3]
        if columns < keys:
            bias = node.emit(relax.op.nn.pad(bias, [0] * 7 + [keys - columns]))
        summands.append(bias)
    return summands
