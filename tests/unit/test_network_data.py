"""A network as data beside its kernels: other weights, other plans, and files that are neither."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cpu_targets import TARGET
from onnx import helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.base.errors import ArtifactError
from tvm_stretch.run.seal import seal

HEADER = struct.Struct("<8sQQ40x")


def network(seed: int, channels: int = 8) -> onnx.ModelProto:
    """A convolution, a dense layer; the seed gives the weights."""
    generator = np.random.default_rng(seed)
    shapes = {"w": (channels, 3, 3, 3), "b": (channels,), "d": (channels * 64, 5)}
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape, dtype="float32"), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", (1, 3, 8, 8)), ("y", (1, 5)))
    )
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


X = np.random.default_rng(9).standard_normal((1, 3, 8, 8), dtype="float32")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    paths = {name: folder / name for name in ("code.so", "net.data", "other.data", "wide.data")}
    ts.compile(network(0), TARGET).export(paths["code.so"], data=paths["net.data"])
    ts.compile(network(1), TARGET).export_data(paths["other.data"])
    ts.compile(network(0, channels=16), TARGET).export_data(paths["wide.data"])
    return paths


@pytest.mark.parametrize(("name", "seed"), [("net.data", 0), ("other.data", 1)])
def test_the_same_kernels_run_other_weights(files: dict[str, Path], name: str, seed: int) -> None:
    model = ts.load(files["code.so"], data=files[name])
    np.testing.assert_array_equal(model(X), ts.compile(network(seed), TARGET)(X))
    assert model.plan.execution is not None and not model.plan.execution.strays


def test_the_library_has_no_weights(files: dict[str, Path]) -> None:
    with pytest.raises(ArtifactError, match="got none; give its data file to load, too"):
        ts.load(files["code.so"])
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3), dtype="float32")
    assert weights.tobytes()[:64] not in files["code.so"].read_bytes()


def test_copies_of_a_loaded_model(files: dict[str, Path], tmp_path: Path) -> None:
    model = ts.load(files["code.so"], data=files["other.data"])
    want = model(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model))(X), want)
    instance = model.create_instance()
    np.testing.assert_array_equal(instance(X), want)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(instance))(X), want)
    model.export_data(tmp_path / "copy.data")
    assert (tmp_path / "copy.data").read_bytes() == files["other.data"].read_bytes()
    with pytest.raises(ArtifactError, match="expected a model that was just compiled for export"):
        model.export(tmp_path / "copy.so")


def test_the_file_may_change_once_it_is_loaded(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "net.data"
    path.write_bytes(files["net.data"].read_bytes())
    model = ts.load(files["code.so"], data=path)
    want = model(X)
    path.write_bytes(b"")
    np.testing.assert_array_equal(model(X), want)


def test_a_network_of_other_shapes_is_refused(files: dict[str, Path]) -> None:
    message = r"has no kernel 'pack_weight_.* of these shapes; compile"
    with pytest.raises(ArtifactError, match=message):
        ts.load(files["code.so"], data=files["wide.data"])


def changed(data: bytes, change: Callable[[dict], None]) -> bytes:
    """The file with another graph, sealed again, as an attacker would."""
    magic, graph_bytes, weights_bytes = HEADER.unpack(data[: HEADER.size])
    graph = json.loads(data[HEADER.size : HEADER.size + graph_bytes])
    start = (HEADER.size + graph_bytes + 63) // 64 * 64
    weights = data[start : start + (weights_bytes + 7) // 8 * 8]
    change(graph)
    text = json.dumps(graph).encode()
    head = HEADER.pack(magic, len(text), weights_bytes) + text
    return head + bytes(-len(head) % 64) + weights


def larger_output(graph: dict) -> None:
    """A kernel would write beyond its tensor, if it got a smaller one."""
    node = graph["nodes"][0]
    tensor = graph["tensors"][node["outputs"][0]]
    tensor["shape"] = [1, 1, 1, 1, 1]
    tensor["bytes"] = 4


def shifted_weights(graph: dict) -> None:
    tensor = next(t for t in graph["tensors"] if t["kind"] == "constant")
    tensor["offset"] += 64


def unknown_kernel(graph: dict) -> None:
    graph["nodes"][0]["kernel"] = "system"


def another_processor(graph: dict) -> None:
    graph["processors"].append({"name": "gpu", "kind": "opencl"})


def more_threads(graph: dict) -> None:
    graph["threads"] += 1


def other_features(graph: dict) -> None:
    graph["cpu_features"] = []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (larger_output, "expected"),
        (unknown_kernel, "no kernel 'system' of these shapes"),
        (another_processor, "expected"),
        (more_threads, "other processors than those of the library"),
        (other_features, "other processors than those of the library"),
        (lambda graph: graph.update(weights_bytes=64), "expected"),
        (lambda graph: graph.clear(), "expected"),
    ],
)
def test_hostile_graphs(
    files: dict[str, Path], tmp_path: Path, change: Callable[[dict], None], message: str
) -> None:
    path = tmp_path / "net.data"
    path.write_bytes(changed(files["net.data"].read_bytes(), change))
    seal(path)
    with pytest.raises(ArtifactError, match=message):
        ts.load(files["code.so"], data=path)


def test_hostile_offsets_read_other_weights_at_most(files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "net.data"
    path.write_bytes(changed(files["net.data"].read_bytes(), shifted_weights))
    seal(path)
    with contextlib.suppress(ArtifactError):  # beyond the end of the weights
        assert ts.load(files["code.so"], data=path)(X).shape == (1, 5)


@pytest.mark.parametrize("keep", [0, 7, 63, 64, 100, 1000, -1, -9])
def test_truncated_files(files: dict[str, Path], tmp_path: Path, keep: int) -> None:
    path = tmp_path / "net.data"
    path.write_bytes(files["net.data"].read_bytes()[:keep])
    with pytest.raises(ArtifactError, match=r"^expected .*net\.data"):
        ts.load(files["code.so"], data=path)


def test_damaged_bytes(files: dict[str, Path], tmp_path: Path) -> None:
    data = files["net.data"].read_bytes()
    for place in (*range(0, 90, 7), *range(90, len(data), len(data) // 40)):
        path = tmp_path / "net.data"
        path.write_bytes(data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :])
        with pytest.raises(ArtifactError, match=r"^expected "):
            ts.load(files["code.so"], data=path)


def test_what_is_no_data(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="check the path"):
        ts.load(files["code.so"], data=tmp_path / "missing.data")
    with pytest.raises(ArtifactError, match="expected the data of a network"):
        ts.load(files["code.so"], data=files["code.so"])
    with pytest.raises(ArtifactError, match="expected an existing folder"):
        ts.compile(network(0), TARGET).export_data(tmp_path / "no" / "net.data")
