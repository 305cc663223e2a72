"""If, Loop and Scan whose course is known: the branch taken, or the iterations one after another.

    Loop(3, True, v) { v = Relu(v) }   ->   relu(relu(relu(v)))

The importer calls back into itself for each branch or iteration.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping

import numpy as np
import onnx
from tvm import relax

from tvm_stretch.read.network_limits import MOST_ITERATIONS
from tvm_stretch.read.onnx.node import Node, Value, as_expr

Scope = MutableMapping[str, "Value | None"]
Translate = Callable[[onnx.GraphProto, Scope, list[str]], list[Value]]

OPERATORS = {"If", "Loop", "Scan"}


def translate_control_flow(node: Node, scope: Scope, translate: Translate) -> list[Value]:
    """Translate ``node``; ``scope`` holds what its graphs may read from outside.

    Raises:
        UnsupportedError: The course depends on data.
    """
    if node.op == "If":
        taken = bool(node.const(0, "condition").item())
        return _run(node.attrs["then_branch" if taken else "else_branch"], {}, scope, translate)
    return (_loop if node.op == "Loop" else _scan)(node, scope, translate)


def _run(
    graph: onnx.GraphProto, inputs: dict[str, Value], scope: Scope, translate: Translate
) -> list[Value]:
    return translate(graph, ChainMap(dict(inputs), scope), [output.name for output in graph.output])


def _loop(node: Node, scope: Scope, translate: Translate) -> list[Value]:
    body = node.attrs["body"]
    names = [value.name for value in body.input]
    count = int(node.const(0, "trip count").item()) if node.has(0) else MOST_ITERATIONS + 1
    going = np.asarray(node.const(1, "condition") if node.has(1) else True)
    carried = list(node.inputs[2:])
    collected: list[list[Value]] = [[] for _ in body.output[1 + len(carried) :]]
    step = 0
    while step < count and going.all():
        if step == MOST_ITERATIONS:
            raise node.refuse(f"at most {MOST_ITERATIONS} iterations", "more")
        inputs = dict(zip(names, [np.asarray(step), going, *carried], strict=True))
        going, *results = _run(body, inputs, scope, translate)
        if not isinstance(going, np.ndarray):
            raise node.refuse("a constant condition", "a computed one")
        carried = results[: len(carried)]
        for values, value in zip(collected, results[len(carried) :], strict=True):
            values.append(value)
        step += 1
    return [*carried, *(_stack(node, values, 0) for values in collected)]


def _scan(node: Node, scope: Scope, translate: Translate) -> list[Value]:
    if node.opset < 9:
        raise node.refuse("operator set 9 or later", str(node.opset))
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
