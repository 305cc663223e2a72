"""A decoder so small that its tokens can be computed by hand, and its states."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts

WORDS, WIDTH, PLACES = 24, 16, 64


def decoder(*, of_each: bool = False) -> onnx.ModelProto:
    """`n` tokens: rows are written to a cache at a position; scores of the last, or each.

    The one with scores of each does not care for positions, so that its texts repeat themselves.
    """
    rng = np.random.default_rng(0)
    constants = {
        "rows": rng.standard_normal((WORDS, WIDTH)).astype("float32"),
        "turns": rng.standard_normal((PLACES, WIDTH)).astype("float32") * np.float32(not of_each),
        "head": rng.standard_normal((WIDTH, WORDS)).astype("float32") * 2,
        "places": np.arange(PLACES),
        "first": np.int64(0),
        "step": np.int64(1),
        "last": np.array([-1]),
        "end": np.array([2**31]),
        "axis": np.array([1]),
        "never": np.float32(-1e9),
        "nought": np.float32(0),
        "flat": np.array([-1, 1]),
    }
    node = helper.make_node
    nodes = [
        node("Shape", ["tokens"], ["n1"], start=1, end=2),
        node("Squeeze", ["n1"], ["n"]),
        node("Range", ["first", "n", "step"], ["steps"]),
        node("Add", ["steps", "position"], ["at"]),
        node("Gather", ["rows", "tokens"], ["row"]),
        node("Gather", ["turns", "at"], ["turn"]),
        node("Add", ["row", "turn"], ["x"]),
        node("Squeeze", ["x", "zero"], ["flat_x"]),
        node("Reshape", ["at", "flat"], ["indices"]),
        node("ScatterND", ["past", "indices", "flat_x"], ["present"]),
        node("Transpose", ["present"], ["keys"], perm=[1, 0]),
        node("MatMul", ["flat_x", "keys"], ["scores"]),
        node("LessOrEqual", ["places", "indices"], ["seen"]),
        node("Where", ["seen", "nought", "never"], ["mask"]),
        node("Add", ["scores", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["shares"], axis=-1),
        node("MatMul", ["shares", "present"], ["mixed"]),
        node("Slice", ["mixed", "last", "end", "zero"], ["own"]),
        node("MatMul", ["mixed" if of_each else "own", "head"], ["flat_logits"]),
        node("Unsqueeze", ["flat_logits", "zero"], ["logits"]),
    ]
    constants["zero"] = np.array([0])
    info = helper.make_tensor_value_info
    inputs = [
        info("tokens", TensorProto.INT64, [1, "n"]),
        info("position", TensorProto.INT64, [1]),
        info("past", TensorProto.FLOAT, [PLACES, WIDTH]),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, [1, "n" if of_each else 1, WORDS]),
        info("present", TensorProto.FLOAT, [PLACES, WIDTH]),
    ]
    weights = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def states(token: ts.Greedy) -> dict[str, object]:
    return {"tokens": token, "position": ts.Counter("n"), "past": "present"}


def recurrent() -> onnx.ModelProto:
    """A hidden state instead of a cache: it has read all that a run read."""
    rng = np.random.default_rng(1)
    constants = {
        "rows": rng.standard_normal((WORDS, WIDTH)).astype("float32"),
        "head": rng.standard_normal((WIDTH, WORDS)).astype("float32"),
        "axes": np.array([1]),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["rows", "tokens"], ["row"]),
        node("ReduceMean", ["row", "axes"], ["mean"], keepdims=1),
        node("Add", ["mean", "hidden"], ["sum"]),
        node("Tanh", ["sum"], ["next_hidden"]),
        node("Add", ["row", "next_hidden"], ["mixed"]),
        node("MatMul", ["mixed", "head"], ["logits"]),
    ]
    info = helper.make_tensor_value_info
    hidden = [1, 1, WIDTH]
    inputs = [
        info("tokens", TensorProto.INT64, [1, "n"]),
        info("hidden", TensorProto.FLOAT, hidden),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, [1, "n", WORDS]),
        info("next_hidden", TensorProto.FLOAT, hidden),
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "recurrent", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
