"""If, Loop and Scan: what constants decide is unrolled, what data decide is selected.

Loop(3, True, v) { v = Relu(v) }      ->   relu(relu(relu(v)))
If(c) { Conv(x) } else { Relu(x) }    ->   where(c, conv(x), relu(x))
Loop(n, c, v) { c, v = body(v) }      ->   v1 = where(0 < n and c, body(v), v) and so on

Selections are the meaning; the executor skips the kernels that they leave unread
(`passes/keep_conditions.py`). A loop that neither a constant count nor a constant condition ends is
unrolled `MOST_UNKNOWN` times, or as often as its body can be computed, and a run that needs more
ends in an error. The importer calls back into itself for each branch or iteration.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from tvm import relax

from tvm_stretch.base.errors import StretchError
from tvm_stretch.read.network_limits import MOST_ITERATIONS
from tvm_stretch.read.onnx.node import Node, Value, as_expr, numpy_dtype, static_shape
from tvm_stretch.read.onnx.true_sizes import Size, TrueSizes, vector

MOST_UNKNOWN = 32
"""Iterations of a loop whose end only data know."""

Scope = MutableMapping[str, "Value | None"]
Translate = Callable[[onnx.GraphProto, Scope, list[str]], list[Value]]

OPERATORS = {"If", "Loop", "Scan"}


def translate_control_flow(
    node: Node, scope: Scope, translate: Translate, sizes: TrueSizes
) -> list[Value]:
    """Translate ``node``; ``scope`` holds what its graphs may read from outside.

    Raises:
        UnsupportedError: The graphs do not fit each other.
    """
    if node.op == "If":
        return _if(node, scope, translate, sizes)

    def translated(graph: onnx.GraphProto, own: Scope, outputs: list[str]) -> list[Value]:
        values = translate(graph, own, outputs)
        if any(sizes.find(value) for value in values):
            raise node.refuse("tensors of one size from each iteration", "one that data decide")
        return values

    flow = {"Loop": _loop, "Scan": _scan if node.opset > 8 else _batched_scan}
    return flow[node.op](node, scope, translated)


def _if(node: Node, scope: Scope, translate: Translate, sizes: TrueSizes) -> list[Value]:
    branches = [
        _run(node.attrs[name], {}, scope, translate)
        for taken, name in ((True, "then_branch"), (False, "else_branch"))
        if not node.is_const(0) or bool(node.const(0, "condition").item()) == taken
    ]
    if len(branches) == 1:
        return branches[0]
    pairs = enumerate(zip(*branches, strict=True))
    return [_sized(node, place, one, other, sizes) for place, (one, other) in pairs]


def _sized(node: Node, place: int, one: Value, other: Value, sizes: TrueSizes) -> Value:
    """What a branch gives; it has a true size if those do, or if one is without elements."""
    shapes = [
        x.shape if isinstance(x, np.ndarray) else tuple(static_shape(x)) for x in (one, other)
    ]
    found = [sizes.find(one), sizes.find(other)]
    empty = [0 in shape for shape in shapes]
    if not any(found) and sum(empty) != 1:
        return _chosen(node, node[0], one, other)
    axes = {x[0] for x in found if x} or {shapes[empty.index(True)].index(0)}
    axis = axes.pop()
    if axes or len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) > 1:
        raise node.refuse(
            "tensors that differ along one axis", f"shapes {shapes[0]} and {shapes[1]}"
        )
    counts = [vector(x[1] if x else shape[axis]) for x, shape in zip(found, shapes, strict=True)]
    size = node.emit(relax.op.where(_scalar(node, node[0]), *counts))
    room = max(shape[axis] for shape in shapes)
    node.sizes[place] = axis, Size(size, room)
    if any(empty):
        return as_expr(other if empty[0] else one)
    return _chosen(node, node[0], *(_longer(node, x, axis, room) for x in (one, other)))


def _longer(node: Node, x: Value, axis: int, room: int) -> relax.Expr:
    value = as_expr(x)
    shape = static_shape(value)
    width = [0 if i != 2 * axis + 1 else room - shape[axis] for i in range(2 * len(shape))]
    return node.emit(relax.op.nn.pad(value, width)) if any(width) else value


def _chosen(node: Node, flag: relax.Expr, one: Value, other: Value) -> Value:
    """One of two tensors."""
    pair = as_expr(one), as_expr(other)
    if str(pair[0].ty) != str(pair[1].ty):
        raise node.refuse(
            "tensors of one shape and type, whatever is taken",
            f"{pair[0].ty} and {pair[1].ty}",
        )
    return node.emit(relax.op.where(_scalar(node, flag), *pair))


def _scalar(node: Node, value: relax.Expr) -> relax.Expr:
    """A tensor of one element without dimensions."""
    flat = relax.ShapeExpr([])
    return node.emit(relax.op.reshape(value, flat)) if value.ty.ndim else value


def _run(
    graph: onnx.GraphProto, inputs: dict[str, Value], scope: Scope, translate: Translate
) -> list[Value]:
    return translate(graph, ChainMap(dict(inputs), scope), [output.name for output in graph.output])


@dataclass
class _Going:
    """Whether a loop goes on; as a constant where that is known."""

    node: Node
    count: Value | None  # of iterations
    flag: Value = field(default_factory=lambda: np.asarray(True))
    ran: list[Value] = field(default_factory=list)  # whether each iteration did

    def begin(self, step: int, condition: Value) -> bool:
        """Take the condition of an iteration; returns whether there may be one."""
        flags = [condition]
        if isinstance(self.count, np.ndarray):
            flags.append(np.asarray(step < self.count.item()))
        elif self.count is not None:
            flags.append(self.node.emit(relax.op.less(_int64(step), self.count)))
        computed = [flag for flag in flags if not isinstance(flag, np.ndarray)]
        is_over = any(isinstance(flag, np.ndarray) and not flag.all() for flag in flags)
        self.flag = computed[0] if computed else np.asarray(not is_over)
        if len(computed) > 1:
            self.flag = self.node.emit(relax.op.logical_and(*computed))
        return not is_over

    @property
    def is_known(self) -> bool:
        """Whether no data decide about the present iteration."""
        return isinstance(self.flag, np.ndarray)

    @property
    def most(self) -> int:
        """After how many iterations a loop that data end is cut."""
        count = self.count.item() if isinstance(self.count, np.ndarray) else MOST_ITERATIONS + 1
        return MOST_UNKNOWN if count > MOST_ITERATIONS and not self.is_known else MOST_ITERATIONS

    def select(self, new: Value, old: Value) -> Value:
        """What a value is after an iteration."""
        if self.is_known:
            return new
        return _chosen(self.node, self.flag, new, old)

    def size(self) -> relax.Expr:
        """The number of iterations, a vector of one int64."""
        total: relax.Expr = _int64(0)
        for flag in self.ran:
            one = as_expr(flag.astype("int64")) if isinstance(flag, np.ndarray) else None
            one = one or self.node.emit(relax.op.astype(flag, "int64"))
            total = self.node.emit(relax.op.add(total, one))
        return self.node.emit(relax.op.reshape(total, relax.ShapeExpr([1])))


def _int64(value: int) -> relax.Expr:
    return relax.const(value, "int64")


def _loop(node: Node, scope: Scope, translate: Translate) -> list[Value]:
    body = node.attrs["body"]
    names = [value.name for value in body.input]
    condition: Value = np.asarray(True)
    if node.has(1):
        given = node.given(1)
        condition = given if node.is_const(1) else _scalar(node, as_expr(given))
    trip = node.given(0) if node.has(0) else None
    going = _Going(node, _scalar(node, trip) if isinstance(trip, relax.Expr) else trip)
    carried = list(node.inputs[2:])
    collected: list[list[Value]] = [[] for _ in body.output[1 + len(carried) :]]
    while going.begin(len(going.ran), condition):
        step = len(going.ran)
        inputs = dict(zip(names, [np.asarray(step), condition, *carried], strict=True))
        try:
            if step == going.most:
                raise node.refuse(f"at most {step} iterations", "more")
            new, *results = _run(body, inputs, scope, translate)
            carried = [going.select(a, b) for a, b in zip(results, carried, strict=False)]
        except StretchError:
            if step == 0 or going.is_known:
                raise
            left = node.emit(relax.op.astype(as_expr(going.flag), "int64"))
            node.zeros.append((left, f"iterations of {node.label} after the first {step}"))
            break
        condition = new if isinstance(new, np.ndarray) else _scalar(node, new)
        condition = going.select(condition, np.asarray(False))
        for values, value in zip(collected, results[len(carried) :], strict=True):
            values.append(going.select(value, np.zeros_like(_filled(value))))
        going.ran.append(going.flag)
    stacked = [_stack(node, values, 0) for values in collected]
    if not all(isinstance(flag, np.ndarray) for flag in going.ran) and stacked:
        size = going.size()
        node.sizes |= {len(carried) + place: (0, size) for place in range(len(stacked))}
    return [*carried, *stacked]


def _filled(value: Value) -> np.ndarray:
    """An array of a value's shape and type."""
    if isinstance(value, np.ndarray):
        return value
    return np.zeros(static_shape(value), numpy_dtype(str(value.ty.dtype)))


def _scan(node: Node, scope: Scope, translate: Translate) -> list[Value]:
    body = node.attrs["body"]
    names = [value.name for value in body.input]
    count = node.attr("num_scan_inputs")
    carried, scanned = list(node.inputs[:-count]), node.inputs[-count:]
    first = len(node.inputs) - count
    axes = [
        a % node.rank(first + i) for i, a in enumerate(node.attr("scan_input_axes", [0] * count))
    ]
    backwards = node.attr("scan_input_directions", [0] * count)
    steps = node.shape(first)[axes[0]]
    if steps > MOST_ITERATIONS:
        raise node.refuse(f"at most {MOST_ITERATIONS} iterations", str(steps))
    kept = len(body.output) - len(carried)
    collected: list[list[Value]] = [[] for _ in range(kept)]
    for step in range(steps):
        parts = [
            _part(node, value, axis, steps - 1 - step if back else step)
            for value, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        results = _run(body, dict(zip(names, carried + parts, strict=True)), scope, translate)
        carried = results[: len(carried)]
        for values, value in zip(collected, results[len(carried) :], strict=True):
            values.append(value)
    out_axes = node.attr("scan_output_axes", [0] * kept)
    out_back = node.attr("scan_output_directions", [0] * kept)
    stacked = [
        _stack(node, values[::-1] if back else values, axis)
        for values, axis, back in zip(collected, out_axes, out_back, strict=True)
    ]
    return [*carried, *stacked]


def _batched_scan(node: Node, scope: Scope, translate: Translate) -> list[Value]:
    """Scan of operator set 8: each sequence of a batch alone."""
    if node.has(0):
        raise node.refuse("sequences of one length", "their lengths")
    directions = {"scan_input_directions": node.attr("directions")}
    attrs = {**node.attrs, **{k: v for k, v in directions.items() if v is not None}}
    rows = []
    for index in range(node.shape(1)[0]):
        inputs = [_part(node, node.given(i), 0, index) for i in range(1, len(node.inputs))]
        rows.append(_scan(replace(node, inputs=inputs, attrs=attrs), scope, translate))
    return [_stack(node, list(values), 0) for values in zip(*rows, strict=True)]


def _part(node: Node, value: Value, axis: int, index: int) -> Value:
    """``value[.., index, ..]``."""
    if isinstance(value, np.ndarray):
        return np.take(value, index, axis)
    shape = [int(dim) for dim in value.ty.shape.values]
    taken = relax.op.strided_slice(value, [axis], [index], [index + 1])
    rest = relax.ShapeExpr(shape[:axis] + shape[axis + 1 :])
    return node.emit(relax.op.reshape(node.emit(taken), rest))


def _stack(node: Node, values: list[Value], axis: int) -> Value:
    """One tensor of what each iteration gave."""
    if not values:
        raise node.refuse("an iteration at least", "none")
    if all(isinstance(value, np.ndarray) for value in values):
        return np.stack(values, axis)
    shape = [int(dim) for dim in as_expr(values[0]).ty.shape.values]
    axis %= len(shape) + 1
    longer = relax.ShapeExpr([*shape[:axis], 1, *shape[axis:]])
    parts = [node.emit(relax.op.reshape(as_expr(value), longer)) for value in values]
    return node.emit(relax.op.concat(parts, axis)) if len(parts) > 1 else parts[0]
