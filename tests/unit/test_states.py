"""Inputs that a model keeps from run to run: pairs, greedy tokens, counters, loops of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import rpc

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, RunError

WORDS, WIDTH, PLACES = 12, 16, 5


def decoder(grows: bool = False) -> onnx.ModelProto:
    """A step of an attention with a cache: sums of all tokens so far decide the next one.

    With `grows` the cache comes back with one place more, as exporters write it; otherwise the new
    row replaces the one at the position.
    """
    rng = np.random.default_rng(3)
    embedding = rng.standard_normal((WORDS, WIDTH)).astype("float32")
    nodes = [helper.make_node("Gather", ["embedding", "token"], ["row"])]
    if grows:
        nodes.append(helper.make_node("Concat", ["past.0", "row"], ["present.0"], axis=1))
    else:
        nodes += [
            helper.make_node("Reshape", ["position", "scalar3"], ["at"]),
            helper.make_node("Expand", ["at", "row_shape"], ["index"]),
            helper.make_node("ScatterElements", ["past.0", "index", "row"], ["present.0"], axis=1),
        ]
    nodes += [
        helper.make_node("ReduceSum", ["present.0", "axis"], ["sum"], keepdims=0),
        helper.make_node("Tanh", ["sum"], ["tanh"]),
        helper.make_node("MatMul", ["tanh", "output"], ["logits"]),
    ]
    cache = [1, PLACES, WIDTH]
    inputs = [
        helper.make_tensor_value_info("past.0", TensorProto.FLOAT, cache),
        helper.make_tensor_value_info("token", TensorProto.INT64, [1, 1]),
    ]
    if not grows:
        inputs.append(helper.make_tensor_value_info("position", TensorProto.INT64, [1]))
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, WORDS]),
        helper.make_tensor_value_info("present.0", TensorProto.FLOAT, [1, PLACES + grows, WIDTH]),
    ]
    weights = {
        "embedding": embedding,
        "output": rng.standard_normal((WIDTH, WORDS)).astype("float32"),
        "axis": np.array([1]),
        "scalar3": np.array([1, 1, 1]),
        "row_shape": np.array([1, 1, WIDTH]),
    }
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def reference(network: onnx.ModelProto, first: int, count: int) -> tuple[list[int], np.ndarray]:
    """Tokens that follow `first`, and the logits, by ONNX Runtime and a loop in Python."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(network.SerializeToString())
    names = [port.name for port in session.get_inputs()]
    cache = np.zeros((1, PLACES, WIDTH), "float32")
    tokens, scores = [first], []
    for position in range(count):
        given: dict[str, Any] = {"past.0": cache, "token": np.array([[tokens[-1]]])}
        if "position" in names:
            given["position"] = np.array([position])
        logits, cache = session.run(None, given)
        cache = cache[:, -PLACES:]
        tokens.append(int(logits.argmax()))
        scores.append(logits)
    return tokens[1:], np.stack(scores)


@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("targets", [["llvm"], ["llvm", "opencl"]])
def test_pairs_are_kept_from_run_to_run(grows: bool, targets: list[str]) -> None:
    network = decoder(grows)
    model = ts.compile(network, targets, states={"past.*": "present.*"}, cpu_threads=1)
    assert [info.name for info in model.outputs] == ["logits"]
    _, scores = reference(network, 4, PLACES)
    for _ in range(2):
        token, found = 4, []
        for position in range(PLACES):
            given = {"token": np.array([[token]])}
            if not grows:
                given["position"] = np.array([position])
            found.append(model(given))
            token = int(found[-1].argmax())
        np.testing.assert_allclose(np.stack(found), scores, rtol=1e-5, atol=1e-5)
        before = model.states["past.0"]
        model.benchmark(2)
        model.profile(1)
        np.testing.assert_array_equal(model.states["past.0"], before)
        model.reset()
    assert not model.states["past.0"].any()


def looping(network: onnx.ModelProto, targets: list[str] | None = None) -> ts.Model:
    """The network with a loop of its own: it feeds itself its tokens."""
    states: dict[str, Any] = {"past.*": "present.*", "token": ts.Greedy("logits")}
    if any(port.name == "position" for port in network.graph.input):
        states["position"] = ts.Counter()
    return ts.compile(network, targets or ["llvm"], states=states, cpu_threads=1)


@pytest.mark.parametrize(("target", "grows"), [("llvm", False), ("opencl", True)])
def test_a_loop_feeds_itself(target: str, grows: bool) -> None:
    network = decoder(grows)
    model = looping(network, [target])
    assert [info.name for info in model.inputs] == []
    assert [info.name for info in model.outputs] == ["logits", "next_token"]
    tokens, scores = reference(network, 4, PLACES)
    model.states["token"] = np.array([[4]])
    found = model.run_steps(PLACES)
    assert found.next_token.ravel().tolist() == tokens
    np.testing.assert_allclose(found.logits, scores, rtol=1e-5, atol=1e-5)
    if not grows:
        assert model.states["position"].tolist() == [PLACES]


def test_a_step_that_fails_leaves_the_states() -> None:
    model = looping(decoder())
    model.run_steps(PLACES)
    before = model.states["past.0"]
    with pytest.raises(InputError, match=f"got {PLACES}"):  # the cache has no such place
        model()
    np.testing.assert_array_equal(model.states["past.0"], before)
    assert model.states["position"].tolist() == [PLACES]


def test_instances_and_artifacts_have_states_of_their_own(tmp_path: Path) -> None:
    model = looping(decoder())
    model.export(tmp_path / "model.so")
    first = model().next_token.tolist()
    for other in (model.create_instance(), ts.load(tmp_path / "model.so")):
        assert not other.states["past.0"].any()
        assert other().next_token.tolist() == first


def test_inputs_may_differ_from_step_to_step() -> None:
    network = decoder()
    model = ts.compile(network, states={"past.0": "present.0"}, cpu_threads=1)
    tokens = np.arange(PLACES).reshape(-1, 1, 1)
    places = np.arange(PLACES).reshape(-1, 1)
    one_by_one = [model(token=t, position=p) for t, p in zip(tokens, places, strict=True)]
    model.reset()
    np.testing.assert_array_equal(model.run_steps(PLACES, tokens, places), np.stack(one_by_one))
    model.reset()
    same = model.run_steps(2, token=tokens[0], position=places[:2])
    model.reset()
    again = [model(token=tokens[0], position=place) for place in places[:2]]
    np.testing.assert_array_equal(same, np.stack(again))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"future.*": "present.*"}, r"one of the inputs .* for states, got 'future"),
        ({"past.*": "next.*"}, "one of the outputs .* for state 'past.0', got 'next.0'"),
        ({"past.0": "logits"}, r"float32\[1, 5, 16\].*the next state of 'past.0', got float32"),
        ({"past.0": ts.Counter()}, "an input of int32 or int64 for state 'past.0', got float32"),
        ({"token": ts.Greedy("present.9")}, "one of the outputs .* for state 'token'"),
        ({"past.*": "present.*", "past.0": "present.0"}, "one output for state 'past.0', got two"),
        ("past", "a dictionary for states, got 'past'"),
        ({"past.0": 3}, "an output's name, Greedy or Counter for state 'past.0', got 3"),
    ],
)
def test_states_that_do_not_fit(states: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ts.compile(decoder(), states=states)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            np.zeros((1, 6, 16), "float32"),
            r"expected float32\[1, 5, 16\].* got float32\[1, 6, 16\]",
        ),
        (np.zeros((0,), "float32"), r"got float32\[0\]"),
        (np.zeros((1, 5, 16), "float64"), r"got float64\[1, 5, 16\]"),
    ],
)
def test_a_cache_of_another_length(value: np.ndarray, message: str) -> None:
    model = ts.compile(decoder(), states={"past.*": "present.*"})
    before = model.states["past.0"]
    with pytest.raises(InputError, match=message):
        model.states["past.0"] = value
    np.testing.assert_array_equal(model.states["past.0"], before)


def test_a_loop_on_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States, inputs of each step and tokens, as on this machine, with one call for all steps."""
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    device = ts.connect(rpc.LocalSession(), "pixel")
    model = looping(decoder())
    there = device.load(model)
    for one in (model, there):
        one.states["token"] = np.array([[4]])
    tokens = [model.run_steps(PLACES).next_token, there.run_steps(PLACES).next_token]
    np.testing.assert_array_equal(*tokens)
    np.testing.assert_array_equal(there.states["past.0"], model.states["past.0"])
    fed = ts.compile(decoder(), states={"past.0": "present.0"}, cpu_threads=1)
    given = np.arange(PLACES).reshape(-1, 1, 1), np.arange(PLACES).reshape(-1, 1)
    np.testing.assert_array_equal(
        device.load(fed).run_steps(PLACES, *given), fed.run_steps(PLACES, *given)
    )


def test_bad_counts_and_names() -> None:
    model = looping(decoder())
    for count in (0, -1, True, 1.5, 2**63, 2**70):
        with pytest.raises(InputError, match=r"1 to 2\*\*63 - 1 for count"):
            model.run_steps(count)  # type: ignore[arg-type]
    for power in range(55, 63):  # the bytes of all steps are no number of 64 bits
        with pytest.raises(RunError, match=r"expected \d+ bytes of free memory"):
            model.run_steps(2**power)
    with pytest.raises(InputError, match=r"one of the states .* got 'past'"):
        model.states["past"]
    with pytest.raises(InputError, match=r"int64\[1, 1\] for input 'token'"):
        model.states["token"] = np.zeros((1, 2), "int64")
