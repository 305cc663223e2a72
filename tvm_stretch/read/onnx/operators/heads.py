"""Attention of several heads, written out in Relax: what all operators of attention share.

    summand = where(mask, 0, lowest) + bias         (batch, 1 or heads, queries, keys)
    y = softmax(q @ transpose(k) * scale + summand) @ v

`tvm_stretch/network/emitting/attention.py` makes one kernel of these operators. A summand is one
tensor, because that kernel has one mask. Heads that share keys repeat them, and the kernel undoes
it.

`Attention` without a mask is converted here, because ONNX's own function scales keys, which keeps
them from being read where they lie. With a mask it also finds rows that are hidden completely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import shape_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter

_LOWEST = {"float16": -65504.0}


def lowest(dtype: str) -> float:
    """What hides a key. It is finite, so that a query without keys gives numbers."""
    return _LOWEST.get(dtype, -1e30)


def split_heads(node: Node, x: relax.Expr, heads: int) -> relax.Var:
    """(batch, steps, heads * width) -> (batch, heads, steps, width)."""
    batch, steps, width = shape_of(x)
    if heads < 1 or width % heads:
        raise node.refuse("heads that divide the columns", f"{heads} heads, {width} columns")
    parts = node.emit(relax.op.reshape(x, [batch, steps, heads, width // heads]))
    return node.emit(relax.op.permute_dims(parts, [0, 2, 1, 3]))


def merge_heads(node: Node, x: relax.Expr) -> relax.Expr:
    """(batch, heads, steps, width) -> (batch, steps, heads * width)."""
    batch, heads, steps, width = shape_of(x)
    turned = node.emit(relax.op.permute_dims(x, [0, 2, 1, 3]))
    return relax.op.reshape(turned, [batch, steps, heads * width])


def after_past(
    node: Node, inputs: tuple[int, int], new: Sequence[relax.Expr]
) -> tuple[int, list[relax.Expr]]:
    """Keys and values after those of two inputs, if these are given, and how many these are."""
    past = node.shape(inputs[0])[2] if all(map(node.has, inputs)) else 0
    if not past:
        return 0, [*new]
    pairs = zip(inputs, new, strict=True)
    return past, [node.emit(relax.op.concat([node[i], x], 2)) for i, x in pairs]


@dataclass
class Scores:
    """How products of queries and keys become shares.

    Attributes:
        scale: Their factor; 0 for the usual one.
        summands: Tensors that are added to them.
        softcap: They stay between this number and its negative; 0 for no limit.
        sinks: One more score of each head, of shape (heads,), which gets a share and has no value.
    """

    scale: float = 0.0
    summands: Sequence[relax.Expr] = ()
    softcap: float = 0.0
    sinks: relax.Expr | None = None


def attend(
    node: Node, query: relax.Expr, key: relax.Expr, value: relax.Expr, how: Scores
) -> relax.Var:
    """Attention of tensors of shape (batch, heads, steps, width); heads of keys may be fewer."""
    heads, depth = shape_of(query)[1], shape_of(query)[3]
    key, value = (_repeated(node, x, heads) for x in (key, value))
    turned = node.emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
    scores = node.emit(relax.op.matmul(query, turned))
    dtype = str(scores.ty.dtype)
    scale = how.scale or depth**-0.5
    scores = node.emit(relax.op.multiply(scores, node.scalar(scale, dtype)))
    if how.softcap:
        limit = node.scalar(how.softcap, dtype)
        inside = node.emit(relax.op.tanh(node.emit(relax.op.divide(scores, limit))))
        scores = node.emit(relax.op.multiply(inside, limit))
    if how.summands:
        total, *rest = how.summands
        for summand in rest:
            total = node.emit(relax.op.add(total, summand))
        scores = node.emit(relax.op.add(scores, total))
    if how.sinks is None:
        shares = node.emit(relax.op.nn.softmax(scores, -1))
    else:
        shares = _shares_beside(node, scores, how.sinks)
    return node.emit(relax.op.matmul(shares, value))


def _repeated(node: Node, x: relax.Expr, heads: int) -> relax.Expr:
    """Keys or values once for each head that reads them."""
    batch, own, steps, width = shape_of(x)
    if own == heads:
        return x
    if heads % own:
        raise node.refuse("heads of keys that divide those of queries", f"{own} and {heads}")
    one = node.emit(relax.op.reshape(x, [batch, own, 1, steps, width]))
    wide = node.emit(relax.op.broadcast_to(one, [batch, own, heads // own, steps, width]))
    return node.emit(relax.op.reshape(wide, [batch, heads, steps, width]))


def _shares_beside(node: Node, scores: relax.Expr, sinks: relax.Expr) -> relax.Expr:
    """The shares of keys, where each head has one score more."""
    batch, heads, steps, keys = shape_of(scores)
    column = node.emit(relax.op.reshape(sinks, [1, heads, 1, 1]))
    column = node.emit(relax.op.broadcast_to(column, [batch, heads, steps, 1]))
    shares = node.emit(relax.op.nn.softmax(node.emit(relax.op.concat([scores, column], 3)), -1))
    return node.emit(relax.op.strided_slice(shares, [3], [0], [keys]))


def hide(node: Node, shown: relax.Expr, dtype: str, hidden: float) -> relax.Var:
    """0 where ``shown`` is true, and ``hidden`` elsewhere."""
    zero, other = node.scalar(0, dtype), node.scalar(hidden, dtype)
    return node.emit(relax.op.where(shown, zero, other))


def padding(node: Node, index: int, batch: int, steps: int, keys: int) -> relax.Var:
    """A mask of keys as a truth of shape (batch, 1, 1 or steps, keys)."""
    mask, shape = node[index], node.shape(index)
    if shape == [batch]:  # the number of keys of each row
        ends = node.emit(relax.op.reshape(mask, [batch, 1]))
        places = as_expr(np.arange(keys, dtype=node.dtype(index))[None])
        shown, shape = relax.op.less(places, ends), [batch, keys]
    elif shape in ([batch, keys], [batch, steps, keys]):
        shown = relax.op.not_equal(mask, node.scalar(0, node.dtype(index)))
    else:
        raise node.refuse(f"a mask of shape {[batch, keys]}", str(shape))
    wanted = [batch, 1, *([1] if len(shape) == 2 else []), *shape[1:]]
    return node.emit(relax.op.reshape(node.emit(shown), wanted))


def earlier(steps: int, past: int, dtype: str, hidden: float) -> relax.Expr:
    """Hides keys that come after their query, of which ``past`` keys come before the first one."""
    later = np.triu(np.full((steps, past + steps), hidden), 1 + past)
    return as_expr(later[None, None].astype(dtype))


def rotated(
    node: Node,
    x: relax.Expr,
    positions: relax.Expr,  # (batch, steps)
    tables: tuple[relax.Expr, relax.Expr],  # cosines and sines, (positions, half of the width)
    interleaved: bool,
) -> relax.Var:
    """Rotary positions of the first numbers of each head: ``x`` is (batch, heads, steps, width)."""
    batch, heads, steps, width = shape_of(x)
    half = shape_of(tables[0])[1]
    if 2 * half > width:
        raise node.refuse(f"tables of at most {width // 2} columns", str(half))
    cosine, sine = (
        node.emit(relax.op.expand_dims(node.emit(relax.op.take(table, positions, 0)), 1))
        for table in tables
    )
    if interleaved:
        whole = _sliced(node, x, 0, 2 * half)
        pairs = node.emit(relax.op.reshape(whole, [batch, heads, steps, half, 2]))
        one, two = (
            node.emit(relax.op.squeeze(_sliced(node, pairs, i, i + 1), [4])) for i in (0, 1)
        )
    else:
        one, two = (_sliced(node, x, i * half, (i + 1) * half) for i in (0, 1))
    real = relax.op.subtract(relax.op.multiply(one, cosine), relax.op.multiply(two, sine))
    other = relax.op.add(relax.op.multiply(one, sine), relax.op.multiply(two, cosine))
    parts = [node.emit(real), node.emit(other)]
    if interleaved:
        both = node.emit(relax.op.stack(parts, 4))
        parts = [node.emit(relax.op.reshape(both, [batch, heads, steps, 2 * half]))]
    if 2 * half < width:
        parts.append(_sliced(node, x, 2 * half, width))
    return node.emit(relax.op.concat(parts, 3)) if len(parts) > 1 else parts[0]


def _sliced(node: Node, x: relax.Expr, begin: int, end: int) -> relax.Var:
    return node.emit(relax.op.strided_slice(x, [len(shape_of(x)) - 1], [begin], [end]))


_NEEDS_FUNCTION = (3, 6)
"""Inputs: a mask, and the number of keys of each row."""


@converter("Attention")
def _attention(node: Node) -> tuple[Value, ...]:
    dtype = node.dtype()
    windows = [node.attr(side, -1) for side in ("left_window_size", "right_window_size")]
    if any(node.has(i) for i in _NEEDS_FUNCTION) or any(node.outputs[3:]) or dtype != "float32":
        return ()
    if any(window >= 0 for window in windows):
        return ()
    operands = [
        split_heads(node, node[i], int(node.attr(name, 0))) if node.rank(i) == 3 else node[i]
        for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads"))
    ]
    query = operands[0]
    past, both = after_past(node, (4, 5), operands[1:])
    summands = []
    steps, keys = shape_of(query)[2], shape_of(both[0])[2]
    if node.attr("is_causal", 0) and steps + past > 1:
        if steps + past != keys:
            return ()
        summands = [earlier(steps, past, dtype, lowest(dtype))]
    scores = Scores(node.attr("scale", 0.0), summands, node.attr("softcap", 0.0))
    result = attend(node, query, both[0], both[1], scores)
    merged = result if node.rank() == 4 else merge_heads(node, result)
    return merged, *(both if any(node.outputs[1:]) else [])
