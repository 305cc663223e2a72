"""Compute a float16 network in float32, for processors without float16 arithmetic.

    x: float16                                     x: float16
    y = Conv(x, w: float16)               ->       x.wide = Cast(x, float32)
                                                   y.wide = Conv(x.wide, w: float32)
                                                   y = Cast(y.wide, float16)

Without it, a processor would convert before and after every operator. Inputs and outputs keep their
type; in between nothing is rounded to float16, so the answer has more digits.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.read.onnx.reader import OnnxNetwork

_HALF, _WIDE = TensorProto.FLOAT16, TensorProto.FLOAT
_TYPES = ("to", "dtype", "output_dtype")
"""Attributes of ONNX operators that hold the type of a result."""


def widen_halves(network: OnnxNetwork) -> bool:
    """Make all tensors between inputs and outputs float32, in place; whether any was float16."""
    graph = network.model.graph
    changed = False
    for name, weight in network.weights.items():
        if weight.dtype == np.float16:
            network.weights[name] = weight.astype("float32")
            changed = True
    given = [value.name for value in network.inputs if _is_half(value)]
    returned = [value.name for value in graph.output if _is_half(value)]
    ports = {*given, *returned} - ({*given} & {*returned})  # one that is both stays as it is
    changed = _widen(graph, ports) or changed or bool(ports)
    values = [value for value in graph.input if value.name in network.weights]
    for value in (*values, *graph.value_info):
        if _is_half(value):
            value.type.tensor_type.elem_type = _WIDE
    casts = [
        helper.make_node("Cast", [name], [_wide(name)], to=_WIDE) for name in given if name in ports
    ]
    nodes = [*casts, *graph.node]
    nodes += [
        helper.make_node("Cast", [_wide(name)], [name], to=_HALF)
        for name in returned
        if name in ports
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    kept = {*given, *returned}
    for name, kind in network.declared.items():
        if kind == _HALF and name not in kept:
            network.declared[name] = _WIDE
    return changed


def _wide(name: str) -> str:
    return f"{name}.wide"


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == _HALF)


def _widen(graph: onnx.GraphProto, ports: set[str]) -> bool:
    """Widen one graph and the graphs in its nodes, which read the ports under another name."""
    changed = False
    for tensor in graph.initializer:
        changed |= _widen_tensor(tensor)
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [_wide(name) if name in ports else name for name in names]
        for attribute in node.attribute:
            if attribute.name in _TYPES and attribute.i == _HALF:
                attribute.i = _WIDE
            changed |= attribute.HasField("t") and _widen_tensor(attribute.t)
            inner = [attribute.g] if attribute.HasField("g") else []
            for other in (*inner, *attribute.graphs):
                changed |= _widen(other, ports)
                _rename_results(other.output, ports)
    return changed


def _rename_results(values: Iterable[onnx.ValueInfoProto], ports: set[str]) -> None:
    """The results of an inner graph are float32, perhaps under another name."""
    for value in values:
        value.name = _wide(value.name) if value.name in ports else value.name
        if _is_half(value):
            value.type.tensor_type.elem_type = _WIDE


def _widen_tensor(tensor: TensorProto) -> bool:
    if tensor.data_type != _HALF:
        return False
    wide = numpy_helper.to_array(tensor).astype("float32")
    tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    return True
