"""What is said of quantised networks: how much is computed in integers, what not, and why."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers.quantised_models import Quantised, integers, qdq
from helpers.relax_helpers import answers
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.network.properties.integer_summary import describe_integers
from tvm_stretch.read import load_network

A = Quantised(integers(1, 8, 4, 4), 0.02, 3)
Y = Quantised(np.zeros(0, "uint8"), 0.05, 2)


def test_explain_counts_what_stays_in_float() -> None:
    model = ts.compile(qdq("Div", [A, A], Y), cpu_threads=1)
    assert "0 integer operators; in float: layer" in model.plan.explain()


@pytest.mark.parametrize("size", [32, 320])  # weights large enough to be folded elsewhere
@pytest.mark.parametrize(
    ("kind", "block", "reason"),
    [
        (TensorProto.FLOAT8E4M3FN, 0, "weights of float8_e4m3fn"),
        (TensorProto.INT8, 16, "weights of int8 in blocks of 16"),
        (TensorProto.INT16, 0, "weights of int16"),
    ],
)
def test_weights_that_no_integer_operator_takes_are_counted(
    kind: int, block: int, reason: str, size: int
) -> None:
    """The layer that reads them, turned over before, computes in float with the same weights."""
    numbers = np.arange(size * size) % 7
    weight = helper.make_tensor("w", kind, [size, size], numbers.astype("f").tolist())
    scale = np.full((size // block, size) if block else (), 0.25, "float32")
    blocks = {"block_size": block, "axis": 0} if block else {}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], **blocks),
        helper.make_node("Transpose", ["f"], ["t"], name="turn"),
        helper.make_node("MatMul", ["x", "t"], ["z"], name="fc"),
        helper.make_node("Relu", ["z"], ["y"], name="act"),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, size]), ("y", None))]
    tensors = [weight, numpy_helper.from_array(scale, "s")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 21)]
    mod = load_network(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    said = f"0 integer operators; in float for {reason}: 1 (fc)"
    assert describe_integers(mod["main"]) == said
    x = np.eye(1, size, 3, "float32")
    want = 0.25 * numbers.reshape(size, size)[:, 3]
    np.testing.assert_array_equal(answers(mod, x)[0], want[None])


@pytest.mark.parametrize(("bits", "reads"), [(0, "float"), (8, "quantised")])
def test_weights_of_eight_bits_alone_are_counted(bits: int, reads: str) -> None:
    """Beside values in float they are floats; what reads quantised values, turned over, is not."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["quantised"]),
        helper.make_node("Relu", ["x"], ["float"]),
        helper.make_node("Reshape", [reads, "shape"], ["v"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"]),
        helper.make_node("MatMul", ["v", "f"], ["y"], name="fc"),
    ]
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 4]), ("y", None))]
    tensors = [
        numpy_helper.from_array(np.float32(0.25), "s"),
        numpy_helper.from_array(np.int8(0), "z"),
        numpy_helper.from_array(np.array([1, 8], "int64"), "shape"),
        numpy_helper.from_array(np.arange(24, dtype="int8").reshape(8, 3), "w"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    mod = load_network(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    taken = "1 integer operators"
    alone = "0 integer operators; in float for weights of int8 beside values in float: 1 (fc)"
    assert describe_integers(mod["main"]) == (taken if bits else alone)


def test_who_reads_weights_of_four_bits_is_named_once() -> None:
    """Its values of eight bits were dequantised, too, and it is the weights that count."""
    weight = Quantised(np.ones((4, 8, 1, 1), ml_dtypes.int4), 0.5, 0)
    model = qdq("Conv", [A], Y, constants=[weight], opset=21)
    model.ir_version = 10
    said = describe_integers(load_network(model)["main"])
    assert said == "0 integer operators; in float for weights of int4: 1 (layer)"
