"""Caches that grow: a run appends rows, and nothing is copied where the CPU alone reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.small_models import copied
from onnx import TensorProto, helper

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError

HEADS, PLACES, WIDTH = 3, 5, 32


def cache(rows: int = 1, width: int = WIDTH, first: str = "past") -> onnx.ModelProto:
    """Several heads keep rows, and answer with weighted sums of all of them.

    The new row is divided by `by`, which must not be zero.
    """
    parts = ["past", "row"] if first == "past" else ["row", "past"]
    nodes = [
        helper.make_node("Div", ["new", "by"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["row"], to=TensorProto.FLOAT),
        helper.make_node("Concat", parts, ["present"], axis=2),
        helper.make_node("Mul", ["present", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axes"], ["y"], keepdims=0),
    ]
    new, kept = [1, HEADS, rows, width], [1, HEADS, PLACES, width]
    grown = [1, HEADS, PLACES + rows, width]
    inputs = [
        helper.make_tensor_value_info("past", TensorProto.FLOAT, kept),
        helper.make_tensor_value_info("new", TensorProto.INT32, new),
        helper.make_tensor_value_info("by", TensorProto.INT32, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, HEADS, width]),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, grown),
    ]
    weights = np.arange(1, PLACES + rows + 1, dtype="float32").reshape(1, 1, -1, 1)
    constants = [
        onnx.numpy_helper.from_array(weights, "weights"),
        onnx.numpy_helper.from_array(np.array([2]), "axes"),
    ]
    graph = helper.make_graph(nodes, "cache", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def compiled(network: onnx.ModelProto, targets: tuple[str, ...] = ("llvm",)) -> ts.Model:
    return ts.compile(network, targets, states={"past": "present"}, cpu_threads=1)


def follow(model: ts.Model, steps: int, rows: int = 1, width: int = WIDTH) -> np.ndarray:
    """Runs the model beside NumPy; returns the state."""
    rng = np.random.default_rng(steps)
    past = np.asarray(model.states["past"])
    weights = np.arange(1, PLACES + rows + 1, dtype="float32").reshape(1, 1, -1, 1)
    for _ in range(steps):
        new = rng.integers(-9, 9, (1, HEADS, rows, width)).astype("int32")
        grown = np.concatenate([past, new.astype("float32")], axis=2)
        np.testing.assert_array_equal(model(new, np.array([1], "int32")), (grown * weights).sum(2))
        past = grown[:, :, rows:]
        np.testing.assert_array_equal(model.states["past"], past)
    return past


@pytest.mark.parametrize("rows", [1, 2])
def test_the_window_moves_and_comes_back(rows: int, tmp_path: Path) -> None:
    """The memory has room for as many steps as a state has rows; later it begins in front again."""
    model = compiled(cache(rows))
    (state,) = model.graph.states
    assert (state.axis, state.grown, state.slide) == (2, rows, rows * WIDTH * 4)
    assert copied(model) <= HEADS * rows * WIDTH * 4  # the new rows
    follow(model, 4 * HEADS * (PLACES + rows) // rows, rows)
    model.export(tmp_path / "model.so")
    other = ts.load(tmp_path / "model.so")
    follow(other, 3, rows)
    follow(model.create_instance(), 3, rows)
    before = np.asarray(model.states["past"])
    model.states["past"] = before + 1
    np.testing.assert_array_equal(model.states["past"], before + 1)
    follow(model, 3, rows)
    model.reset()
    assert not model.states["past"].any()
    follow(model, 3, rows)


def test_runs_that_fail_or_only_measure_keep_the_rows() -> None:
    model = compiled(cache())
    before = follow(model, PLACES)
    new = np.ones((1, HEADS, 1, WIDTH), "int32")
    with pytest.raises(InputError, match="zero"):
        model(new, np.zeros(1, "int32"))
    np.testing.assert_array_equal(model.states["past"], before)
    model.benchmark(2)
    model.profile(1)
    np.testing.assert_array_equal(model.states["past"], before)
    follow(model, PLACES)


def test_loops_slide_too() -> None:
    model, count = compiled(cache()), 50
    new = np.random.default_rng(0).integers(-9, 9, (count, 1, HEADS, 1, WIDTH)).astype("int32")
    found = model.run_steps(count, new, np.array([1], "int32"))
    rows = np.concatenate([np.zeros((1, HEADS, PLACES, WIDTH)), *new], axis=2)
    weights = np.arange(1, PLACES + 2).reshape(1, 1, -1, 1)
    for step in range(count):
        window = rows[:, :, step : step + PLACES + 1]
        np.testing.assert_array_equal(found[step], (window * weights).sum(2))


@pytest.mark.parametrize(
    ("network", "targets"),
    [
        (cache(width=5), ("llvm",)),  # kernels do not read rows of 20 bytes where they lie
        (cache(first="row"), ("llvm",)),  # the last places are not those after the old rows
        # drivers know a tensor by its address
        pytest.param(cache(), ("opencl",), marks=pytest.mark.full),
    ],
)
def test_what_cannot_slide_is_copied(network: onnx.ModelProto, targets: tuple[str, ...]) -> None:
    width = network.graph.input[0].type.tensor_type.shape.dim[3].dim_value
    model = compiled(network, targets)
    assert [state.slide for state in model.graph.states] == [0]
    if network.graph.node[2].input[0] == "past":
        follow(model, 3, width=width)
    else:
        new = np.ones((1, HEADS, 1, width), "int32")
        for _ in range(3):  # the row in front is not among the last places
            model(new, np.array([1], "int32"))
            assert not model.states["past"].any()


@pytest.mark.full
def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    """A step that torch exports of transformers' own cache; empty places are masked."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnxscript")
    layers, places, count = 2, 72, 64
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
    llama = transformers.LlamaForCausalLM(config).eval()

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        """One token."""

        def __init__(self) -> None:
            super().__init__()
            self.llama = llama

        def forward(self, token: Any, position: Any, mask: Any, *past: Any) -> Any:
            """Scores, and the caches."""
            cache = transformers.DynamicCache()
            for layer in range(layers):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            scores = self.llama(
                token, attention_mask=mask, position_ids=position, past_key_values=cache
            ).logits
            return (scores, *(part for own in cache.layers for part in (own.keys, own.values)))

    past = [torch.zeros(1, 2, places, 16) for _ in range(2 * layers)]
    inputs = (torch.tensor([[1]]), torch.tensor([[0]]), torch.zeros(1, 1, 1, places + 1), *past)
    path = tmp_path / "step.onnx"
    torch.onnx.export(
        Step().eval(),
        inputs,
        str(path),
        input_names=["token", "position", "mask", *(f"past.{i}" for i in range(2 * layers))],
        output_names=["logits", *(f"present.{i}" for i in range(2 * layers))],
        dynamo=True,
        verbose=False,
    )
    own: dict[str, Any] = {"token": ts.Greedy("logits"), "position": ts.Counter()}
    model = ts.compile(path, states={"past.*": "present.*", **own}, cpu_threads=1)
    assert [state.slide for state in model.graph.states if state.grown] == 4 * [64]
    masks = np.full((count, 1, 1, 1, places + 1), -1e9, "float32")
    for step in range(count):
        masks[step, ..., places - step :] = 0
    model.states["token"] = np.array([[5]])
    found = model.run_steps(count, masks).next_token.ravel().tolist()
    wanted = llama.generate(
        torch.tensor([[5]]), max_new_tokens=count, do_sample=False, eos_token_id=None
    )
    assert found == wanted[0, 1:].tolist()
