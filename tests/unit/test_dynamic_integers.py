"""Dynamic 8 bits (DynamicQuantizeLinear, MatMulInteger): integer kernels, exact sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from helpers.onnx_models import session
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.read import load_network
from tvm_stretch.targets.kernels.machine import VectorMachine

BLOCK = BlockChannels({"cpu": VectorMachine(8, 16, False, 512 * 1024, 1)})


def network(rows: tuple[int, ...], weight: np.ndarray, zero: np.ndarray) -> onnx.ModelProto:
    """A dense layer as ONNX Runtime's dynamic quantiser writes it."""
    outputs = weight.shape[1]
    constants = {
        "w": weight,
        "zero": zero,
        "scale": np.linspace(0.01, 0.02, outputs, dtype="float32"),
        "bias": np.linspace(-1, 1, outputs, dtype="float32"),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "of_x", "zero_of_x"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero_of_x", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["of_x", "scale"], ["unit"]),
        helper.make_node("Mul", ["floats", "unit"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, kind, [*rows, size])
        for name, kind, size in (
            ("x", TensorProto.FLOAT, weight.shape[0]),
            ("y", TensorProto.FLOAT, outputs),
            ("sums", TensorProto.INT32, outputs),
        )
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "dynamic", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(inputs: int, outputs: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Random weights and their zero point: one number, or one for each output."""
    rng = np.random.default_rng(inputs)
    if kind == "signed":
        return rng.integers(-128, 128, (inputs, outputs)).astype("int8"), np.array(0, "int8")
    numbers = rng.integers(100, 156, (inputs, outputs)).astype("uint8")
    return numbers, (np.array(128, "uint8") if kind == "one" else numbers[0])


@pytest.mark.parametrize("kind", ["signed", "one", "each"])
@pytest.mark.parametrize("rows", [(1, 1), (7,), (2, 3)])
def test_sums_are_exact(rows: tuple[int, ...], kind: str) -> None:
    weight, zero = weights(37, 29, kind)
    proto = network(rows, weight, zero)
    x = np.random.default_rng(1).standard_normal((*rows, 37)).astype("float32") + 0.3
    y, sums = ts.compile(proto, [TARGET])(x)
    quantised, scale, zero_of_x = quantise(proto, x)
    exact = (quantised.astype("int32") - zero_of_x) @ (weight.astype("int32") - zero)
    np.testing.assert_array_equal(sums, exact)
    scales, bias = (np.linspace(*ends, 29, dtype="float32") for ends in ((0.01, 0.02), (-1, 1)))
    np.testing.assert_allclose(y, exact * (scale * scales) + bias, rtol=1e-5, atol=1e-5)


def quantise(proto: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Integers, scale, zero point by ONNX Runtime; its MatMulInteger saturates without VNNI."""
    alone = onnx.ModelProto()
    alone.CopyFrom(proto)
    kinds = {"q": TensorProto.UINT8, "of_x": TensorProto.FLOAT, "zero_of_x": TensorProto.UINT8}
    del alone.graph.node[1:], alone.graph.output[:]
    alone.graph.output.extend(
        helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()
    )
    values: list[np.ndarray] = session(alone, optimised=False).run(None, {"x": x})
    return [values[0], values[1], values[2].astype("int32")]


def test_products_and_what_follows_stay_in_blocks() -> None:
    proto = network((1, 7), *weights(37, 29, "signed"))
    del proto.graph.output[1]
    names = [var.name_hint for var in BLOCK(load_network(proto)).get_global_vars()]
    assert names.count("integer_conv2d") == 1 and names.count("unblock_channels") == 1
    assert not any("matmul" in name for name in names)


def test_weights_beyond_8_bits_stay() -> None:
    proto = network((3,), *weights(37, 29, "each"))
    weight = np.full((37, 29), 255, "uint8")
    weight[0] = 0
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(weight[0], "zero"))
    x = np.random.default_rng(1).standard_normal((3, 37)).astype("float32")
    _, sums = ts.compile(proto, [TARGET])(x)
    np.testing.assert_array_equal(sums, session(proto, optimised=False).run(None, {"x": x})[1])
