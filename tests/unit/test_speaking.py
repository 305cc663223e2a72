"""Loops of language models: prompts in pieces, draws from scores, ends, forks, saved states."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.rpc_processes import Phone, Tracker
from helpers.small_decoder import PLACES, WIDTH, WORDS, decoder, states
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.run.autoload import find_file
from tvm_stretch.targets.opencl.opencl import local_device


@pytest.fixture(scope="module")
def speaker() -> ts.Model:
    """Draws, or takes the best where the temperature is 0."""
    own = states(ts.Sample("logits", "n", temperature=0.0))
    return ts.compile(decoder(), ["llvm"], lengths={"n": [1, 3, 8]}, states=own, cpu_threads=1)


@pytest.fixture
def model(speaker: ts.Model) -> ts.Model:
    return speaker.create_instance()


def by_hand(prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by ONNX Runtime, token by token."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(decoder().SerializeToString())
    past, tokens = np.zeros((PLACES, WIDTH), "float32"), [*prompt]
    for place in range(len(prompt) + count - 1):
        given = {"tokens": np.array([[tokens[place]]]), "position": np.array([place])}
        logits, past = session.run(None, {**given, "past": past})
        if place >= len(prompt) - 1:
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]


@pytest.mark.parametrize("length", [1, 2, 8, 13])
def test_a_prompt_of_any_length_goes_in_by_pieces(model: ts.Model, length: int) -> None:
    assert [info.name for info in model.inputs] == []
    assert [info.name for info in model.outputs] == ["logits", "next_tokens"]
    first = model.feed(PROMPT[:length]).next_tokens
    assert model.states["position"].tolist() == [length]
    assert model.in_use == "n=1"
    rest = model.run_steps(9).next_tokens.ravel().tolist()
    assert [first.item(), *rest] == by_hand(PROMPT[:length], 10)
    model.reset()
    assert model.states["position"].tolist() == [0]
    assert model.states["tokens"].shape == (1, 1)


def test_a_greedy_input_may_have_a_length() -> None:
    own = states(ts.Greedy("logits", "n"))
    model = ts.compile(decoder(), ["llvm"], lengths={"n": [1, 4]}, states=own, cpu_threads=1)
    first = model.feed(np.array(PROMPT)).next_tokens.item()
    assert [first, *(out.next_tokens.item() for out in model.steps(5))] == by_hand(PROMPT, 6)
    with pytest.raises(InputError, match="a model with a Sample"):
        model.set_sampling(temperature=1.0)


def test_pieces_may_be_set_as_a_state(model: ts.Model) -> None:
    expected = model.feed(PROMPT[:3]).logits
    model.reset()
    model.states["tokens"] = np.array([PROMPT[:3]])
    assert model.in_use == "n=3"
    np.testing.assert_array_equal(model().logits, expected)
    model.use("n=8")  # there is one token, so the length that reads one is taken
    model()
    assert model.states["position"].tolist() == [4]


def test_tokens_that_end_a_text_end_a_loop(model: ts.Model) -> None:
    expected = by_hand(PROMPT, 12)
    model.feed(PROMPT)
    after = model.fork()
    end = expected[6]
    count = expected[1:].index(end) + 1
    found = model.run_steps(11, stop=[end, 1000])
    assert found.next_tokens.ravel().tolist() == expected[1 : 1 + count]
    assert found.logits.shape == (count, 1, 1, WORDS)
    yielded = [out.next_tokens.item() for out in after.steps(11, stop=[end])]
    assert yielded == expected[1 : 1 + count]
    for wrong in (["2"], 2, [1.5]):
        with pytest.raises(InputError, match="a list of integers for stop"):
            model.run_steps(2, stop=wrong)
    with pytest.raises(ValueError, match="expected integers like"):
        model._run_steps(1, [], model.graph, "2,x")


@pytest.mark.full
@pytest.mark.skipif(local_device() is None, reason="needs an OpenCL device")
def test_tokens_of_two_processors_are_the_same() -> None:
    own = states(ts.Sample("logits", "n", temperature=0.0))
    lengths = {"n": [1, 8]}
    model = ts.compile(decoder(), ["opencl"], lengths=lengths, states=own, cpu_threads=1)
    first = model.feed(PROMPT).next_tokens.item()
    for one in (model.fork(), model):
        assert [first, *one.run_steps(9).next_tokens.ravel().tolist()] == by_hand(PROMPT, 10)


def test_forks_go_on_from_a_prefix(model: ts.Model) -> None:
    model.feed(PROMPT[:8])
    forks = [model.fork() for _ in range(2)]
    for fork, more in zip(forks, ([7, 2], [2, 7, 7]), strict=True):
        first = fork.feed(more).next_tokens.item()
        rest = fork.run_steps(4).next_tokens.ravel().tolist()
        assert [first, *rest] == by_hand([*PROMPT[:8], *more], 5)
    assert model.states["position"].tolist() == [8]


def test_states_are_saved_and_loaded(model: ts.Model, tmp_path: Path) -> None:
    model.feed(PROMPT)
    model.states.save(tmp_path / "prefix.npz")
    expected = model.run_steps(6).next_tokens.tolist()
    other = model.create_instance()
    other.states.load(tmp_path / "prefix.npz")
    assert other.run_steps(6).next_tokens.tolist() == expected
    (tmp_path / "bad.npz").write_bytes((tmp_path / "prefix.npz").read_bytes()[:-300])
    np.savez(tmp_path / "less.npz", position=np.array([1]))
    for name in ("bad.npz", "less.npz", "none.npz"):
        with pytest.raises(InputError, match="expected states"):
            other.states.load(tmp_path / name)


def test_seeds_decide_what_is_drawn(model: ts.Model) -> None:
    def text(seed: int) -> list[int]:
        model.reset()
        model.set_sampling(temperature=3.0, seed=seed)
        return [model.feed(PROMPT).next_tokens.item(), *model.run_steps(20).next_tokens.ravel()]

    one = text(1)
    assert one == text(1)
    assert one != text(2)
    model.reset()  # begins with the seed again
    again = model.feed(PROMPT).next_tokens.item()
    assert again == text(2)[0]
    model.set_sampling(temperature=0)
    model.reset()
    model.feed(PROMPT)
    assert model.run_steps(4).next_tokens.ravel().tolist() == by_hand(PROMPT, 5)[1:]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"temperature": "1"}, {"top_p": 1.5}, {"top_k": 0.5}, {"seed": True}],
)
def test_numbers_that_no_distribution_has_are_refused(model: ts.Model, wrong: dict) -> None:
    with pytest.raises(InputError, match=f"for {next(iter(wrong))}, got"):
        model.set_sampling(**wrong)
    with pytest.raises(InputError, match=f"for {next(iter(wrong))}, got"):
        ts.Sample("logits", **wrong)
    with pytest.raises(InputError, match="for set_sampling, got"):
        model.set_sampling(top_q=1)


def test_what_cannot_be_fed_is_refused(model: ts.Model) -> None:
    for wrong in ([], [1.5], "text"):
        with pytest.raises(InputError, match="expected indices"):
            model.feed(wrong)
    model.feed(PROMPT[:3])
    with pytest.raises(InputError, match=f"got {WORDS}"):
        model.feed([2, WORDS])
    model.feed([2])  # the piece before the wrong one stays
    assert model.states["position"].tolist() == [5]
    own = states(ts.Greedy("logits", "n"))
    with pytest.raises(InputError, match="a length that reads"):
        ts.compile(decoder(), ["llvm"], lengths={"n": [2, 4]}, states=own, cpu_threads=1)
    with pytest.raises(InputError, match="a list of sizes for the length 'n'"):
        ts.compile(decoder(), ["llvm"], lengths={"n": ts.Length(1, 4)}, states=own, cpu_threads=1)
    with pytest.raises(InputError, match="one of the lengths"):
        own = states(ts.Greedy("logits", "m"))
        ts.compile(decoder(), ["llvm"], lengths={"n": [1, 4]}, states=own, cpu_threads=1)


Generate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)


def test_apps_generate_with_a_callback(speaker: ts.Model, tmp_path: Path) -> None:
    speaker.export(tmp_path / "speaker.so")
    library = ctypes.CDLL(str(find_file("lib/libtvm_stretch_runtime.so")))
    library.tvm_stretch_last_error.restype = ctypes.c_char_p
    numbers = [ctypes.c_double, ctypes.c_int64, ctypes.c_double, ctypes.c_double, ctypes.c_int64]
    library.tvm_stretch_set_sampling.argtypes = [ctypes.c_void_p, *numbers]
    library.tvm_stretch_generate.argtypes = [
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t),
        *(Generate, ctypes.c_void_p),
    ]
    opened, forked = ctypes.c_void_p(), ctypes.c_void_p()
    assert not library.tvm_stretch_load(bytes(tmp_path / "speaker.so"), ctypes.byref(opened))

    def generated(model: ctypes.c_void_p, prompt: list[int], most: int, stop: int = -1) -> list:
        found: list[int] = []
        given = (ctypes.c_int64 * len(prompt))(*prompt)
        heard = Generate(lambda _, token: found.append(token) or token == stop)
        status = library.tvm_stretch_generate(model, given, len(prompt), most, heard, None)
        return found if not status else [status, library.tvm_stretch_last_error().decode()]

    expected = by_hand(PROMPT, 10)
    assert generated(opened, PROMPT, 4) == expected[:4]
    assert not library.tvm_stretch_fork(opened, ctypes.byref(forked))
    for one in (opened, forked):
        stop = expected[7]
        count = 4 + expected[4:].index(stop) + 1
        assert generated(one, [], 6, stop) == expected[4:count]
    status, error = generated(opened, [WORDS], 1)
    assert status == 3 and f"got {WORDS}" in error
    assert library.tvm_stretch_set_sampling(opened, -1.0, 0, 1.0, 0.0, 0) == 1
    assert library.tvm_stretch_set_sampling(opened, 3.0, 0, 1.0, 0.0, 5) == 0
    library.tvm_stretch_reset(opened)
    speaker = speaker.create_instance()
    speaker.set_sampling(temperature=3.0, seed=5)
    drawn = [speaker.feed(PROMPT).next_tokens.item(), *speaker.run_steps(7).next_tokens.ravel()]
    assert generated(opened, PROMPT, 8) == drawn
    for one in (opened, forked):
        library.tvm_stretch_free(one)


def scores_model(width: int) -> ts.Model:
    """Scores are an input, so that tests decide from what is drawn."""
    node = helper.make_node
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            node("Cast", ["token"], ["x"], to=TensorProto.FLOAT),
            node("Mul", ["x", "nought"], ["none"]),
            node("Add", ["scores", "none"], ["logits"]),
        ],
        "scores",
        [
            info("token", TensorProto.INT64, [1, 1]),
            info("scores", TensorProto.FLOAT, [1, width]),
        ],
        [info("logits", TensorProto.FLOAT, [1, width])],
        [numpy_helper.from_array(np.float32(0), "nought")],
    )
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return ts.compile(network, ["llvm"], states={"token": ts.Sample("logits")}, cpu_threads=1)


@pytest.fixture(scope="module")
def scored() -> ts.Model:
    return scores_model(40)


def distribution(
    scores: np.ndarray, temperature: float = 1, top_k: int = 0, top_p: float = 1, min_p: float = 0
) -> np.ndarray:
    """The probabilities, by definition."""
    x = scores.astype("float64") / temperature
    p = np.exp(x - x.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
        p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= top_p]] = 0
    p[p < min_p * p.max()] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 5},
        {"top_p": 0.7},
        {"top_k": 12, "top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.1},
    ],
)
def test_draws_follow_the_distribution(scored: ts.Model, sampling: dict) -> None:
    """Chi-square of 20,000 draws; with a fixed seed the test gives the same result each time."""
    rng = np.random.default_rng(7)
    scores = rng.standard_normal((1, 40)).astype("float32") * 2
    scored.set_sampling(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **sampling})
    count = 20_000
    drawn = scored.run_steps(count, scores).next_token.ravel()
    expected = distribution(scores[0], **sampling) * count
    found = np.bincount(drawn, minlength=40)
    assert not found[expected == 0].any()
    often = expected >= 5
    chi = ((found[often] - expected[often]) ** 2 / expected[often]).sum()
    freedom = often.sum() - 1
    assert chi < freedom + 4 * np.sqrt(2 * freedom) + 4, (chi, freedom)


def test_hostile_scores_have_an_answer(scored: ts.Model) -> None:
    scored.set_sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)
    nan, inf = float("nan"), float("inf")

    def drawn(scores: np.ndarray, **sampling: float) -> set[int]:
        scored.set_sampling(**{"top_k": 0, "top_p": 1.0, **sampling})
        given = scores.astype("float32").reshape(1, 40)
        return set(scored.run_steps(300, given).next_token.ravel().tolist())

    equal = np.zeros(40)
    assert len(drawn(equal)) > 30
    assert drawn(equal, top_k=3) == {0, 1, 2}
    assert drawn(equal, top_p=0.0) == {0}
    some = np.where(np.arange(40) == 7, nan, np.arange(40) / 40)
    assert 7 not in drawn(some) and 7 not in drawn(some, top_p=0.9)
    assert drawn(np.where(np.arange(40) < 2, inf, 5.0)) == {0, 1}
    assert drawn(np.where(np.arange(40) == 9, 0.0, -inf)) == {9}
    for nothing in (np.full(40, nan), np.full(40, -inf)):  # what Greedy says
        assert len(drawn(nothing)) == 1


def test_ctrl_c_is_answered_between_steps(scored: ts.Model) -> None:
    scores = np.zeros((1, 40), "float32")
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100):
            scored.run_steps(1_000_000, scores)
            assert time.perf_counter() - begin < 60
    timer.join()
    assert scored.run_steps(2, scores).next_token.shape == (2, 1, 1)


def test_a_phone_reads_prompts_and_writes_tokens(speaker: ts.Model) -> None:
    """The server is another process, whose memory only calls reach."""
    pytest.importorskip("tornado")
    with contextlib.ExitStack() as stack:
        tracker = Tracker()
        stack.callback(tracker.kill)
        stack.callback(Phone("--tracker", tracker.address).kill)
        with ts.connect(tracker.address, "pixel", timeout=60, wait=10.0) as device:
            there = device.load(speaker)
            here = speaker.create_instance()
            for one in (here, there):
                found = one.feed(np.array(PROMPT))
                assert found.next_tokens.shape == (1, 1) and found.logits.shape == (1, 1, WORDS)
            assert [*there.tokens(9)] == [*here.tokens(9)] == by_hand(PROMPT, 10)[1:]
            np.testing.assert_array_equal(there.states["past"], here.states["past"])
            branch = there.fork()
            assert branch.run_steps(2).next_tokens.ravel().tolist() == [*here.tokens(2)]
            there.reset()
            with pytest.raises(InputError, match=r"expected indices for feed"):
                there.feed([0.5])
            assert there.feed(PROMPT[:2]).next_tokens.item() == by_hand(PROMPT[:2], 1)[0]
