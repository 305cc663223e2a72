"""load_network on what is no network: one clear error each, nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.relax_helpers import op_names, run
from onnx import TensorProto, helper, numpy_helper

from tvm_stretch.base.errors import InputError, ModelError, StretchError, UnsupportedError
from tvm_stretch.read import load_network

FLOAT = TensorProto.FLOAT


def tensor(name: str, shape: list[int] | None = None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """A graph input or output of shape (2, 3)."""
    return helper.make_tensor_value_info(name, kind, shape or [2, 3])


def model(
    *nodes: onnx.NodeProto,
    inputs: list[onnx.ValueInfoProto] | None = None,
    domains: dict[str, int] | None = None,
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    """A model from ``x`` to ``y``."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [tensor("x")] if inputs is None else inputs,
        [tensor("y")],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid(d, v) for d, v in (domains or {"": 18}).items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


RELU = helper.make_node("Relu", ["x"], ["y"])


def relu() -> onnx.ModelProto:
    """The smallest network."""
    return model(RELU)


def check(source: object, error: type[StretchError], *words: str) -> None:
    """``source`` is refused with ``error``, whose message follows the house form."""
    with pytest.raises(error) as caught:
        load_network(source)
    message = str(caught.value)
    assert message.startswith("expected "), message
    assert ", got " in message or "got:" in message, message
    assert "; " in message, message
    assert "\n" not in message, message
    for word in words:
        assert word in message, message
    # The next network is none the worse for it.
    assert op_names(load_network(relu())) == ["relax.nn.relu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


FILES: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "empty": (lambda: b"", ["empty"]),
    "text": (lambda: b"this is no model\n" * 20, ["another format"]),
    "zeros": (lambda: b"\0" * 4096, []),
    "picture": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8, []),
    "half a model": (lambda: _large_model()[:3000], []),
    "all but the last byte": (lambda: _large_model()[:-1], []),
    "empty model": (lambda: onnx.ModelProto(ir_version=8).SerializeToString(), ["graph"]),
}


def _large_model() -> bytes:
    weight = np.random.default_rng(0).standard_normal((3, 900)).astype("f")
    proto = model(helper.make_node("MatMul", ["x", "w"], ["y"]), constants={"w": weight})
    return proto.SerializeToString()


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_models(folder: Path, name: str) -> None:
    content, words = FILES[name]
    path = folder / "net.onnx"
    path.write_bytes(content())
    check(path, ModelError, *words)
    assert [p.name for p in folder.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("name", FILES)
def test_bytes_that_are_no_models(name: str) -> None:
    content, words = FILES[name]
    check(content(), ModelError, *words)


def test_every_truncation_is_an_error() -> None:
    whole = relu().SerializeToString()
    for length in range(1, len(whole)):
        with pytest.raises(StretchError):
            load_network(whole[:length])
    x = np.float32([[-1, 2, -3], [4, -5, 6]])
    np.testing.assert_array_equal(run(load_network(whole), x)[0], np.maximum(x, 0))


def test_no_such_file(folder: Path) -> None:
    check(folder / "none.onnx", ModelError, "none.onnx")


def test_directory(folder: Path) -> None:
    check(str(folder), ModelError, "a folder at")


@pytest.mark.parametrize("source", [None, 3, bytearray(b"x"), ["net.onnx"], {"a": 1}])
def test_sources_of_other_types(source: object) -> None:
    check(source, InputError, type(source).__name__)


def _external(folder: Path) -> Path:
    proto = model(
        helper.make_node("MatMul", ["x", "w"], ["y"]), constants={"w": np.ones((3, 3), "f")}
    )
    path = folder / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.bin", size_threshold=0)
    return path


def test_external_data_missing(folder: Path) -> None:
    path = _external(folder)
    (folder / "net.bin").unlink()
    check(path, ModelError, "'w'", "external data file")
    assert [p.name for p in folder.iterdir()] == ["net.onnx"]


def test_external_data_truncated(folder: Path) -> None:
    path = _external(folder)
    (folder / "net.bin").write_bytes(b"\0" * 7)
    check(path, ModelError, "'w'")


def test_external_data_outside_the_folder(folder: Path) -> None:
    path = _external(folder)
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../../etc/passwd"
    path.write_bytes(proto.SerializeToString())
    check(path, ModelError, "'w'")


@pytest.mark.parametrize(
    "location", ["/etc/passwd", "link", "folder/net.bin", "pipe", "x" * 5000, "a\0b", "", "."]
)
def test_external_data_are_files_in_the_folder(folder: Path, location: str) -> None:
    path = _external(folder)
    (folder / "elsewhere").mkdir()
    (folder / "net.bin").rename(folder / "elsewhere" / "net.bin")
    model_folder = folder / "model"
    model_folder.mkdir()
    (model_folder / "link").symlink_to(folder / "elsewhere" / "net.bin")
    (model_folder / "folder").symlink_to(folder / "elsewhere")
    os.mkfifo(model_folder / "pipe")
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path = model_folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    check(path, ModelError, "'w'")


def test_external_data_without_an_end(folder: Path) -> None:
    path = _external(folder)
    os.truncate(folder / "net.bin", 2**42)  # of a few bytes on the disk
    proto = onnx.load(path, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = str(2**42) if entry.key == "length" else entry.value
    path.write_bytes(proto.SerializeToString())
    load_network(path)
    del proto.graph.initializer[0].external_data[1:]  # all of the file
    path.write_bytes(proto.SerializeToString())
    load_network(path)
    proto.graph.initializer[0].dims[:] = [2**20, 2**20]
    path.write_bytes(proto.SerializeToString())
    check(path, UnsupportedError, "'w'", "elements")


@pytest.mark.parametrize("kind", ["proto", "bytes"])
def test_graphs_nested_deeper_than_onnx_reads(kind: str) -> None:
    def graph(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), name, [], [tensor("o")])

    inner = relu = graph("relu", helper.make_node("Relu", ["x"], ["o"]))
    for depth in range(31):
        branches = {"then_branch": inner, "else_branch": relu}
        inner = graph(f"g{depth}", helper.make_node("If", ["c"], ["o"], **branches))
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=relu)
    proto = model(node, constants={"c": np.asarray(True)})
    check(proto if kind == "proto" else proto.SerializeToString(), ModelError)


def test_external_data_of_a_proto(folder: Path) -> None:
    check(onnx.load(_external(folder), load_external_data=False), ModelError, "'w'", "path")


def _external_tensor(folder: Path, value: float) -> onnx.TensorProto:
    """Six numbers in a file of the folder."""
    folder.mkdir(exist_ok=True)
    stored = numpy_helper.from_array(np.full((2, 3), value, "f"), "inner")
    onnx.external_data_helper.set_external_data(stored, "inner.bin")
    (folder / "inner.bin").write_bytes(stored.raw_data)
    stored.ClearField("raw_data")
    return stored


def _in_a_branch(stored: onnx.TensorProto) -> onnx.ModelProto:
    """``y = x + inner``, where ``inner`` is an initialiser of the branch that is taken."""
    add = helper.make_node("Add", ["x", "inner"], ["z"])
    taken = helper.make_graph([add], "taken", [], [tensor("z")], [stored])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "other", [], [tensor("z")])
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=taken, else_branch=other)
    return model(branch, constants={"yes": np.array(True)})


def _in_a_function(stored: onnx.TensorProto) -> onnx.ModelProto:
    """The same, where it is a constant of a function of the model."""
    body = [
        helper.make_node("Constant", [], ["c"], value=stored),
        helper.make_node("Add", ["a", "c"], ["b"]),
    ]
    function = helper.make_function(
        "own", "Shift", ["a"], ["b"], body, [helper.make_opsetid("", 18)]
    )
    proto = model(helper.make_node("Shift", ["x"], ["y"], domain="own"), domains={"": 18, "own": 1})
    proto.functions.append(function)
    return proto


def _in_a_nested_branch(stored: onnx.TensorProto) -> onnx.ModelProto:
    """A branch in a branch, and there a constant."""
    inside = [
        helper.make_node("Constant", [], ["c"], value=stored),
        helper.make_node("Add", ["x", "c"], ["z"]),
    ]
    graph = helper.make_graph(inside, "inner", [], [tensor("z")])
    again = helper.make_node("If", ["yes"], ["w"], then_branch=graph, else_branch=graph)
    outer = helper.make_graph([again], "outer", [], [tensor("w")])
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=outer, else_branch=outer)
    return model(branch, constants={"yes": np.array(True)})


INNER = [_in_a_branch, _in_a_function, _in_a_nested_branch]


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("place", INNER)
def test_inner_external_data_lie_beside_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, place: Callable, elsewhere: bool
) -> None:
    """Also where the current folder has a file of that name."""
    path = folder / "model" / "net.onnx"
    proto = place(_external_tensor(path.parent, 7.0))
    path.write_bytes(proto.SerializeToString())
    (folder / "here").mkdir()
    if elsewhere:
        _external_tensor(folder / "here", 1000.0)
    monkeypatch.chdir(folder / "here")
    (got,) = run(load_network(path), np.ones((2, 3), "f"))
    np.testing.assert_array_equal(got, np.full((2, 3), 8.0, "f"))


@pytest.mark.parametrize("place", INNER)
def test_inner_external_data_missing_or_of_a_proto(folder: Path, place: Callable) -> None:
    proto = place(_external_tensor(folder, 7.0))
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    check(proto, ModelError, "'inner'", "pass the path")
    (folder / "inner.bin").write_bytes(b"\0" * 7)
    check(path, ModelError, "'inner'")
    (folder / "inner.bin").unlink()
    check(path, ModelError, "'inner'", "external data file")


def _sequence_input() -> onnx.ModelProto:
    value = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    return model(helper.make_node("SequenceLength", ["x"], ["y"]), inputs=[value])


def _optional_input() -> onnx.ModelProto:
    tensors = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2, 3]))
    kind = helper.make_optional_type_proto(tensors)
    value = helper.make_value_info("x", kind)
    return model(helper.make_node("OptionalGetElement", ["x"], ["y"]), inputs=[value])


def _map_input() -> onnx.ModelProto:
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
    return model(RELU, inputs=[helper.make_value_info("x", kind)])


def _loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Concat", ["v", "v"], ["v2"], axis=0),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("c", [], TensorProto.BOOL), tensor("v")],
        [tensor("c2", [], TensorProto.BOOL), tensor("v2")],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    return model(node, inputs=[tensor("x"), tensor("n", [], TensorProto.INT64)])


def _branch() -> onnx.ModelProto:
    graphs = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], ["b"])], name, [], [tensor("b")]
        )
        for name, op in (("then", "Relu"), ("else", "Shape"))
    }
    node = helper.make_node("If", ["c"], ["y"], **graphs)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    return model(node, inputs=[tensor("x"), condition])


def _computed_shape() -> onnx.ModelProto:
    inputs = [tensor("x"), tensor("s", [2], TensorProto.INT64)]
    return model(helper.make_node("Reshape", ["x", "s"], ["y"]), inputs=inputs)


UNSUPPORTED: dict[str, tuple[Callable[[], onnx.ModelProto], list[str]]] = {
    "unknown operator": (
        lambda: model(helper.make_node("Frobnicate", ["x"], ["y"])),
        ["Frobnicate"],
    ),
    "unknown domain": (
        lambda: model(
            helper.make_node("Fuse", ["x"], ["y"], domain="com.acme"),
            domains={"": 18, "com.acme": 1},
        ),
        ["com.acme.Fuse"],
    ),
    "ONNX Runtime's own operators": (
        lambda: model(
            helper.make_node("NhwcConv", ["x"], ["y"], domain="com.microsoft"),
            domains={"": 18, "com.microsoft": 1},
        ),
        ["com.microsoft.NhwcConv", "QuantFormat.QDQ"],
    ),
    "a quantised operator without a scale": (
        lambda: model(
            helper.make_node("QLinearAdd", ["x"], ["y"], domain="com.microsoft"),
            domains={"": 18, "com.microsoft": 1},
        ),
        ["QLinearAdd", "input 3"],
    ),
    "domain without an import": (
        lambda: model(helper.make_node("Fuse", ["x"], ["y"], domain="com.acme")),
        ["com.acme.Fuse"],
    ),
    "operator set of the future": (lambda: model(RELU, domains={"": 999}), ["999"]),
    "string input": (
        lambda: model(RELU, inputs=[tensor("x", kind=TensorProto.STRING)]),
        ["'x'", "strings"],
    ),
    "string constant": (
        lambda: model(
            helper.make_node("Equal", ["x", "s"], ["y"]),
            inputs=[tensor("x")],
            constants={"s": np.asarray(["a", "b"], object)},
        ),
        [],
    ),
    "sequence input": (_sequence_input, ["'x'", "sequence"]),
    "optional input": (_optional_input, ["'x'", "optional"]),
    "map input": (_map_input, ["'x'", "map"]),
    "a loop that changes a shape": (_loop, ["Loop"]),
    "branches of two shapes": (_branch, ["If", "one shape"]),
    "shape that is computed": (_computed_shape, ["Reshape", "constant"]),
    "complex input": (lambda: model(RELU, inputs=[tensor("x", kind=14)]), ["complex64", "'x'"]),
    "random numbers": (
        lambda: model(helper.make_node("RandomNormalLike", ["x"], ["y"])),
        ["RandomNormalLike"],
    ),
    "training": (
        lambda: model(
            helper.make_node("Dropout", ["x", "", "t"], ["y"]), constants={"t": np.asarray(True)}
        ),
        ["inference"],
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported(folder: Path, name: str) -> None:
    make, words = UNSUPPORTED[name]
    check(make(), UnsupportedError, *words)
    assert list(folder.iterdir()) == []


BROKEN: dict[str, Callable[[], onnx.ModelProto]] = {
    "tensor without producer": lambda: model(helper.make_node("Add", ["x", "ghost"], ["y"])),
    "output without producer": lambda: model(helper.make_node("Relu", ["x"], ["z"])),
    "cycle": lambda: model(
        helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])
    ),
    "two producers": lambda: model(RELU, helper.make_node("Neg", ["x"], ["y"])),
    "missing attribute": lambda: model(helper.make_node("Cast", ["x"], ["y"])),
    "too few inputs": lambda: model(helper.make_node("Add", ["x"], ["y"])),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs(name: str) -> None:
    check(BROKEN[name](), ModelError)


def test_shapes_that_do_not_go_together() -> None:
    proto = model(helper.make_node("Add", ["x", "w"], ["y"]), constants={"w": np.ones(4, "f")})
    check(proto, StretchError, "Add")


def test_weights_of_the_wrong_length() -> None:
    proto = model(
        helper.make_node("MatMul", ["x", "w"], ["y"]), constants={"w": np.ones((3, 3), "f")}
    )
    proto.graph.initializer[0].raw_data = b"\0" * 5
    check(proto, ModelError)
