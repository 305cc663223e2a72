"""Operators that depend on how many elements of a tensor count (`true_sizes.py`).

    Shape(boxes)           the number of boxes stays a `Size` until something is made of it
    TopK(scores, k)        elements after the true size are the lowest number
    Concat(a, b)           the elements of `a` that count, then those of `b`
    ReduceMax(boxes)       elements after the true size are the neutral number
    Reshape(rows, (-1, 4)) rows that stay together keep their number

Detectors are made of these between their last layers and their boxes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import TypeAlias

import numpy as np
from onnx import TensorProto
from tvm import relax

from tvm_stretch.network.expressions import constant, ends_of
from tvm_stretch.read.onnx.node import CONVERTERS, Node, Value, as_expr, static_shape
from tvm_stretch.read.onnx.operators.gather import rows_written
from tvm_stretch.read.onnx.operators.reduction import neutral, reduced_axes
from tvm_stretch.read.onnx.operators.selection import chosen, inside
from tvm_stretch.read.onnx.true_sizes import Size, TrueSizes, vector

Results: TypeAlias = "tuple[Value, ...] | Value | None"
Rule = Callable[[Node, TrueSizes], Results]
_RULES: dict[str, Rule] = {}


def convert_sized(node: Node, sizes: TrueSizes) -> tuple[Value, ...] | None:
    """The results of an operator that reads true sizes; None if nothing here is needed for it."""
    rule = _RULES.get(node.op)
    reads = any(sizes.find(x) or sizes.numbers(x) is not None for x in node.inputs)
    results = rule(node, sizes) if rule and (reads or node.op == "NonZero") else None
    if results is None:
        return None
    node.is_settled = True
    return results if isinstance(results, tuple) else (results,)


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def _plain(node: Node, inputs: dict[int, Value]) -> Value:
    """The results of the operator's own converter for other inputs."""
    given = [inputs.get(place, value) for place, value in enumerate(node.inputs)]
    result = CONVERTERS[node.op](replace(node, inputs=given))
    return result if isinstance(result, np.ndarray | tuple) else node.emit(result)


def _long(*values: int) -> relax.Expr:
    return constant(np.asarray(values, "int64"))


def _most(value: int | Size) -> int:
    return value.most if isinstance(value, Size) else int(value)


@_rule("Shape")
def _shape(node: Node, sizes: TrueSizes) -> Results:
    true_size = sizes.find(node.inputs[0])
    if true_size is None:
        return None
    numbers = np.array(node.shape(), object)
    numbers[true_size[0]] = true_size[1]
    numbers = numbers[node.attr("start", 0) : node.attr("end", len(numbers))]
    if not any(isinstance(number, Size) for number in numbers):
        return numbers.astype("int64")
    parts = [vector(number) for number in numbers]
    return sizes.tell(node.emit(relax.op.concat(parts, 0)), numbers)


@_rule("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
def _moved(node: Node, sizes: TrueSizes) -> Results:
    numbers = sizes.numbers(node.inputs[0])
    if numbers is None or (node.op == "Cast" and node.attr("to") != TensorProto.INT64):
        return _reshaped(node, sizes) if node.op == "Reshape" else None
    result = _plain(node, {})
    return sizes.tell(result, numbers.reshape(static_shape(result)))


@_rule("Concat")
def _joined(node: Node, sizes: TrueSizes) -> Results:
    told = [sizes.numbers(x) for x in node.inputs]
    if any(numbers is not None for numbers in told):
        parts = [x if n is None else n for x, n in zip(node.inputs, told, strict=True)]
        if all(isinstance(part, np.ndarray) for part in parts):
            whole = np.concatenate([np.asarray(part, object) for part in parts])
            return sizes.tell(_plain(node, {}), whole)
    axis, true_sizes = node.axis(0), [sizes.find(x) for x in node.inputs]
    if {one[0] for one in true_sizes if one} != {axis}:
        return None
    if len(true_sizes) == 1 and true_sizes[0]:  # the boxes of a batch of one image
        node.sizes[0] = true_sizes[0]
        return _plain(node, {})
    rooms = [node.shape(i)[axis] for i in range(len(true_sizes))]
    counts = [one[1] if one else room for one, room in zip(true_sizes, rooms, strict=True)]

    def make() -> tuple[relax.Expr, Size]:
        masks = [
            node.emit(relax.op.less(_long(*range(room)), vector(count)))
            for room, count in zip(rooms, counts, strict=True)
        ]
        front, size = chosen(node, node.emit(relax.op.concat(masks, 0)), sum(rooms))
        return front, Size(size, sum(rooms))

    front, size = sizes.once(("joined", *counts, *rooms), make)
    node.sizes[0] = axis, size
    return relax.op.take(_plain(node, {}), front, axis)


@_rule("Gather")
def _gathered(node: Node, sizes: TrueSizes) -> Results:
    """Places that count from the end do so from the true one."""
    numbers = sizes.numbers(node.inputs[0])
    if numbers is not None and node.is_const(1):
        picked = np.take(numbers, node.const(1, "indices"), node.axis(0))
        return sizes.tell(_plain(node, {}), np.asarray(picked, object))
    data, places, axis = sizes.find(node.inputs[0]), sizes.find(node.inputs[1]), node.axis(0)
    if data is None or data[0] != axis:
        return None
    index = _from_the_front(node, node[1], data[1].expr)
    if places:
        node.sizes[0] = axis + places[0], places[1]
    return _plain(node, {1: index})


@_rule("ReduceMin", "ReduceMax", "ReduceSum", "ReduceProd")
def _reduced(node: Node, sizes: TrueSizes) -> Results:
    numbers, true_size = sizes.numbers(node.inputs[0]), sizes.find(node.inputs[0])
    if numbers is not None and node.op == "ReduceMin" and numbers.ndim == 1:
        least = np.full(1, sizes.least(node, [*numbers]), object)
        result = _plain(node, {})
        return sizes.tell(result, least.reshape(static_shape(result)))
    if true_size is None:
        return None
    (axis, size), rank = true_size, node.rank()
    axes = {one % rank for one in reduced_axes(node)}
    if axis in axes:
        return _plain(node, {0: inside(node, node[0], axis, size.expr, neutral(node))})
    before = 0 if node.attr("keepdims", 1) else sum(one < axis for one in axes)
    node.sizes[0] = axis - before, size
    return _plain(node, {})


@_rule("TopK")
def _top(node: Node, sizes: TrueSizes) -> Results:
    axis, true_size = node.axis(-1), sizes.find(node.inputs[0])
    if node.opset < 10 or (true_size and true_size[0] != axis):
        return None
    told = sizes.numbers(node.inputs[1])
    asked = int(node.const(1, "K").item()) if told is None else told.reshape(-1)[0]
    x, among = node[0], [asked, node.shape()[axis]]
    if true_size:
        end = ends_of(node.dtype())[0 if node.attr("largest", 1) else 1]
        x, among = inside(node, x, axis, true_size[1].expr, end), [asked, true_size[1]]
    count = sizes.least(node, among)
    if isinstance(count, Size):
        node.sizes |= dict.fromkeys(range(2), (axis, count))
    return _plain(node, {0: x, 1: np.asarray([_most(count)])})


@_rule("Slice")
def _cut(node: Node, sizes: TrueSizes) -> Results:
    """A limit on the number of boxes keeps the first ones; other slices are refused."""
    true_size, told = sizes.find(node.inputs[0]), sizes.numbers(node.inputs[2])
    constants = [1, *range(3, len(node.inputs)), *([] if told is not None else [2])]
    if true_size is None or not all(map(node.is_const, constants)):
        return None
    (axis, size), rank = true_size, node.rank()
    starts = node.ints(1, "starts")
    ends = node.ints(2, "ends") if told is None else [*told.flat]
    axes = [one % rank for one in node.optional_ints(3, "axes") or range(len(starts))]
    steps = node.optional_ints(4, "steps") or [1] * len(starts)
    if axis not in axes:
        return None
    place = axes.index(axis)
    if starts[place] != 0 or steps[place] != 1 or _most(ends[place]) <= 0:
        return None
    node.sizes[0] = axis, sizes.least(node, [size, ends[place]])
    return _plain(node, {2: np.array([_most(end) for end in ends])})


@_rule("Split")
def _parts(node: Node, sizes: TrueSizes) -> Results:
    true_size = sizes.find(node.inputs[0])
    if true_size is None or true_size[0] == node.axis(0):
        return None
    node.sizes |= dict.fromkeys(range(len(node.outputs)), true_size)
    return _plain(node, {})


@_rule("Equal")
def _compared(node: Node, sizes: TrueSizes) -> Results:
    """Exporters look for -1 among the sizes of a shape; no true size is below zero."""
    told, other = sizes.numbers(node.inputs[0]), node.inputs[1]
    if told is None or not isinstance(other, np.ndarray) or (other >= 0).any():
        return None
    numbers = [0 if isinstance(number, Size) else int(number) for number in told.flat]
    return np.equal(np.reshape(numbers, told.shape), other)


@_rule("Where")
def _either(node: Node, sizes: TrueSizes) -> Results:
    mask, *values = node.inputs
    told = [x if (n := sizes.numbers(x)) is None else n for x in values]
    if not isinstance(mask, np.ndarray) or not all(isinstance(x, np.ndarray) for x in told):
        return None
    return sizes.tell(_plain(node, {}), np.where(mask, *(np.asarray(x, object) for x in told)))


@_rule("Add")
def _added(node: Node, sizes: TrueSizes) -> Results:
    """A size after nothing, as where the parts of a batch are taken, is that size."""
    for place, other in ((0, node.inputs[1]), (1, node.inputs[0])):
        told = sizes.numbers(node.inputs[place])
        if told is not None and isinstance(other, np.ndarray) and not other.any():
            result = _plain(node, {})
            return sizes.tell(result, np.broadcast_to(told, static_shape(result)))
    return None


@_rule("Range")
def _counted(node: Node, sizes: TrueSizes) -> Results:
    """The numbers of all boxes, from 0."""
    told = sizes.numbers(node.inputs[1])
    if told is None or node.const(0, "start").item() != 0 or node.const(2, "delta").item() != 1:
        return None
    node.sizes[0] = 0, told.item()
    return node.emit(as_expr(np.arange(_most(told.item()), dtype=node.dtype(1))))


@_rule("ScatterElements")
def _scattered(node: Node, sizes: TrueSizes) -> Results:
    """Places that do not count are one more row, which is cut off again."""
    data, places, values = (sizes.find(node.inputs[i]) for i in range(3))
    axis = node.axis(0)
    if places is None or values != places or (data and data[0] != axis):
        return None
    rows = node.shape()[axis]
    row = relax.op.zeros([*node.shape()[:axis], 1, *node.shape()[axis + 1 :]], node.dtype())
    longer = node.emit(relax.op.concat([node[0], node.emit(row)], axis))
    each = rows_written(node)
    index = _from_the_front(node, node[1] if each is None else each, _long(rows))
    index = inside(node, index, places[0], places[1].expr, rows)
    if each is not None:
        index = node.emit(relax.op.broadcast_to(index, relax.ShapeExpr(node.shape(1))))
    result = node.emit(as_expr(_plain(node, {0: longer, 1: index})))
    if data:
        node.sizes[0] = data
    return relax.op.strided_slice(result, [axis], [0], [rows])


def _from_the_front(node: Node, index: relax.Expr, count: relax.Expr) -> relax.Expr:
    """Places; those below zero are counted from the end of `count` elements, a vector of one."""
    kind = node.dtype(1)
    size = node.emit(relax.op.astype(count, kind))
    size = node.emit(relax.op.reshape(size, relax.ShapeExpr([])))
    is_last = node.emit(relax.op.less(index, node.scalar(0, kind)))
    return node.emit(relax.op.where(is_last, node.emit(relax.op.add(index, size)), index))


@_rule("ConstantOfShape", "Expand")
def _filled(node: Node, sizes: TrueSizes) -> Results:
    place = 0 if node.op == "ConstantOfShape" else 1
    told = sizes.numbers(node.inputs[place])
    if told is None:
        return None
    axes = [axis for axis, number in enumerate(told) if isinstance(number, Size)]
    own = sizes.find(node.inputs[0])
    shape = [_most(number) for number in told]
    if len(axes) > 1:
        return None
    if own and (own[1] is not told[axes[0]] or own[0] - node.rank() != axes[0] - len(shape)):
        return None
    node.sizes[0] = axes[0], told[axes[0]]
    return _plain(node, {place: np.asarray(shape)})


def _reshaped(node: Node, sizes: TrueSizes) -> Results:
    """Rows in front stay in front, and each may become several."""
    true_size, told = sizes.find(node.inputs[0]), sizes.numbers(node.inputs[1])
    if true_size is None or (told is None and not node.is_const(1)):
        return None
    (axis, size), old = true_size, node.shape()
    given = node.const(1, "shape") if told is None else np.array([_most(x) for x in told.flat])
    if prod(old[:axis]) > 1 or (told is not None and told.reshape(-1)[0] is not size):
        return None
    result = _plain(node, {1: given})
    new = static_shape(result)
    rows, inner = new[0], prod(old[axis + 1 :])
    if rows * prod(new[1:]) != old[axis] * inner or inner % prod(new[1:]):
        return None
    times = inner // prod(new[1:])
    if times != 1:
        size = sizes.once(
            ("times", size, times),
            lambda: Size(node.emit(relax.op.multiply(size.expr, _long(times))), size.most * times),
        )
    node.sizes[0] = 0, size
    return result


@_rule("Flatten")
def _flattened(node: Node, sizes: TrueSizes) -> Results:
    true_size = sizes.find(node.inputs[0])
    if true_size is None or true_size[0] != 0 or node.axis(1) != 1:
        return None
    node.sizes[0] = true_size
    return _plain(node, {})


@_rule("NonZero")
def _marked(node: Node, sizes: TrueSizes) -> Results:
    """All reads of one mask share one number of marks."""
    true_size, given = sizes.find(node.inputs[0]), node.inputs[0]

    def make() -> tuple[Value, Size]:
        x = inside(node, node[0], true_size[0], true_size[1].expr, 0) if true_size else node[0]
        own = replace(node, inputs=[x])
        result = node.emit(as_expr(CONVERTERS["NonZero"](own)))
        return result, Size(own.sizes[0][1], static_shape(result)[1])

    result, size = sizes.once(("marked", given), make)
    node.sizes[0] = 1, size
    return result


@_rule("NonMaxSuppression")
def _suppressed(node: Node, sizes: TrueSizes) -> Results:
    """Boxes that do not count have a score that is below all others."""
    scores = node[1]
    for index, axis in ((0, 1), (1, 2)):
        true_size = sizes.find(node.inputs[index])
        if true_size and true_size[0] != axis:
            return None
        if true_size:
            scores = inside(node, scores, 2, true_size[1].expr, -np.inf)
    own = replace(node, inputs=[node.inputs[0], scores, *node.inputs[2:]], sizes=node.sizes)
    return CONVERTERS["NonMaxSuppression"](own)
