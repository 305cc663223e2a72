"""The function bodies that ONNX itself defines for composite operators.

y = Celu(x)   ->   max(0, x) + min(0, alpha * (exp(x / alpha) - 1))
"""

from __future__ import annotations

import logging
from typing import Any

import onnx
import onnx.defs

from tvm_stretch.frontend.onnx_node import Node, numpy_dtype

_log = logging.getLogger(__name__)


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
        types = [_type_of(node, index) for index in range(len(node.inputs))]
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


def _type_of(node: Node, index: int) -> bytes:
    """The type of an input, serialised as the builders of function bodies want it."""
    if not node.has(index):
        return onnx.TypeProto().SerializeToString()
    dtype = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(node.dtype(index)))
    return onnx.helper.make_tensor_type_proto(dtype, node.shape(index)).SerializeToString()


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
