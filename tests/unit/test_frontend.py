"""load_network: what every kind of source becomes."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_models import run_onnxruntime
from helpers.relax_helpers import module, op_names, random_const, run
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvm_stretch.api.cli.arguments import parser
from tvm_stretch.base.errors import InputError, ModelError, UnsupportedError
from tvm_stretch.read import load_network

FLOAT = TensorProto.FLOAT
Shape = list[int | str | None]


def info(name: str, shape: Shape | None = (2, 3), kind: int = FLOAT) -> onnx.ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """An ONNX model; outputs carry no shape."""
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def node(op: str, inputs: str, output: str, **attrs: object) -> onnx.NodeProto:
    """A node; ``inputs`` are separated by spaces."""
    return helper.make_node(op, inputs.split(), output.split(), **attrs)


def flattening(shape: Shape) -> onnx.ModelProto:
    """A network that computes the shape of its reshape, as exporters do."""
    nodes = [
        node("Relu", "x", "r"),
        node("Shape", "r", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 minus", "target", axis=0),
        node("Reshape", "r target", "y"),
    ]
    constants = {
        "zero": np.asarray(0),
        "axes": np.asarray([0]),
        "minus": np.asarray([-1]),
    }
    return model(nodes, [info("x", shape)], ["y"], constants)


def params(mod) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shapes and types of the parameters of main by name."""
    return {
        p.name: (tuple(int(d) for d in p.ty.shape.values), str(p.ty.dtype))
        for p in mod["main"].params
    }


def test_computed_shapes_become_static() -> None:
    mod = load_network(flattening([2, 3, 4]))
    assert op_names(mod) == ["relax.nn.relu", "relax.reshape"]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f")
    np.testing.assert_array_equal(run(mod, x)[0], np.maximum(x, 0).reshape(2, 12))


def test_shapes_fix_dynamic_dimensions() -> None:
    mod = load_network(flattening(["n", 3, None]), {"x": (5, 3, 7)})
    assert params(mod) == {"x": ((5, 3, 7), "float32")}


def test_placeholders_are_open_and_not_equal() -> None:
    mod = load_network(flattening([-1, "?", "?"]), {"x": (5, 3, 7)})
    assert params(mod) == {"x": ((5, 3, 7), "float32")}


def test_a_named_dimension_is_fixed_for_every_input() -> None:
    inputs = [info("a", ["n", 3]), info("b", ["n", 3])]
    mod = load_network(model([node("Add", "a b", "y")], inputs, ["y"]), {"a": (4, 3)})
    assert params(mod)["b"] == ((4, 3), "float32")


def test_inputs_that_share_a_named_dimension_agree() -> None:
    inputs = [info("a", ["n", 3]), info("b", ["n", 3])]
    proto = model([node("Add", "a b", "y")], inputs, ["y"])
    with pytest.raises(InputError, match=r"4 for dimension 0 of .*'b'.*n is 4 elsewhere"):
        load_network(proto, {"a": (4, 3), "b": (5, 3)})


@pytest.mark.parametrize(
    ("shape", "shapes", "error", "words"),
    [
        (["n", 3, 4], None, ModelError, ["'x'", "n", "left open"]),
        ([None, 3, 4], None, ModelError, ["'x'", "dimension 0"]),
        (None, None, ModelError, ["unknown rank"]),
        (["n", 3, 4], {"z": (1, 3, 4)}, InputError, ["'z'", "['x']"]),
        (["n", 3, 4], {"x": (1, 3)}, InputError, ["3 dimensions", "[1, 3]"]),
        (["n", 3, 4], {"x": (-1, 3, 4)}, InputError, ["at least 0"]),
        (["n", 3, 4], {"x": (1, 5, 4)}, InputError, ["expected 3 for dimension 1", "got 5"]),
        (["n", 3, 4], {"x": (1, None, 4)}, InputError, ["one integer per dimension", "None"]),
        (["n", 3, 4], {"x": 3}, InputError, ["one integer per dimension"]),
    ],
)
def test_shapes_that_do_not_fit(
    shape: Shape | None, shapes: dict | None, error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        load_network(flattening(shape), shapes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_names_of_inputs_and_outputs_stay() -> None:
    nodes = [node("Relu", "in.1:0", "out/1"), node("Neg", "in.1:0", "2")]
    mod = load_network(model(nodes, [info("in.1:0")], ["out/1", "2"]))
    assert list(params(mod)) == ["in.1:0"]
    assert list(mod["main"].attrs["output_names"]) == ["out/1", "2"]


def test_inputs_that_nothing_reads_stay() -> None:
    mod = load_network(model([node("Relu", "x", "y")], [info("unused", [7]), info("x")], ["y"]))
    assert list(params(mod)) == ["unused", "x"]


def test_input_returned_directly_and_twice() -> None:
    mod = load_network(model([node("Relu", "x", "y")], [info("x")], ["x", "y", "x"]))
    x = np.float32([[1, -2, 3], [4, -5, 6]])
    got = run(mod, x)
    assert len(got) == 3
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[2], x)


def test_no_inputs() -> None:
    mod = load_network(model([node("Neg", "c", "y")], [], ["y"], {"c": np.float32([1, 2])}))
    np.testing.assert_array_equal(run(mod)[0], [-1, -2])


def test_initialisers_listed_as_inputs_are_constants() -> None:
    weight = np.ones((3, 4), "f")
    inputs = [info("x"), info("w", [3, 4])]
    mod = load_network(model([node("MatMul", "x w", "y")], inputs, ["y"], {"w": weight}))
    assert list(params(mod)) == ["x"]


def test_integer_inputs() -> None:
    inputs = [info("x", [4, 3]), info("i", [2], TensorProto.INT64)]
    mod = load_network(model([node("Gather", "x i", "y", axis=0)], inputs, ["y"]))
    assert params(mod)["i"] == ((2,), "int64")
    x = np.arange(12, dtype="f").reshape(4, 3)
    np.testing.assert_array_equal(run(mod, x, np.asarray([-1, 1]))[0], x[[-1, 1]])


def test_optional_inputs_left_out() -> None:
    nodes = [node("Clip", "x", "y"), helper.make_node("Clip", ["y", "", "six"], ["z"])]
    mod = load_network(model(nodes, [info("x")], ["z"], {"six": np.float32(6)}))
    x = np.float32([[-9, 5, 7], [0, 6, 8]])
    np.testing.assert_array_equal(run(mod, x)[0], np.minimum(x, 6))


def test_a_condition_that_is_known_is_not_control_flow() -> None:
    branches = {
        f"{name}_branch": helper.make_graph([node(op, "x", "b")], name, [], [info("b")])
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    proto = model([node("If", "c", "y", **branches)], [info("x")], ["y"], {"c": np.asarray(False)})
    assert op_names(load_network(proto)) == ["relax.negative"]


def test_functions_of_the_model_are_inlined() -> None:
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 18)]
    )
    call = helper.make_node("Twice", ["x"], ["y"], domain="mine")
    proto = model([call], [info("x")], ["y"])
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    assert op_names(load_network(proto)) == ["relax.add"]


@pytest.mark.parametrize(("kernel", "stride", "expected"), [(2, 2, [3, 7, 5]), (1, 3, [1, 4])])
def test_norms_of_windows_that_reach_beyond_the_end(
    kernel: int, stride: int, expected: list[float]
) -> None:
    attrs = {"kernel_shape": [kernel], "strides": [stride], "ceil_mode": 1, "p": 1}
    mod = load_network(model([node("LpPool", "x", "y", **attrs)], [info("x", [1, 1, 5])], ["y"]))
    x = np.float32([[[1, -2, 3, -4, 5]]])
    np.testing.assert_allclose(run(mod, x)[0], [[expected]], rtol=1e-6)


def test_a_window_that_would_see_padding_alone_is_none() -> None:
    """So ONNX says of ``ceil_mode``; the padding itself counts."""
    attrs = {"kernel_shape": [2], "strides": [4], "pads": [0, 1], "ceil_mode": 1}
    pool = node("AveragePool", "x", "y", **attrs, count_include_pad=1)
    mod = load_network(model([pool], [info("x", [1, 1, 4])], ["y"]))
    np.testing.assert_array_equal(run(mod, np.float32([[[1, 2, 3, 4]]]))[0], [[[1.5]]])


def test_what_is_negative_leaks_by_a_hundredth_unless_it_says_more() -> None:
    mod = load_network(model([node("LeakyRelu", "x", "y")], [info("x", [2])], ["y"]))
    expected = np.float32([-3, 2]) * np.float32([0.01, 1])
    np.testing.assert_array_equal(run(mod, np.float32([-3, 2]))[0], expected)


def test_the_model_is_not_changed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    proto = flattening(["n", 3, 4])
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), "f"), "large"))
    before = proto.SerializeToString(deterministic=True)
    load_network(proto, {"x": (1, 3, 4)})
    assert proto.SerializeToString(deterministic=True) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_path_with_external_data(tmp_path: Path, kind: Callable) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype("f")
    proto = model([node("MatMul", "x w", "y")], [info("x", [2, 64])], ["y"], {"w": weight})
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="net.bin", size_threshold=0)
    x = np.ones((2, 64), "f")
    np.testing.assert_allclose(
        run(load_network(kind(path)), x)[0], x @ weight, rtol=1e-5, atol=1e-5
    )


def test_bytes_of_a_file() -> None:
    proto = model([node("Relu", "x", "y")], [info("x")], ["y"])
    assert op_names(load_network(proto.SerializeToString())) == ["relax.nn.relu"]


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 12, 15), {"strides": [1, 2], "pads": [1, 0, 0, 1]}),
        ((1, 8, 16), {"dilations": [2, 3], "pads": [0, 1, 1, 0]}),
        ((1, 4, 20), {}),
    ],
)
def test_windows_are_added_to_an_image(shape: tuple[int, ...], attributes: dict) -> None:
    """Each pixel is the sum of at most four elements."""
    constants = {"size": np.array([5, 6]), "block": np.array([2, 2])}
    nodes = [node("Col2Im", "x size block", "y", **attributes)]
    proto = model(nodes, [info("x", [*shape])], ["y"], constants)
    x = np.random.default_rng(0).uniform(-1, 1, shape).astype("f")
    (want,) = run_onnxruntime(proto, {"x": x})
    np.testing.assert_allclose(run(load_network(proto), x)[0], want, rtol=0, atol=4 * 4 * 2.0**-24)


def test_relax_module() -> None:
    mod = module(lambda x: relax.op.nn.relu(relax.op.add(random_const(3), x)), ("n", 3))
    loaded = load_network(mod, {"x0": (2, 3)})
    assert params(loaded) == {"x0": ((2, 3), "float32")}
    assert op_names(loaded) == ["relax.add", "relax.nn.relu"]


@pytest.mark.parametrize(
    ("shapes", "error", "word"),
    [
        (None, ModelError, "open dimension"),
        ({"y": (2, 3)}, InputError, "['x0']"),
        ({"x0": (2,)}, InputError, "one size per dimension"),
        ({"x0": (2, 4)}, InputError, "dimension 1 of shapes['x0'], got 4"),
        ({"x0": "ab"}, InputError, "one integer per dimension"),
    ],
)
def test_relax_module_with_shapes_that_do_not_fit(
    shapes: dict | None, error: type[Exception], word: str
) -> None:
    mod = module(lambda x: relax.op.nn.relu(x), ("n", 3))
    with pytest.raises(error) as caught:
        load_network(mod, shapes)
    assert word in str(caught.value)


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ([["N", 3, 4]], 'shapes={"x0": (1, 3, 4)}, or --shape x0=1,3,4 on the command line'),
        ([["N", 3], ["N", 5], [2, 2]], '"x0": (1, 3), "x1": (1, 5)}, or --shape x0=1,3 --shape'),
        ([["N", 3, "H", "W"]], '"x0": (1, 3, 224, 224)}'),
        ([["N", 3, "frames", 8]], "with your numbers for frames"),
        ([[2, 3], ["N", "N"]], 'shapes={"x1": (1, 1)}, or --shape x1=1,1 on the command line'),
    ],
)
def test_what_closes_open_dimensions_is_ready_to_paste(dims: list[list], said: str) -> None:
    names = [f"x{i}" for i in range(len(dims))]
    nodes = [node("ReduceMax", name, f"y{name}", keepdims=0) for name in names]
    proto = model(nodes, [info(n, d) for n, d in zip(names, dims, strict=True)], ["yx0"])
    with pytest.raises(ModelError) as caught:
        load_network(proto)
    message = str(caught.value)
    assert said in message
    shapes = ast.literal_eval(re.search(r"shapes=(\{.*?\})", message)[1])
    load_network(proto, shapes)
    words = shlex.split(re.search(r"--shape .*(?= on the command line)", message)[0])
    given = dict(parser().parse_args(["compile", "net.onnx", "-o", "net.so", *words]).shapes)
    assert given == shapes


def test_a_relax_module_says_what_closes_its_dimensions() -> None:
    mod = module(lambda x: relax.op.nn.relu(x), ("n", 3, "m"))
    with pytest.raises(ModelError, match=r'"x0": \(1, 3, 100\)\}.* with your numbers for m'):
        load_network(mod)


def test_relax_module_without_main() -> None:
    mod = module(lambda x: relax.op.nn.relu(x), (2, 3))
    del mod[mod.get_global_var("main")]
    with pytest.raises(ModelError, match="main"):
        load_network(mod)


class Block(torch.nn.Module):
    """What torchvision's networks are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Conv, norm, activations, pool, dense."""
        y = torch.nn.functional.hardswish(self.norm(self.conv(x)))
        y = torch.nn.functional.relu6(torch.nn.functional.silu(y))
        return self.head(torch.nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_sums_of_booleans_say_of_which_type_they_are(name: str) -> None:
    running = getattr(relax.op, name)
    with pytest.raises(UnsupportedError, match=f"result of {name}, got bool; write dtype"):
        load_network(module(lambda x: running(x, 1), (2, 5), dtype="bool"))
    mod = load_network(module(lambda x: running(x, 1, "int32"), (2, 5), dtype="bool"))
    x = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 0, 1]], bool)
    np.testing.assert_array_equal(run(mod, x)[0], getattr(np, name)(x, 1))


@pytest.mark.parametrize("dtype", ["bool", "int8"])
def test_order_of_narrow_types(dtype: str) -> None:
    """TVM compares no booleans, and its runtime sorts no integers of 8 bits."""
    x = np.array([[1, 0, 0, 1, 1], [1, 0, 0, 1, 0]], dtype)

    def body(x: relax.Expr) -> relax.Expr:
        orders = relax.op.sort(x, 1), relax.op.argsort(x, 1)
        return relax.Tuple([*orders, relax.TupleGetItem(relax.op.median(x, 1, True), 0)])

    ordered, places, median = run(load_network(module(body, x.shape, dtype=dtype)), x)
    np.testing.assert_array_equal(ordered, np.sort(x, 1))
    np.testing.assert_array_equal(places, np.argsort(x, 1, kind="stable"))
    np.testing.assert_array_equal(median, np.sort(x, 1)[:, 2:3])


def test_exported_program_with_a_dynamic_batch() -> None:
    net, x = Block().eval(), torch.randn(2, 3, 8, 8)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    mod = load_network(program, {"x": (2, 3, 8, 8)})
    assert op_names(mod)[:2] == ["relax.nn.conv2d", "relax.add"]
    assert "relax.nn.batch_norm" not in op_names(mod)
    want = net(x).detach().numpy()
    np.testing.assert_allclose(run(mod, x.numpy())[0], want, rtol=1e-4, atol=1e-5)


def test_path_of_an_exported_program(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.randn(2, 3),)), path)
    assert op_names(load_network(path)) == ["relax.nn.relu"]
    assert op_names(load_network(str(path))) == ["relax.nn.relu"]
    path.write_bytes(b"no archive")
    with pytest.raises(ModelError, match=r"torch\.export\.save"):
        load_network(path)
    with pytest.raises(ModelError, match=r"no file .*none\.pt2"):
        load_network(tmp_path / "none.pt2")


def test_torch_module_says_how_to_export() -> None:
    with pytest.raises(InputError, match=r"torch module Block; pass torch\.export\.export"):
        load_network(Block())
