"""Networks for inputs of several lengths: one artifact, one set of weights, shapes that choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from helpers.relax_helpers import answers, module
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, rpc

import tvm_stretch as ts
from tvm_stretch.base.errors import ArtifactError, InputError
from tvm_stretch.passes.share_constants import ShareConstants
from tvm_stretch.read import load_network

WORDS, WIDTH, RESULTS = 20, 32, 8
LENGTHS = (4, 7, 16)


def attention(**states: list[Any]) -> onnx.ModelProto:
    """Self-attention over `n` tokens and a mean over them; with states, sums of earlier runs."""
    rng = np.random.default_rng(0)
    weights = {
        "embedding": rng.standard_normal((WORDS, WIDTH)).astype("float32"),
        "inner": rng.standard_normal((WIDTH, 48)).astype("float32"),
        "outer": rng.standard_normal((48, RESULTS)).astype("float32"),
        "axis": np.array([1]),
    }
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["rows"]),
        helper.make_node("MatMul", ["rows", "inner"], ["x"]),
        helper.make_node("Transpose", ["x"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "x"], ["mixed"]),
        helper.make_node("MatMul", ["mixed", "outer"], ["each"]),
        helper.make_node("ReduceMean", ["each", "axis"], ["mean"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "n"])]
    outputs = [
        helper.make_tensor_value_info("each", TensorProto.FLOAT, ["batch", "n", RESULTS]),
        helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", RESULTS]),
    ]
    for name, shape in states.items():
        nodes.append(helper.make_node("Add", [name, "mean"], [f"next_{name}"]))
        inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        outputs.append(helper.make_tensor_value_info(f"next_{name}", TensorProto.FLOAT, shape))
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 8
    return model


def tokens(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, WORDS, shape)


def expected(network: onnx.ModelProto, **given: np.ndarray) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(network.SerializeToString())
    answers: list[np.ndarray] = session.run(None, given)
    return answers


def same(found: Any, wanted: list[np.ndarray]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def model() -> ts.Model:
    lengths = {"n": LENGTHS}
    return ts.compile(
        attention(), ["llvm"], shapes={"tokens": (1, "n")}, lengths=lengths, cpu_threads=1
    )


@pytest.fixture(scope="module")
def artifact(model: ts.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lengths") / "model.so"
    model.export(path)
    return path


def test_shapes_choose_the_length(model: ts.Model, artifact: Path) -> None:
    for one in (model, ts.load(artifact), model.create_instance()):
        assert one.lengths == tuple({"n": n} for n in LENGTHS)
        for n in (16, 4, 7, 16, 4):
            x = tokens(1, n)
            same(one(x), expected(attention(), tokens=x))
            assert one.in_use == f"n={n}"
            assert one.inputs[0].shape == (1, n)
        assert str(one.inputs[0]) == "tokens: int64[1, 4|7|16]"
        assert one.inputs[0].shapes == tuple((1, n) for n in LENGTHS)
        assert [str(info) for info in one.outputs] == [
            "each: float32[1, 4|7|16, 8]",
            "mean: float32[1, 8]",
        ]


def test_weights_and_arena_are_shared(model: ts.Model) -> None:
    alone = {
        n: ts.compile(attention(), ["llvm"], shapes={"tokens": (1, n)}, cpu_threads=1).graph
        for n in LENGTHS
    }
    graph = model.graph
    assert graph.weights_bytes == alone[4].weights_bytes
    assert graph.arena_bytes == max(one.arena_bytes for one in alone.values())
    kernels = {n: [node.kernel for node in one.nodes] for n, one in alone.items()}
    for number, n in enumerate(LENGTHS):  # the kernels of a model for this length alone
        assert [node.kernel for node in graph.of_plan(number).nodes] == kernels[n]


@pytest.mark.parametrize("shape", [(1, 5), (1, 0), (1, 17), (2, 4), (4,), (1, 4, 1)])
def test_other_lengths_are_refused(model: ts.Model, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"one of the lengths n=4; n=7; n=16, got tokens: \["):
        model(np.zeros(shape, "int64"))
    with pytest.raises(InputError, match="got int32"):
        model(np.zeros((1, 4), "int32"))
    executor = model.module
    for method in ("invoke", "set_input"):
        given = ["tokens"] if method == "set_input" else []
        with pytest.raises(ValueError, match="expected "):
            executor[method](*given, tvm.runtime.tensor(np.zeros(shape, "int64")))
    x = tokens(1, 7)
    same(model(x), expected(attention(), tokens=x))  # nothing broke


def test_modules_share_their_constants() -> None:
    """While several lengths are compiled, weights are in memory once."""
    share = ShareConstants()
    found = []
    for n in (4, 7):
        mod = load_network(attention(), {"tokens": ("batch", "n")}, sizes={"batch": 1, "n": n})
        shared = share(mod)
        same(answers(shared, tokens(1, n)), answers(mod, tokens(1, n)))
        constants: dict[bytes, int] = {}

        def see(expr: relax.Expr, constants: dict[bytes, int] = constants) -> None:
            if isinstance(expr, tvm.ir.GenericConst) and expr.value.numpy().nbytes > 1000:
                value = np.from_dlpack(expr.value)
                constants[value.tobytes()] = value.ctypes.data

        relax.analysis.post_order_visit(shared["main"].body, see)
        found.append(constants)
    assert len(found[0]) == 3 and found[0] == found[1]


def test_what_to_pad_to(model: ts.Model) -> None:
    assert model.length_for(n=1) == {"n": 4}
    assert model.length_for(n=7) == {"n": 7}
    assert model.length_for(n=8) == {"n": 16}
    for sizes in ({"n": 17}, {"n": 0}, {"m": 1}):
        with pytest.raises(InputError):
            model.length_for(**sizes)
    with pytest.raises(InputError, match="pad them to n=16"):
        model(tokens(1, 9))


def test_measurements_are_those_of_the_length_in_use(model: ts.Model) -> None:
    model = model.create_instance()
    for number, name in enumerate(("n=4", "n=7", "n=16")):
        model.use(name)
        assert model.plan is model.plans[name]
        assert f"for {name}, beside n=" in model.plan.explain()
        assert model.benchmark(2).median > 0
        names = {node.name for node in model.graph.of_plan(number).nodes}
        assert {kernel.name for kernel in model.profile(1).kernels} <= names
        assert model.timeline(repeat=1).duration > 0
        assert model.in_use == name
    with pytest.raises(InputError, match="one length for adapt"):
        model.adapt()
    with pytest.raises(ValueError, match="one length for adapt"):
        model.module["adapt"](1.3, 3, 16)
    with pytest.raises(InputError, match="one length for a group"):
        ts.Group({"a": model, "b": model})


def test_steps_and_plain_tvm(model: ts.Model, artifact: Path) -> None:
    x = tokens(3, 1, 7)
    found = model.run_steps(3, x)
    for step in range(3):
        same([value[step] for value in found], expected(attention(), tokens=x[step]))
    executor = tvm.runtime.load_module(str(artifact))
    with pytest.raises(ValueError, match="got none"):
        executor["run"]()
    for n in (16, 4):
        executor["set_input"]("tokens", tvm.runtime.tensor(tokens(1, n)))
        executor["run"]()
        outputs = [executor["get_output"](place).numpy() for place in range(2)]
        same(outputs, expected(attention(), tokens=tokens(1, n)))
    executor["set_input"]("tokens", tvm.runtime.tensor(tokens(1, 7)))
    assert executor["get_output"](0).shape == (1, 4, RESULTS)  # of the last run


def test_states_are_shared() -> None:
    """A prompt of one length, then steps of another, on the same state."""
    network = attention(total=[1, RESULTS])
    model = ts.compile(
        network,
        ["llvm"],
        lengths={"n": [1, 6], "batch": [1]},
        states={"total": "next_total"},
        cpu_threads=1,
    )
    total = np.zeros((1, RESULTS), "float32")
    for n in (6, 1, 1, 6):
        *answers, total = expected(network, tokens=tokens(1, n), total=total)
        same(model(tokens(1, n)), answers)
        np.testing.assert_allclose(model.states["total"], total, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"one shape of the state 'total'.*\[1, 8\].*\[2, 8\]"):
        ts.compile(
            attention(total=["batch", RESULTS]),
            ["llvm"],
            lengths={"batch": [1, 2], "n": [4]},
            states={"total": "next_total"},
            cpu_threads=1,
        )


def test_a_prompt_in_pieces_fills_a_cache() -> None:
    """Steps of one token go on where a prompt of several ended; the cache keeps its last places."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((WORDS, 16)).astype("float32")
    nodes = [
        helper.make_node("Gather", ["rows", "tokens"], ["new"]),
        helper.make_node("Concat", ["past", "new"], ["present"], axis=1),
        helper.make_node("Transpose", ["present"], ["keys"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["new", "keys"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "present"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "n"]),
        helper.make_tensor_value_info("past", TensorProto.FLOAT, [1, "before", 16]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n", 16]),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, [1, "after", 16]),
    ]
    constants = [numpy_helper.from_array(rows, "rows")]
    graph = helper.make_graph(nodes, "cache", inputs, outputs, constants)
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    model = ts.compile(
        network,
        ["llvm"],
        lengths={"n": [1, 4]},
        shapes={"past": (1, 6, 16)},
        states={"past": "present"},
        cpu_threads=1,
    )
    past = np.zeros((1, 6, 16), "float32")
    for n in (4, 1, 1, 4, 1):
        y, present = expected(network, tokens=tokens(1, n), past=past)
        past = present[:, -6:]
        same([model(tokens(1, n))], [y])
        np.testing.assert_allclose(model.states["past"], past, rtol=1e-5)


def test_batches_of_two_inputs() -> None:
    """Inputs that are set one by one choose together; those of an earlier length are not used."""
    network = attention(total=["batch", RESULTS])
    model = ts.compile(network, ["llvm"], lengths={"batch": [1, 2], "n": [4, 5]}, cpu_threads=1)
    assert [*model.plans] == ["batch=1, n=4", "batch=1, n=5", "batch=2, n=4", "batch=2, n=5"]
    executor = model.module
    for batch, n in ((2, 5), (1, 4), (2, 4), (1, 5)):
        total = np.ones((batch, RESULTS), "float32")
        given = {"total": total, "tokens": tokens(batch, n)}
        same(model(given), expected(network, **given))
        for name, value in given.items():
            executor["set_input"](name, tvm.runtime.tensor(value))
        executor["run"]()
        assert model.in_use == f"batch={batch}, n={n}"
        same([executor["get_output"](place).numpy() for place in range(3)], [*model(given)])
    executor["set_input"]("total", tvm.runtime.tensor(np.ones((2, RESULTS), "float32")))
    with pytest.raises(ValueError, match=r"'tokens'.*got one of another length than batch=2"):
        executor["run"]()
    with pytest.raises(InputError, match="one of the lengths"):
        model({"total": np.ones((2, RESULTS), "float32"), "tokens": tokens(1, 4)})


def test_guards_are_those_of_the_length(model: ts.Model) -> None:
    for n in LENGTHS:
        x = tokens(1, n)
        x[0, n - 1] = WORDS
        with pytest.raises(InputError, match=f"got {WORDS} at"):
            model(x)
        model(tokens(1, n))


def test_names_of_relax_modules() -> None:
    network = module(relax.op.nn.relu, ("n", 8))
    model = ts.compile(network, ["llvm"], lengths={"n": [2, 3]}, cpu_threads=1)
    for rows in (3, 2):
        value = np.random.default_rng(0).standard_normal((rows, 8)).astype("float32")
        np.testing.assert_array_equal(model(value), np.maximum(value, 0))


@pytest.mark.parametrize(
    ("lengths", "shapes", "message"),
    [
        ({}, None, "a dictionary for lengths"),
        ([64], None, "a dictionary for lengths"),
        ({"n": []}, None, r"lengths\['n'\]"),
        ({"n": 64}, None, r"lengths\['n'\]"),
        ({"n": [4, 0]}, None, "at least 1"),
        ({"n": [-4]}, None, "at least 1"),
        ({"n": [4, 4]}, None, "different sizes"),
        ({"n": ["4"]}, None, r"lengths\['n'\]"),
        ({"n": range(1, 10**12)}, None, "at most 64"),
        ({"n": range(1, 60), "batch": [1, 2]}, None, "at most 64 lengths, got 118"),
        ({"m": [4, 5]}, {"tokens": (1, 4)}, "inputs of other shapes for m=5 than for m=4"),
        ({"n": [4]}, {"tokens": (1, "m")}, "dimension 'm'"),
        (None, {"tokens": (1, "n")}, "dimension 'n'"),
        ({"n": [4, 5]}, {"tokens": (1, 4)}, "n is 5 elsewhere"),
        ({"n": [4, 5]}, None, "batch left open"),
    ],
)
def test_wrong_lengths(lengths: Any, shapes: Any, message: str) -> None:
    with pytest.raises(ts.StretchError, match=message):
        ts.compile(attention(), ["llvm"], lengths=lengths, shapes=shapes, cpu_threads=1)
    with pytest.raises(InputError, match="no plans beside lengths"):
        ts.compile(attention(), ["llvm"], lengths={"n": [4]}, plans=True)


def test_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    device = ts.connect(rpc.LocalSession(), "pixel")
    shapes, lengths = {"tokens": (1, "n")}, {"n": [4, 7]}
    model = ts.compile(attention(), ["llvm"], device=device, shapes=shapes, lengths=lengths)
    loaded = device.load(model)
    for n in (7, 4, 7):
        same(loaded(tokens(1, n)), expected(attention(), tokens=tokens(1, n)))
    with pytest.raises(InputError, match="pad them to n=7"):
        loaded(tokens(1, 5))


@pytest.mark.full
def test_two_processors() -> None:
    model = ts.compile(
        attention(),
        ["llvm", "opencl"],
        shapes={"tokens": (1, "n")},
        lengths={"n": [4, 9]},
        cpu_threads=1,
    )
    for n in (9, 4, 9):
        same(model(tokens(1, n)), expected(attention(), tokens=tokens(1, n)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("lengths", 1, "inputs"), [], "as many ports"),
        (("lengths", 1, "inputs", 0, "name"), "other", "the names, types"),
        (("lengths", 1, "inputs", 0, "tensor"), 10**6, "an integer in"),
        (("lengths", 1, "outputs", 0, "tensor"), 0, "starts the port's own memory"),
        (("lengths",), {}, "a list"),
        (("lengths", 1), 7, "an object"),
        (("lengths", 0), None, "a plan for each length"),
    ],
)
def test_hostile_graphs(model: ts.Model, path: Any, value: Any, message: str) -> None:
    assert model.parts is not None
    graph = json.loads(model.parts.graph.to_json())
    *parents, last = path
    place = graph
    for key in parents:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    create = tvm.get_global_func("tvm_stretch.create_executor")
    with pytest.raises(ValueError, match=message):
        create(json.dumps(graph), model.parts.weights, model.parts.code.load())


def test_damaged_artifacts(artifact: Path, tmp_path: Path) -> None:
    data = bytearray(artifact.read_bytes())
    data[data.index(b'"lengths"') + 1] ^= 1
    (tmp_path / "damaged.so").write_bytes(data)
    with pytest.raises(ArtifactError):
        ts.load(tmp_path / "damaged.so")
