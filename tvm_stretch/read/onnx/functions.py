"""Graphs inside nodes: functions of a model or of ONNX, and If, Loop and Scan of a known course.

y = Celu(x)                        ->   max(0, x) + min(0, alpha * (exp(x / alpha) - 1))
Loop(3, True, v) { v = Relu(v) }   ->   relu(relu(relu(v)))

The importer calls back into itself for each branch or iteration.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import onnx
import onnx.defs
from tvm import relax

from tvm_stretch.base.errors import ModelError, UnsupportedError
from tvm_stretch.read.network_limits import MOST_ITERATIONS, MOST_OPERATORS
from tvm_stretch.read.onnx.check import type_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr

_log = logging.getLogger(__name__)


MOST_CALLS = 100
"""Functions that may call each other in a row: ONNX inlines no more."""

_Key = tuple[str, str, str]


def needed_functions(model: onnx.ModelProto) -> list[onnx.FunctionProto]:
    """The model's own functions that are to be inlined.

    The specification calls a function the fallback for an operator that the runtime lacks, so one
    that is called like a standard operator is left out, as in ONNX Runtime.

    Raises:
        ModelError: A function calls itself.
        UnsupportedError: Inlined, they would be too many operators, or call each other too deep.
    """
    own = ("", "ai.onnx")
    versions = [o.version for o in model.opset_import if o.domain in own]
    functions = {
        _key(f): f
        for f in model.functions
        if not (f.domain in own and is_standard(f.name, max(versions, default=1)))
    }
    count = _Counter(functions)
    left = MOST_OPERATORS
    for node in model.graph.node:
        left -= count.of_node(node, 0)
        if left < 0:
            raise UnsupportedError(
                f"expected at most {MOST_OPERATORS} operators for the ONNX model, got more with "
                f"{node.op_type} {node.name or node.output[0]!r}; split the model"
            )
    return list(functions.values())


def is_standard(op: str, opset: int) -> bool:
    """Whether the default operator set has ``op``."""
    try:
        return bool(onnx.defs.get_schema(op, opset, ""))
    except (onnx.defs.SchemaError, TypeError):  # a name that is no text is refused later
        return False


def _key(proto: onnx.FunctionProto | onnx.NodeProto) -> _Key:
    name = proto.name if isinstance(proto, onnx.FunctionProto) else proto.op_type
    return ("" if proto.domain == "ai.onnx" else proto.domain, name, proto.overload)


class _Counter:
    """Counts the operators that inlining leaves, without inlining."""

    def __init__(self, functions: Mapping[_Key, onnx.FunctionProto]) -> None:
        self.functions = functions
        self.known: dict[_Key, int] = {}
        self.open: list[_Key] = []

    def of_node(self, node: onnx.NodeProto, depth: int) -> int:
        graphs = [a.g for a in node.attribute if a.HasField("g")]
        inner = sum(self.of_nodes(graph.node, depth + 1) for graph in graphs)
        return inner + self.of_call(node, depth)

    def of_nodes(self, nodes: Iterable[onnx.NodeProto], depth: int) -> int:
        return sum(self.of_node(node, depth) for node in nodes)

    def of_call(self, node: onnx.NodeProto, depth: int) -> int:
        key = _key(node)
        if key not in self.functions:
            return 1
        name = ".".join(filter(None, key))
        if key in self.open:
            raise ModelError(
                f"expected functions that do not call themselves for the ONNX model, got {name}; "
                "export the model again"
            )
        if depth >= MOST_CALLS:
            raise UnsupportedError(
                f"expected at most {MOST_CALLS} functions that call each other for the ONNX "
                f"model, got more at {name}; inline them before"
            )
        if key not in self.known:
            self.open.append(key)
            self.known[key] = self.of_nodes(self.functions[key].node, depth + 1)
            self.open.pop()
        return self.known[key]


def function_body(proto: onnx.NodeProto, node: Node) -> onnx.FunctionProto | None:
    """The body for ``proto`` with its attributes filled in; None if ONNX defines none."""
    try:
        schema: Any = onnx.defs.get_schema(node.op, node.opset, proto.domain)
    except onnx.defs.SchemaError:
        return None
    body = onnx.FunctionProto()
    if versions := [v for v in schema.function_opset_versions if v <= node.opset]:
        body.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    elif versions := [
        v for v in schema.context_dependent_function_opset_versions if v <= node.opset
    ]:
        types = [type_of(value).SerializeToString() for value in node.inputs]
        try:
            body.ParseFromString(
                schema.get_context_dependent_function_with_opset_version(
                    max(versions), proto.SerializeToString(), types
                )
            )
        except Exception as error:  # the builders refuse attributes in ways of their own
            _log.debug("no function body for %s: %s", node.op, error)
            return None
    else:
        return None
    if not body.opset_import:
        body.opset_import.append(onnx.helper.make_opsetid("", node.opset))
    return _with_attributes(body, proto, schema)


def _with_attributes(
    body: onnx.FunctionProto, proto: onnx.NodeProto, schema: onnx.defs.OpSchema
) -> onnx.FunctionProto:
    """Replace references to the operator's attributes by their values."""
    values = {a.name: a.default_value for a in schema.attributes.values() if a.default_value.name}
    values.update({a.name: a for a in proto.attribute})
    for inner in body.node:
        kept = []
        for attribute in inner.attribute:
            if not attribute.ref_attr_name:
                kept.append(attribute)
            elif attribute.ref_attr_name in values:
                value = onnx.AttributeProto()
                value.CopyFrom(values[attribute.ref_attr_name])
                value.name = attribute.name
                kept.append(value)
        kept = [_copied(attribute) for attribute in kept]
        del inner.attribute[:]
        inner.attribute.extend(kept)
    return body


def _copied(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    copy = onnx.AttributeProto()
    copy.CopyFrom(attribute)
    return copy


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
