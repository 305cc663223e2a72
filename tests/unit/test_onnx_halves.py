"""Networks of float16 on processors without its arithmetic: computed in float32, types kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.network.operators import Calls
from tvm_stretch.read import load_network
from tvm_stretch.read.onnx.reader import read_onnx
from tvm_stretch.read.onnx.shapes import widen_halves

TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}
X86 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}


def model_of(
    nodes: Sequence[onnx.NodeProto], dtype: str, outputs: Sequence[str] = ("y",)
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 64)).astype("float16").astype(dtype),
        "b": rng.standard_normal(64).astype("float16").astype(dtype),
    }
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info("x", TYPES[dtype], [3, 64])],
        [helper.make_tensor_value_info(name, TYPES[dtype], [3, 64]) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def layers(dtype: str) -> onnx.ModelProto:
    """A dense layer, a softmax and a cast to the type that everything has."""
    return model_of(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Softmax", ["a"], ["s"], axis=1),
            helper.make_node("Cast", ["s"], ["c"], to=TYPES[dtype]),
            helper.make_node("Mul", ["c", "x"], ["y"]),
        ],
        dtype,
    )


def branches(dtype: str) -> onnx.ModelProto:
    """A branch that reads the input of the graph around it, and another one with a constant."""
    one = numpy_helper.from_array(np.ones((3, 64), dtype), "one")
    result = helper.make_tensor_value_info("r", TYPES[dtype], [3, 64])
    both = [helper.make_node("Add", ["x", "x"], ["r"])]
    constant = [helper.make_node("Constant", [], ["r"], value=one)]
    yes = numpy_helper.from_array(np.array(True), "yes")
    return model_of(
        [
            helper.make_node("Constant", [], ["yes"], value=yes),
            helper.make_node(
                "If",
                ["yes"],
                ["y"],
                then_branch=helper.make_graph(both, "then", [], [result]),
                else_branch=helper.make_graph(constant, "else", [], [result]),
            ),
        ],
        dtype,
    )


@pytest.mark.parametrize("make", [layers, branches])
@pytest.mark.parametrize("targets", [[X86], [X86, "opencl"]])
def test_the_answer_is_that_of_float32(make: object, targets: list[object]) -> None:
    assert callable(make)
    x = np.random.default_rng(1).standard_normal((3, 64)).astype("float16")
    mod = load_network(make("float16"), widen=True)
    types = {str(call.ty.dtype) for call in Calls(mod["main"]).calls.values()}
    assert types == {"float32", "float16"}, "float16 at the ends only"
    half = ts.compile(make("float16"), ["llvm", *targets[1:]], cpu_threads=1)
    wide = ts.compile(make("float32"), ["llvm", *targets[1:]], cpu_threads=1)
    y = half(x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(
        y.astype("float32"), wide(x.astype("float32")), rtol=2.0**-10, atol=2.0**-14
    )


def test_the_plan_says_so() -> None:
    said = "float16 is computed in float32"
    assert said in ts.plan_for(layers("float16"), [X86]).reason
    assert said not in ts.plan_for(layers("float32"), [X86]).reason


def test_a_processor_with_the_arithmetic_keeps_it() -> None:
    core = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}
    assert "float16 is" not in ts.plan_for(layers("float16"), [core]).reason


def test_an_input_that_is_an_output_stays() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], "float16", outputs=("y", "x"))
    network = read_onnx(model)
    assert widen_halves(network)
    assert [node.op_type for node in network.model.graph.node] == ["Relu", "Cast"]
    x = np.array([[-1.0, 2.0] * 32] * 3, "float16")
    y, same = ts.compile(model, cpu_threads=1)(x)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(same, x)


def test_a_network_of_float32_is_left_alone() -> None:
    network = read_onnx(layers("float32"))
    before = network.model.SerializeToString()
    assert not widen_halves(network)
    assert network.model.SerializeToString() == before
