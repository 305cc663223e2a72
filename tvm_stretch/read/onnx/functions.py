"""Functions of a model or of ONNX, whose bodies replace the nodes that call them.

y = Celu(x)   ->   max(0, x) + min(0, alpha * (exp(x / alpha) - 1))
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx.defs

from tvm_stretch.base.errors import ModelError, UnsupportedError
from tvm_stretch.read.network_limits import MOST_OPERATORS
from tvm_stretch.read.onnx.check import type_of
from tvm_stretch.read.onnx.node import Node

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
        self.counts: dict[_Key, int] = {}
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
        if key not in self.counts:
            self.open.append(key)
            self.counts[key] = self.of_nodes(self.functions[key].node, depth + 1)
            self.open.pop()
        return self.counts[key]


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
