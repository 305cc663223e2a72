"""Operators that move data: reshape, transpose, slice, concat, pad, gather, resize."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvm_stretch.frontend.onnx_importer import Node, converter


@converter("Shape")
def _shape(node: Node) -> np.ndarray:
    shape = node.shape()
    return np.asarray(shape[node.attr("start", 0) : node.attr("end", len(shape))], "int64")


@converter("Size")
def _size(node: Node) -> np.ndarray:
    return np.asarray(np.prod(node.shape()), "int64")


@converter("Reshape")
def _reshape(node: Node) -> relax.Expr:
    old = node.shape()
    new = node.ints(1, "shape")
    if not node.attr("allowzero", 0):
        new = [old[i] if size == 0 else size for i, size in enumerate(new)]
    if -1 in new:
        rest = int(np.prod([size for size in new if size != -1]))
        new[new.index(-1)] = int(np.prod(old)) // rest if rest else 0
    return relax.op.reshape(node[0], new)


@converter("Flatten")
def _flatten(node: Node) -> relax.Expr:
    shape = node.shape()
    axis = node.attr("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return relax.op.reshape(node[0], (int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))))


@converter("Squeeze")
def _squeeze(node: Node) -> relax.Expr:
    shape = node.shape()
    axes = node.ints(1, "axes")
    dropped = {a % len(shape) for a in axes} if axes else {i for i, size in enumerate(shape) if size == 1}
    return relax.op.reshape(node[0], [size for i, size in enumerate(shape) if i not in dropped])


@converter("Unsqueeze")
def _unsqueeze(node: Node) -> relax.Expr:
    shape = node.shape()
    axes = node.ints(1, "axes")
    rank = len(shape) + len(axes)
    new = {a % rank for a in axes}
    sizes = iter(shape)
    return relax.op.reshape(node[0], [1 if i in new else next(sizes) for i in range(rank)])


@converter("Transpose")
def _transpose(node: Node) -> relax.Expr:
    return relax.op.permute_dims(node[0], node.attr("perm") or list(range(len(node.shape())))[::-1])


@converter("Concat")
def _concat(node: Node) -> relax.Expr:
    parts = [node[i] for i in range(len(node.inputs))]
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=node.attr("axis", 1))


@converter("Split")
def _split(node: Node) -> tuple[relax.Expr, ...]:
    axis = node.attr("axis", 0)
    extent = node.shape()[axis]
    sizes = node.ints(1, "split")
    if sizes is None:
        count = len(node.outputs)
        each = -(-extent // count)
        sizes = [each] * (count - 1) + [extent - each * (count - 1)]
    if len(sizes) == 1:
        return (node[0],)
    parts = node.emit(relax.op.split(node[0], [int(v) for v in np.cumsum(sizes)[:-1]], axis=axis))
    return tuple(relax.TupleGetItem(parts, i) for i in range(len(sizes)))


@converter("Slice")
def _slice(node: Node) -> relax.Expr:
    shape = node.shape()
    starts, ends = node.ints(1, "starts"), node.ints(2, "ends")
    axes = node.ints(3, "axes") or list(range(len(starts)))
    steps = node.ints(4, "steps") or [1] * len(starts)
    axes = [a % len(shape) for a in axes]
    begin, end = [], []
    for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
        first, last, _ = slice(start, stop, step).indices(shape[axis])
        begin.append(first)
        end.append(last)
    return relax.op.strided_slice(node[0], axes, begin, end, steps)


@converter("Pad")
def _pad(node: Node) -> relax.Expr:
    rank = len(node.shape())
    pads = node.ints(1, "pads")
    value = node.const(2, "constant_value") if node.opset >= 11 else node.attr("value", 0.0)
    axes = node.ints(3, "axes") or list(range(rank))
    width = [0] * 2 * rank
    for i, axis in enumerate(axes):
        width[2 * (axis % rank)] = pads[i]
        width[2 * (axis % rank) + 1] = pads[len(axes) + i]
    mode = node.attr("mode", "constant")
    if mode not in ("constant", "reflect", "edge"):
        raise node.refuse("mode constant, reflect or edge", mode)
    fill = 0.0 if value is None else np.asarray(value).item()
    return relax.op.nn.pad(node[0], width, {"edge": "replicate"}.get(mode, mode), fill)
