"""Batch normalisations of an ONNX file are folded into the convolutions before them.

    Conv -> BatchNormalization -> Relu              becomes      Conv -> Relu
    Conv, Conv -> Concat -> BatchNormalization      becomes      Conv, Conv -> Concat

What lies between would get a scale of its own when the network is quantised, and a kernel. ONNX
Runtime does it from 1.31 on, versions before leave them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.version_converter
from onnx import numpy_helper

_EPSILON = 1e-5
"""Unless the node says otherwise."""
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def fold_batch_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without the batch normalisations that a convolution alone leads to."""
    folded = onnx.ModelProto()
    folded.CopyFrom(model)
    graph = folded.graph
    values = {value.name: value for value in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    reads = Counter(name for node in graph.node for name in node.input)
    if any(a.type in _GRAPHS for node in graph.node for a in node.attribute):
        return folded  # they read what they like
    reads.update(value.name for value in graph.output)
    for norm in list(graph.node):
        if norm.op_type != "BatchNormalization" or len(norm.output) > 1:
            continue
        convs = _convolutions(norm.input[0], makers, reads)
        parameters = [*norm.input[1:], *(name for conv in convs for name in conv.input[1:])]
        if not convs or not all(name in values for name in parameters):
            continue
        first = 0
        for index, conv in enumerate(convs):
            count = values[conv.input[1]].dims[0]
            names = [f"{norm.output[0]}.folded{index or ''}.{what}" for what in ("weight", "bias")]
            part = slice(first, first + count)
            for name, array in zip(names, _folded(conv, norm, part, values), strict=True):
                graph.initializer.append(numpy_helper.from_array(array, name))
                values[name] = graph.initializer[-1]
            conv.input[1:] = names
            first += count
        last = makers[norm.input[0]]
        last.output[0] = norm.output[0]
        makers[norm.output[0]] = last
        graph.node.remove(norm)
    drop_unread(graph)
    return folded


def _convolutions(
    name: str, makers: Mapping[str, onnx.NodeProto], reads: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """The convolutions whose concatenated channels are the value, if only this value reads them."""
    node = makers.get(name)
    if node is None or reads[name] > 1:
        return []
    if node.op_type == "Conv":
        return [node]
    axis = next((a.i for a in node.attribute if a.name == "axis"), None)
    if node.op_type != "Concat" or axis != 1:
        return []
    parts = [_convolutions(part, makers, reads) for part in node.input]
    return [conv for part in parts for conv in part] if all(parts) else []


def _folded(
    conv: onnx.NodeProto,
    norm: onnx.NodeProto,
    part: slice,
    values: Mapping[str, onnx.TensorProto],
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of a convolution that normalises, too, with ``part`` of the channels."""
    weight, *biases = (numpy_helper.to_array(values[name]) for name in conv.input[1:])
    scale, offset, mean, variance = (numpy_helper.to_array(values[n])[part] for n in norm.input[1:])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), _EPSILON)
    factor = scale.astype("float64") / np.sqrt(variance.astype("float64") + epsilon)
    bias = ((biases[0] if biases else 0.0) - mean) * factor + offset
    scaled = weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
    return scaled.astype(weight.dtype), bias.astype(weight.dtype)


def drop_unread(graph: onnx.GraphProto) -> None:
    """Take away initializers, and inputs that are their defaults, that nothing reads any more."""
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in graph.output}
    gone = {value.name for value in graph.initializer} - read
    for values in (graph.initializer, graph.input):
        for value in [value for value in values if value.name in gone]:
            values.remove(value)
