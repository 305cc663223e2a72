"""Folds batch normalisations of an ONNX file into the convolutions before them.

    Conv -> BatchNormalization -> Relu      becomes      Conv -> Relu

A quantiser has to see it so: what lies between would get a scale of its own, and a kernel. ONNX
Runtime does it from 1.31 on, versions before leave them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
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
        conv = makers.get(norm.input[0]) if norm.op_type == "BatchNormalization" else None
        if conv is None or conv.op_type != "Conv" or reads[norm.input[0]] > 1:
            continue
        known = [*norm.input[1:], *conv.input[1:]]
        if len(norm.output) > 1 or not all(name in values for name in known):
            continue
        names = [f"{norm.output[0]}.folded.{what}" for what in ("weight", "bias")]
        for name, array in zip(names, _folded(conv, norm, values), strict=True):
            graph.initializer.append(numpy_helper.from_array(array, name))
            values[name] = graph.initializer[-1]
        conv.input[1:] = names
        conv.output[0] = norm.output[0]
        makers[norm.output[0]] = conv
        graph.node.remove(norm)
    _drop_unread(graph)
    return folded


def _folded(
    conv: onnx.NodeProto, norm: onnx.NodeProto, values: Mapping[str, onnx.TensorProto]
) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of a convolution that normalises, too."""
    weight, *biases = (numpy_helper.to_array(values[name]) for name in conv.input[1:])
    scale, offset, mean, variance = (numpy_helper.to_array(values[n]) for n in norm.input[1:])
    epsilon = next((a.f for a in norm.attribute if a.name == "epsilon"), _EPSILON)
    factor = scale.astype("float64") / np.sqrt(variance.astype("float64") + epsilon)
    bias = ((biases[0] if biases else 0.0) - mean) * factor + offset
    scaled = weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
    return scaled.astype(weight.dtype), bias.astype(weight.dtype)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Take away initializers, and inputs that are their defaults, that nothing reads any more."""
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in graph.output}
    gone = {value.name for value in graph.initializer} - read
    for values in (graph.initializer, graph.input):
        for value in [value for value in values if value.name in gone]:
            values.remove(value)
