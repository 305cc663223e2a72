"""Parameters and multiply-adds of an ONNX model, counted from its graph."""

from __future__ import annotations

import math

import onnx
from onnx import TensorProto, helper, shape_inference

# Which inputs of an operator are trained; everything else (BN statistics, clip bounds, initial
# LSTM states, shapes) is not a parameter.
_LEARNED_INPUTS: dict[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
    "Add": (0, 1),
    "BatchNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "PRelu": (1,),
}


def count(model: onnx.ModelProto) -> tuple[int, int]:
    """Count trained parameters and multiply-adds of convolutions and matrix products.

    Before: a model with static shapes. After: ``(params, macs)``; a weight that several nodes use
    counts once as parameters and each time as multiply-adds.
    """
    initializers = {t.name: math.prod(t.dims) for t in model.graph.initializer}
    shapes = _infer_shapes(model)
    trained: set[str] = set()
    macs = 0
    for node in model.graph.node:
        positions = _LEARNED_INPUTS.get(node.op_type, ())
        trained.update(node.input[i] for i in positions if i < len(node.input))
        macs += _node_macs(node, shapes)
    return sum(initializers.get(name, 0) for name in trained), macs


def _node_macs(node: onnx.NodeProto, shapes: dict[str, list[int]]) -> int:
    if node.op_type == "Conv":
        return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":
        return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    if node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][0 if transposed else 1]
    return 0


def _infer_shapes(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Shapes of all tensors.

    Shape inference copies the model it is given, so float weights go in as inputs: their shapes
    without their values.
    """
    graph = model.graph
    light = onnx.GraphProto(name="shapes", node=graph.node, input=graph.input, output=graph.output)
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.INT64:
            light.initializer.append(tensor)
        else:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.input.append(info)
    skeleton = helper.make_model(
        light, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )
    inferred = shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True).graph
    shapes = {t.name: list(t.dims) for t in graph.initializer}
    for value in [*inferred.input, *inferred.value_info, *inferred.output]:
        shapes[value.name] = [d.dim_value for d in value.type.tensor_type.shape.dim]
    return shapes
