"""Networks that ask for too much: refused by the name of the node, before they cost anything."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from helpers.relax_helpers import module, op_names
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import ModelError, StretchError, UnsupportedError
from tvm_stretch.read import load_network
from tvm_stretch.read.network_limits import MOST_ELEMENTS, MOST_OPERATORS, MOST_TABLE_ELEMENTS
from tvm_stretch.read.onnx import reader as onnx_reader

FLOAT = TensorProto.FLOAT
Constants = dict[str, "np.ndarray | list[int]"]


def info(name: str, shape: list[int] | None = None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    *nodes: onnx.NodeProto,
    shape: tuple[int, ...] = (1, 4, 8, 8),
    constants: Constants | None = None,
    functions: list[onnx.FunctionProto] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """A model from ``x`` to ``y``; lists are constants of int64."""
    weights = [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", [info("x", list(shape))], [info("y")], weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def one(op: str, shape: tuple[int, ...] = (1, 4, 8, 8), **constants: object) -> onnx.ModelProto:
    """A node called ``bomb`` that reads ``x`` and the constants in order; None is left out."""
    attrs = {k: constants.pop(k) for k in list(constants) if isinstance(constants[k], str | bytes)}
    names = ["" if value is None else name for name, value in constants.items()]
    given = {name: value for name, value in constants.items() if value is not None}
    return model(
        helper.make_node(op, ["x", *names], ["y"], name="bomb", **attrs),
        shape=shape,
        constants=given,
    )


def of_constants(op: str, **constants: list[int]) -> onnx.ModelProto:
    """A node called ``bomb`` that reads constants only, and one that adds ``x``."""
    nodes = [
        helper.make_node(op, list(constants), ["t"], name="bomb"),
        helper.make_node("Cast", ["t"], ["f"], to=FLOAT),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    return model(*nodes, shape=(1,), constants=constants)


def doubled(source: str) -> onnx.ModelProto:
    """Twice as large 40 times."""
    nodes = [
        helper.make_node("Concat", [f"t{i}"] * 2, [f"t{i + 1}"], axis=0, name=f"bomb{i}")
        for i in range(40)
    ]
    nodes[0].input[:] = [source] * 2
    last = helper.make_node("ReduceMax", ["t40"], ["m"]), helper.make_node("Add", ["x", "m"], ["y"])
    return model(*nodes, *last, shape=(4,), constants={"c": np.ones(4, "f")})


def calls(depth: int, each: int) -> onnx.ModelProto:
    """Functions that call the next one ``each`` times."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for i in range(depth):
        op, domain = ("Relu", "") if i == depth - 1 else (f"f{i + 1}", "own")
        names = ["a", *(f"t{j}" for j in range(each - 1)), "b"]
        body = [
            helper.make_node(op, [names[j]], [names[j + 1]], domain=domain) for j in range(each)
        ]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], body, opsets))
    call = helper.make_node("f0", ["x"], ["y"], domain="own", name="bomb")
    return model(call, functions=functions)


def loops(depth: int) -> onnx.ModelProto:
    """1,000 iterations inside each of 1,000 iterations, and so on."""

    def body(level: int) -> onnx.GraphProto:
        inner = helper.make_node("Relu", [f"v{level}"], [f"w{level}"], name="bomb")
        if level:
            names = ["n", "", f"v{level}"]
            inner = helper.make_node("Loop", names, [f"w{level}"], body=body(level - 1))
        going = helper.make_node("Identity", [f"c{level}"], [f"d{level}"], name="bomb")
        inputs = [
            info(f"i{level}", [], TensorProto.INT64),
            info(f"c{level}", [], TensorProto.BOOL),
            info(f"v{level}"),
        ]
        outputs = [info(f"d{level}", [], TensorProto.BOOL), info(f"w{level}")]
        return helper.make_graph([inner, going], "body", inputs, outputs)

    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body(depth - 1))
    return model(loop, constants={"n": np.int64(1000)})


BOMBS: dict[str, Callable[[], onnx.ModelProto]] = {
    "dimension": lambda: one("Relu", (2**40,)),
    "dimensions whose product overflows": lambda: one("Relu", (2**40, 2**40)),
    "broadcast": lambda: one("Add", (2**20, 1), c=np.ones((1, 2**20), "f")),
    "Tile": lambda: one("Tile", c=[10**10, 1, 1, 1]),
    "Tile of a constant": lambda: of_constants("Tile", a=[1], b=[10**10]),
    "Expand": lambda: one("Expand", (1,), c=[10**10]),
    "Expand of a constant": lambda: of_constants("Expand", a=[1], b=[10**10]),
    "Pad": lambda: one("Pad", c=[0, 0, 0, 0, 0, 0, 10**10, 0]),
    "Pad by the edge": lambda: one("Pad", c=[0, 0, 0, 0, 0, 0, 10**10, 0], mode="edge"),
    "Pad of a constant": lambda: of_constants("Pad", a=[1], b=[0, 10**10]),
    "Resize": lambda: one("Resize", roi=None, scales=None, sizes=[1, 4, 10**10, 8]),
    "Resize, scales": lambda: one("Resize", roi=None, scales=np.float32([1, 1, 1e10, 1])),
    "Resize, table": lambda: one(
        "Resize", (1, 1, 8, 1), roi=None, scales=None, sizes=[1, 1, 2**24, 1], mode="cubic"
    ),
    "ConstantOfShape": lambda: of_constants("ConstantOfShape", a=[10**12]),
    "ConstantOfShape, many": lambda: of_constants("ConstantOfShape", a=[2**28]),
    "OneHot": lambda: of_constants("OneHot", a=[0], b=10**12, c=[0, 1]),
    "Range": lambda: of_constants("Range", a=0, b=10**12, c=1),
    "Trilu": lambda: one("Trilu", (2**13, 2**13)),
    "LRN": lambda: model(helper.make_node("LRN", ["x"], ["y"], size=10**9, name="bomb")),
    "Concat again and again": lambda: doubled("x"),
    "Concat of constants": lambda: doubled("c"),
    "functions that call each other twice": lambda: calls(30, 2),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"bomb|'x'") as caught:
        load_network(BOMBS[name]())
    assert str(caught.value).startswith("expected ")
    assert "; " in str(caught.value)


def test_operators_are_counted_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, copying and checking a million nodes took 25 seconds and 2.6 GB."""
    nodes = [
        onnx.helper.make_node("Relu", [f"x{i}"], [f"x{i + 1}"]) for i in range(MOST_OPERATORS + 1)
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])
        for name in ("x0", nodes[-1].output[0])
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "long", ends[:1], ends[1:]))
    monkeypatch.setattr(onnx_reader, "_read_weights", None)
    with pytest.raises(UnsupportedError, match=r"at most 10000 operators .*; split the model"):
        load_network(model)


def test_loops_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_stretch.read.onnx.importer.MOST_OPERATORS", 100)
    with pytest.raises(UnsupportedError, match=r"at most 100 operators .* loops unrolled, .*bomb"):
        load_network(loops(4))


def test_a_relax_module_that_asks_for_too_much() -> None:
    mod = module(lambda x: relax.op.broadcast_to(x, relax.ShapeExpr([MOST_ELEMENTS + 1])), (1,))
    with pytest.raises(UnsupportedError, match="broadcast_to"):
        load_network(mod)


def test_functions_that_call_each_other_too_deep_or_themselves() -> None:
    with pytest.raises(UnsupportedError, match=r"100 functions .* own\.f100"):
        load_network(calls(2000, 1))
    itself = calls(1, 1)
    itself.functions[0].node[0].CopyFrom(helper.make_node("f0", ["a"], ["b"], domain="own"))
    with pytest.raises(ModelError, match=r"call themselves .* own\.f0"):
        load_network(itself)


def test_graphs_nested_too_deep() -> None:
    proto = model(helper.make_node("Relu", ["x"], ["y"]))
    graph = proto.graph
    for _ in range(200):
        node = graph.node.add(op_type="If", input=["c"], output=["b"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    with pytest.raises(ModelError, match="fewer nested graphs"):
        load_network(proto)


def test_what_is_large_but_honest_is_taken() -> None:
    assert op_names(load_network(calls(20, 1))) == ["relax.nn.relu"]
    assert op_names(load_network(one("Trilu", (2**12, 2**12)))) == ["relax.where"]
    sizes = [1, 1, 60_000, 1]
    linear = one("Resize", (1, 1, 30_000, 1), roi=None, scales=None, sizes=sizes, mode="linear")
    assert "relax.take" in op_names(load_network(linear))
    assert MOST_TABLE_ELEMENTS >= 2**24
    assert MOST_OPERATORS >= 10_000


@pytest.mark.full
def test_a_chain_of_5000_nodes_compiles_within_a_minute() -> None:
    nodes = [
        helper.make_node(["Sin", "Relu"][i % 2], [f"t{i}"], [f"t{i + 1}"], name=f"node{i}")
        for i in range(5000)
    ]
    nodes[0].input[:], nodes[-1].output[:] = ["x"], ["y"]
    start = time.process_time()
    ts.compile(model(*nodes), cpu_threads=1)
    assert time.process_time() - start < 60


def _conv(shape: tuple[int, ...] = (1, 4, 8, 8), **attrs: object) -> onnx.ModelProto:
    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype("f")
    constants = {"w": weight, **({"b": attrs.pop("bias")} if "bias" in attrs else {})}
    node = helper.make_node("Conv", ["x", *constants], ["y"], name="conv", **attrs)
    return model(node, shape=shape, constants=constants)


def _pool(**attrs: object) -> onnx.ModelProto:
    return model(helper.make_node("MaxPool", ["x"], ["y"], name="pool", **attrs))


def _transposed(**attrs: object) -> onnx.ModelProto:
    constants = {"w": np.ones((4, 8, 3, 3), "f")}
    constants |= {"b": attrs.pop("bias")} if "bias" in attrs else {}
    node = helper.make_node("ConvTranspose", ["x", *constants], ["y"], name="up", **attrs)
    return model(node, constants=constants)


def _declared(kind: int, name: str = "y") -> onnx.ModelProto:
    nodes = helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])
    proto = model(*nodes)
    del proto.graph.output[:]
    proto.graph.output.append(info("y", None, kind if name == "y" else FLOAT))
    proto.graph.value_info.append(info("t", None, kind if name == "t" else FLOAT))
    return proto


def _without_outputs() -> onnx.ModelProto:
    proto = model(helper.make_node("Relu", ["x"], ["y"]))
    del proto.graph.output[:]
    return proto


INVALID: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "dilation 0": (lambda: _conv(dilations=[0, 0]), "'conv'.*dilations"),
    "stride -1": (lambda: _conv(strides=[-1, 1]), "'conv'.*strides"),
    "kernel_shape unlike the weights": (lambda: _conv(kernel_shape=[5, 5]), "shape.*'conv'"),
    "bias of 1 for 8 channels": (lambda: _conv(bias=np.ones(1, "f")), "8 channels.*'conv'"),
    "negative padding": (lambda: _conv(pads=[-4] * 4), "'conv'.*pads"),
    "window larger than the map": (lambda: _conv((1, 4, 2, 2)), "'conv'"),
    "auto_pad and pads": (lambda: _conv(auto_pad="SAME_UPPER", pads=[1] * 4), "both"),
    "auto_pad unknown": (lambda: _conv(auto_pad="SAME"), "SAME_UPPER"),
    "pool of 0": (lambda: _pool(kernel_shape=[0, 1]), "'pool'"),
    "pool of padding": (lambda: _pool(kernel_shape=[2, 2], pads=[2] * 4), "padding smaller"),
    "transposed, dilation 0": (lambda: _transposed(dilations=[0, 0]), "'up'.*dilations"),
    "transposed, kernel_shape": (lambda: _transposed(kernel_shape=[5, 5]), "'up'"),
    "transposed, bias": (lambda: _transposed(bias=np.ones(1, "f")), "8 channels.*'up'"),
    "transposed, nothing left": (lambda: _transposed(pads=[9] * 4), "'up'"),
    "transposed, output_padding": (lambda: _transposed(output_padding=[5, 5]), "below 1"),
    "declared type of an output": (lambda: _declared(TensorProto.DOUBLE), "float64.*'y'"),
    "declared type inside": (lambda: _declared(TensorProto.INT64, "t"), "int64.*'t'"),
    "no outputs": (_without_outputs, "outputs"),
    "operand of another type": (lambda: one("Not"), "'bomb'"),
    "split into more than there is": (lambda: one("Split", c=[1, 1]), "'bomb'"),
    "reflection of more than there is": (
        lambda: one("Pad", c=[0, 0, 9, 0, 0, 0, 9, 0], mode="reflect"),
        "8 elements.*'bomb'",
    ),
    "index out of range": (lambda: one("Gather", c=[1]), "-1 to 0.*'bomb'"),
    "scale of 1 for 4 channels": (
        lambda: one("InstanceNormalization", s=np.ones(1, "f"), b=np.ones(1, "f")),
        "4 channels.*'bomb'",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_what_onnx_runtime_refuses_is_refused(name: str) -> None:
    make, words = INVALID[name]
    with pytest.raises(StretchError, match=words) as caught:
        load_network(make())
    assert str(caught.value).startswith("expected ")
    assert "; " in str(caught.value)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_function_called_like_a_standard_operator_is_its_fallback_only(domain: str) -> None:
    """The specification leaves it to the runtime; ONNX Runtime takes its own operator too."""
    body = [helper.make_node("Neg", ["a"], ["b"])]
    relu = helper.make_function(domain, "Relu", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    node = helper.make_node("Relu", ["x"], ["y"])
    assert op_names(load_network(model(node, functions=[relu]))) == ["relax.nn.relu"]


def test_a_function_stands_in_for_an_operator_that_this_version_lacks() -> None:
    body = [helper.make_node("Neg", ["a"], ["b"])]
    gelu = helper.make_function("", "Gelu", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    proto = model(helper.make_node("Gelu", ["x"], ["y"]), functions=[gelu])  # new in version 20
    assert op_names(load_network(proto)) == ["relax.negative"]
