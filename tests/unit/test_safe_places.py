"""Kernels keep their places within their tensors, whatever values these have."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from helpers.cpu_targets import TARGET
from onnx import helper, numpy_helper
from tvm import te, tirx

import tvm_stretch as ts
from tvm_stretch.base.errors import ArtifactError
from tvm_stretch.make.code.generate import with_safe_places
from tvm_stretch.network.attributes import RECTANGLE
from tvm_stretch.run.seal import seal

HEADER = struct.Struct("<8sQQ40x")
VALUES = (2**40, -(2**40), 2**63 - 1, -(2**63), 0, -1)
"""Of forged constants: as places they are far outside of what this process has."""


def kernel(place: Callable[[tirx.Var, te.Tensor], object], dtype: str = "int64") -> tirx.PrimFunc:
    """A gather from 256 numbers."""
    data, index = te.placeholder((256,), name="data"), te.placeholder((9,), dtype, name="index")
    out = te.compute((9,), lambda i: data[place(i, index)], name="out")
    return te.create_prim_func([data, index, out])


def test_a_place_that_a_value_says_is_clamped() -> None:
    text = with_safe_places(kernel(lambda i, index: index[i])).script()
    assert "T.min(T.max(index[v_i], T.int64(0)), T.int64(255))" in text


@pytest.mark.parametrize(
    ("place", "dtype"),
    [
        (lambda i, index: i * 2, "int64"),
        (lambda i, index: index[i].astype("int64") + 128, "int8"),  # a table of 8 bits
        (lambda i, index: te.max(te.min(index[i], 255), 0), "int64"),  # of guard_operators.py
        (lambda i, index: tirx.bitwise_and(index[i], 15), "int64"),  # of nibbles
    ],
)
def test_a_place_that_is_in_range_by_itself_stays(place: Callable[..., object], dtype: str) -> None:
    function = kernel(place, dtype)
    assert with_safe_places(function).same_as(function)


def test_kernels_of_rectangles_stay() -> None:
    function = kernel(lambda i, index: index[i]).with_attr(RECTANGLE, True)
    assert with_safe_places(function).same_as(function)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_division_survives_each_divisor(dtype: str) -> None:
    a, b = (te.placeholder((4,), dtype, name=name) for name in "ab")
    out = te.compute((4,), lambda i: tirx.truncdiv(a[i], b[i]), name="out")
    function = with_safe_places(te.create_prim_func([a, b, out]))
    built = tvm.compile(tvm.IRModule({"main": function}), tvm.target.Target("llvm"))
    least = np.iinfo(dtype).min
    dividend = np.array([least, 7, 9, least], dtype)
    divisor = np.array([-1 if least else 1, 0, 2, 3], "int64").astype(dtype)
    result = tvm.runtime.empty((4,), dtype)
    built["main"](*(tvm.runtime.tensor(x) for x in (dividend, divisor)), result)
    third = -(-least // 3)
    np.testing.assert_array_equal(result.numpy(), np.array([least, 7, 4, third], dtype))


# --- networks as data -----------------------------------------------------------------------------

FLOAT, INT32, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64


def network(
    op: str,
    inputs: list[str],
    constants: dict[str, object],
    x: tuple[int, ...] = (5, 7),
    kind: int = FLOAT,
    **attributes: object,
) -> onnx.ModelProto:
    """One operator of ``x`` and constants."""
    made = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], **attributes)],
        "net",
        [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_empty_tensor_value_info("y")],
        made,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


ROWS = np.array([[0] * 7, [2] * 7])
UPDATES = np.ones((2, 7), "float32")
BOXES = np.array([[0, 0, 4, 4], [1, 1, 5, 5]], "float32")
NETWORKS = {
    "gather": network("Gather", ["x", "i"], {"i": [0, 2, 1]}),
    "gather of int32": network("Gather", ["x", "i"], {"i": np.array([0, 2], "int32")}, axis=1),
    "elements": network("GatherElements", ["x", "i"], {"i": ROWS}),
    "nd": network("GatherND", ["x", "i"], {"i": [[0, 1], [2, 3]]}),
    "scatter": network("ScatterND", ["x", "i", "u"], {"i": [[0], [2]], "u": UPDATES}),
    "scatter and add": network(
        "ScatterND", ["x", "i", "u"], {"i": [[0], [2]], "u": UPDATES}, reduction="add"
    ),
    "scattered elements": network("ScatterElements", ["x", "i", "u"], {"i": ROWS, "u": UPDATES}),
    "added elements": network(
        "ScatterElements", ["x", "i", "u"], {"i": ROWS, "u": UPDATES}, reduction="add"
    ),
    "lengths": network(
        "ReverseSequence", ["x", "n"], {"n": [1, 2, 3, 4, 5, 5, 2]}, time_axis=0, batch_axis=1
    ),
    "boxes": network(
        "RoiAlign", ["x", "r", "b"], {"r": BOXES, "b": [0, 1]}, (2, 3, 8, 8), output_height=2
    ),
    "divisor": network("Div", ["x", "d"], {"d": np.array([2, 3], "int32")}, (2,), INT32),
    "modulus": network("Mod", ["x", "d"], {"d": [2, 3]}, (2,), INT64),
    "table": network("Gather", ["t", "x"], {"t": np.ones((5, 7), "float32")}, (3,), INT64),
    "steps": network(
        "LSTM",
        ["x", "w", "r", "", "n"],
        {
            "w": np.ones((1, 16, 3), "float32"),
            "r": np.ones((1, 16, 4), "float32"),
            "n": np.array([6, 3], "int32"),
        },
        (6, 2, 3),
        hidden_size=4,
    ),
}


def split(data: bytes) -> tuple[dict, bytearray]:
    """The graph and the weights of a network as data."""
    _, graph_bytes, weights_bytes = HEADER.unpack(data[: HEADER.size])
    start = (HEADER.size + graph_bytes + 63) // 64 * 64
    graph = json.loads(data[HEADER.size : HEADER.size + graph_bytes])
    return graph, bytearray(data[start : start + (weights_bytes + 7) // 8 * 8])


def write(path: Path, graph: dict, weights: bytes) -> None:
    """The file, sealed as an attacker would."""
    text = json.dumps(graph).encode()
    head = HEADER.pack(b"TVMSTRD1", len(text), graph["weights_bytes"]) + text
    path.write_bytes(head + bytes(-len(head) % 64) + weights)
    seal(path)


def forge(path: Path, data: bytes, value: int) -> None:
    """All constant integers become ``value``, or the nearest number that their type has."""
    graph, weights = split(data)
    for tensor in graph["tensors"]:
        dtype = np.dtype(tensor["dtype"])
        if tensor["kind"] == "constant" and dtype.kind in "iu":
            near = np.clip(value, np.iinfo(dtype).min, np.iinfo(dtype).max)
            forged = np.full(tensor["bytes"] // dtype.itemsize, near, dtype).tobytes()
            weights[tensor["offset"] : tensor["offset"] + tensor["bytes"]] = forged
    write(path, graph, weights)


def run_apart(code: Path, data: Path) -> int:
    """The exit code of a process that runs a network as data, which may die of it."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a handler in Python would wait for C
        signal.alarm(30)
        try:
            model = ts.load(code, data=data)
            model(np.full(model.inputs[0].shape, 1, model.inputs[0].dtype))
            os._exit(0)
        except ts.StretchError:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_forged_constants_reach_no_foreign_memory(name: str, tmp_path: Path) -> None:
    code, data = tmp_path / "net.so", tmp_path / "net.data"
    ts.compile(NETWORKS[name], TARGET, cpu_threads=1).export(code, data=data)
    content = data.read_bytes()
    assert run_apart(code, data) == 0
    for value in VALUES:
        forge(data, content, value)
        assert run_apart(code, data) == 0, value


@pytest.mark.parametrize("size", [3e9, 3e38, np.inf, np.nan])
def test_forged_boxes_take_few_samples(size: float, tmp_path: Path) -> None:
    """The number of samples grows with the box: without an end, it would be 2 ** 60."""
    code, data = tmp_path / "net.so", tmp_path / "net.data"
    ts.compile(NETWORKS["boxes"], TARGET, cpu_threads=1).export(code, data=data)
    graph, weights = split(data.read_bytes())
    for tensor in graph["tensors"]:
        if tensor["kind"] == "constant":
            end = tensor["offset"] + tensor["bytes"]
            boxes = np.frombuffer(bytes(weights[tensor["offset"] : end]), tensor["dtype"]).copy()
            assert (boxes > 3).sum() == 4  # corners below and on the right
            boxes[boxes > 3] = size
            weights[tensor["offset"] : end] = boxes.tobytes()
    write(data, graph, weights)
    assert run_apart(code, data) == 0


def without_guards(graph: dict) -> None:
    graph["guards"] = []


def wider_guards(graph: dict) -> None:
    graph["guards"][0]["high"] = [2**40]


def gaps_in_a_port(graph: dict) -> None:
    """Inputs are copied to the port's memory, which would be too small."""
    tensor = graph["tensors"][graph["inputs"][0]["tensor"]]
    tensor["strides"], tensor["bytes"] = [0], 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_guards, "one that checks other values than the library's"),
        (wider_guards, "one that checks other values than the library's"),
        (gaps_in_a_port, "a tensor without gaps that starts the port's own memory"),
    ],
)
def test_data_that_say_other_rules_are_refused(
    change: Callable[[dict], None], message: str, tmp_path: Path
) -> None:
    code, data = tmp_path / "net.so", tmp_path / "net.data"
    ts.compile(NETWORKS["table"], TARGET, cpu_threads=1).export(code, data=data)
    graph, weights = split(data.read_bytes())
    change(graph)
    write(data, graph, weights)
    with pytest.raises(ArtifactError, match=message):
        ts.load(code, data=data)


def test_a_length_accesses_no_port_of_a_longer_one(tmp_path: Path) -> None:
    """Ports are the memory of the caller, who gives as much as the shapes of the length say."""
    code, data = tmp_path / "net.so", tmp_path / "net.data"
    net = network("Relu", ["x"], {}, ("n", 3))
    ts.compile(net, TARGET, lengths={"n": [4, 64]}, cpu_threads=1).export(code, data=data)
    graph, weights = split(data.read_bytes())
    short, long = graph["lengths"]
    for ports in ("inputs", "outputs"):
        short[ports], long[ports] = long[ports], short[ports]
    write(data, graph, weights)
    with pytest.raises(ArtifactError, match="expected tensors within the ports of their length"):
        ts.load(code, data=data)


def test_networks_for_streams_are_no_data(tmp_path: Path) -> None:
    net = network("Conv", ["x", "w"], {"w": np.ones((4, 3, 3, 3), "float32")}, (1, 3, 8, 8))
    model = ts.compile(net, TARGET, cpu_threads=1, streams=True)
    with pytest.raises(ArtifactError, match="expected a network without streams for data"):
        model.export_data(tmp_path / "net.data")
    assert not [*tmp_path.iterdir()]
