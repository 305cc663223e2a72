"""Caches that slide: the first tokens stay, the oldest others make room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.gguf_files import WORDS, write_model
from onnx import TensorProto, helper

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.read.gguf.decoder import SPARED
from tvm_stretch.read.onnx.operators.microsoft_attention import KEEP, SPARE

PLACES, KEPT, SPARED_HERE, HEADS, WIDTH = 13, 2, 3, 2, 8
LENGTHS = [1, 3]


def attention(window: int) -> onnx.ModelProto:
    """One attention; its rows of queries are keys and values, too."""
    ports = helper.make_tensor_value_info
    own = {"num_heads": HEADS, "kv_num_heads": HEADS, KEEP: KEPT, SPARE: SPARED_HERE}
    own |= {"local_window_size": window} if window else {}
    cache = [1, HEADS, PLACES, WIDTH]
    names = ("present.key", "present.value")
    given = ["x", "x", "x", "past.key", "past.value", "used", "total"]
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Add", ["position", "n"], ["next_position"]),
        helper.make_node("Sub", ["next_position", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["used"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", given, ["y", *names], domain="com.microsoft", **own
        ),
    ]
    inputs = [
        ports("x", TensorProto.FLOAT, [1, "n", HEADS * WIDTH]),
        ports("position", TensorProto.INT64, [1]),
        *(ports(f"past.{part}", TensorProto.FLOAT, cache) for part in ("key", "value")),
    ]
    outputs = [
        ports("y", TensorProto.FLOAT, [1, "n", HEADS * WIDTH]),
        ports("next_position", TensorProto.INT64, [1]),
        *(ports(name, TensorProto.FLOAT, cache) for name in names),
    ]
    constants = [
        onnx.numpy_helper.from_array(np.array([1]), "one"),
        onnx.numpy_helper.from_array(np.array([PLACES], "int32"), "total"),
    ]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_hand(x: np.ndarray, window: int) -> np.ndarray:
    """Every token sees the first ones, and the last ones before it."""
    heads = x.reshape(len(x), HEADS, WIDTH).astype("float64")
    ring = PLACES - KEPT - SPARED_HERE
    answers = []
    for own in range(len(x)):
        seen = [at for at in range(own + 1) if at < KEPT or at > own - ring]
        seen = [at for at in seen if not window or at > own - window]
        scores = np.einsum("hd,shd->hs", heads[own], heads[seen]) / WIDTH**0.5
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        answers.append(np.einsum("hs,shd->hd", shares, heads[seen]).ravel())
    return np.array(answers)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("pieces", [[1] * 42, [3] * 14, [1, 3, 3, 1, 1, 3] * 3 + [3] * 2])
def test_a_token_sees_the_first_ones_and_the_last_ones(window: int, pieces: list[int]) -> None:
    """However long the runs are, and beyond what the cache holds several times."""
    states: dict[str, object] = {"past.*": "present.*", "position": "next_position"}
    model = ts.compile(attention(window), lengths={"n": LENGTHS}, states=states, cpu_threads=1)
    x = np.random.default_rng(1).standard_normal((42, HEADS * WIDTH)).astype("float32")
    found, at = [], 0
    for rows in pieces:
        found.append(model(x[None, at : at + rows])[0])
        at += rows
    assert at == len(x)
    np.testing.assert_allclose(np.concatenate(found), by_hand(x, window), rtol=1e-4, atol=1e-5)


def test_longer_runs_are_refused() -> None:
    states: dict[str, object] = {"past.*": "present.*", "position": "next_position"}
    with pytest.raises(UnsupportedError, match="runs of at most 3 tokens, as it slides"):
        ts.compile(attention(0), lengths={"n": [1, SPARED_HERE + 1]}, states=states)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("sliding") / "small.gguf")


def speaking(language: ts.LanguageModel) -> ts.Model:
    states = {**language.states, "tokens": ts.Sample("logits", "n", temperature=0.0)}
    return ts.compile(language, lengths={"n": [1, 8]}, states=states, cpu_threads=1)


def test_a_conversation_goes_on_when_the_cache_is_full(small: Path) -> None:
    """As long as it fits, answers are those of a longer cache; guesses change nothing later."""
    places = 2 * SPARED + 12
    model = speaking(ts.read_gguf(small, places=places, keep=4, activations="float32"))
    longer = speaking(ts.read_gguf(small, places=400, activations="float32"))
    prompt = np.random.default_rng(2).integers(2, WORDS, places - SPARED)
    found, wanted = model.feed(prompt), longer.feed(prompt)
    np.testing.assert_allclose(found.logits, wanted.logits, rtol=2e-3, atol=2e-3)
    model.feed(np.tile(prompt[:20], 15))  # far beyond the cache; it repeats itself
    branch = model.fork()
    guessed = [*model.tokens(60)]
    assert branch.run_steps(60).next_tokens.ravel().tolist() == guessed
    assert model.states["position"].item() > 2 * places


@pytest.mark.parametrize("keep", [-1, 12, True, 1.5])
def test_what_cannot_be_kept(small: Path, keep: object) -> None:
    with pytest.raises(InputError, match="expected 0 to 11 tokens for keep"):
        ts.read_gguf(small, places=2 * SPARED + 12, keep=keep)  # type: ignore[arg-type]
