"""Guesses of a smaller model: answers are those of the model alone, whatever the draft writes."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.small_decoder import PLACES, WORDS, decoder, states
from onnx import numpy_helper

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError
from tvm_stretch.run import drafting
from tvm_stretch.run.drafting import Drafting


def like(noise: float) -> onnx.ModelProto:
    """The decoder with another head: it writes the same, mostly or never."""
    network = decoder(of_each=True)
    head = next(one for one in network.graph.initializer if one.name == "head")
    value = numpy_helper.to_array(head)
    changed = value + noise * np.random.default_rng(1).standard_normal(value.shape)
    head.CopyFrom(numpy_helper.from_array(changed.astype("float32"), "head"))
    return network


def compiled(network: onnx.ModelProto) -> ts.Model:
    own = states(ts.Sample("logits", "n", temperature=0.0))
    return ts.compile(network, ["llvm"], lengths={"n": [1, 8]}, states=own, cpu_threads=1)


@pytest.fixture(scope="module")
def speaker() -> ts.Model:
    return compiled(decoder(of_each=True))


@pytest.fixture(scope="module")
def drafts() -> dict[float, ts.Model]:
    return {noise: compiled(like(noise)) for noise in (0.0, 0.7, 9.0)}


@pytest.fixture(autouse=True)
def never_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models gain nothing, so the race would end every draft."""
    monkeypatch.setattr(Drafting, "_is_slower", lambda self: False)


def begun(model: ts.Model, prompt: list[int], **sampling: float) -> ts.Model:
    one = model.create_instance()
    one.set_sampling(**sampling)
    one.feed(prompt)
    return one


@pytest.mark.parametrize("count", [20, pytest.param(1_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("noise", [0.0, 0.7, 9.0])
def test_answers_are_those_of_the_model_alone(
    speaker: ts.Model, drafts: dict[float, ts.Model], noise: float, temperature: float, count: int
) -> None:
    """Also where a reader stops within a batch, and the text goes on with or without the draft."""
    rng = np.random.default_rng(0)
    for seed in range(count):
        prompt = rng.integers(0, WORDS, rng.integers(1, 9)).tolist()
        sampling: dict[str, Any] = {"temperature": temperature, "seed": seed}
        wanted = begun(speaker, prompt, **sampling).run_steps(36).next_tokens.ravel().tolist()
        model, draft = begun(speaker, prompt, **sampling), begun(drafts[noise], prompt)
        cut = int(rng.integers(1, 20))
        first = [*itertools.islice(model.tokens(30, draft=draft), cut)]
        again = [*model.tokens(int(rng.integers(1, 8)), draft=draft)]
        told = first + again
        assert told == wanted[: len(told)]
        assert draft.states["position"] == model.states["position"]
        assert draft.states["tokens"] == model.states["tokens"]
        read = int(model.states["position"].item())
        np.testing.assert_array_equal(draft.states["past"][:read], model.states["past"][:read])
        rest = [*model.tokens(36 - len(told))]
        assert told + rest == wanted


def test_right_drafts_save_runs(
    speaker: ts.Model, drafts: dict[float, ts.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    choose = Drafting._choose

    def counted(self: Drafting, most: int, guesses: list[int]) -> list[int]:
        calls.append(len(guesses))
        return choose(self, most, guesses)

    monkeypatch.setattr(Drafting, "_choose", counted)
    runs = []
    for noise in (0.0, 9.0):
        calls.clear()
        model, draft = begun(speaker, [3, 1, 4]), begun(drafts[noise], [3, 1, 4])
        assert len([*model.tokens(32, draft=draft)]) == 32
        runs.append(len(calls))
    assert runs[0] <= drafting._PLAIN_RUNS + 6 and runs[1] > 2 * runs[0]


def test_a_stop_ends_it(speaker: ts.Model, drafts: dict[float, ts.Model]) -> None:
    wanted = begun(speaker, [5]).run_steps(30).next_tokens.ravel().tolist()
    stop = wanted[17]
    model, draft = begun(speaker, [5]), begun(drafts[0.0], [5])
    assert [*model.tokens(30, stop=[stop], draft=draft)] == wanted[: wanted.index(stop) + 1]


def test_a_full_cache_of_the_draft(speaker: ts.Model, drafts: dict[float, ts.Model]) -> None:
    """The draft runs ahead, so its cache is full first; the model writes to its own last place."""
    prompt = [3, 1, 4, 1]
    wanted = begun(speaker, prompt).run_steps(PLACES - 4).next_tokens.ravel().tolist()
    model, draft = begun(speaker, prompt), begun(drafts[0.0], prompt)
    assert [*model.tokens(PLACES - 4, draft=draft)] == wanted
    assert model.states["position"].item() == PLACES


def test_a_run_that_fails(
    speaker: ts.Model, drafts: dict[float, ts.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both models are where they were before it, and go on."""
    wanted = begun(speaker, [3, 1]).run_steps(30).next_tokens.ravel().tolist()
    choose, calls = Drafting._choose, itertools.count()

    def failing(self: Drafting, most: int, guesses: list[int]) -> list[int]:
        if next(calls) == 5:
            raise ts.DeviceError("expected a device, got none; connect it")
        return choose(self, most, guesses)

    monkeypatch.setattr(Drafting, "_choose", failing)
    model, draft = begun(speaker, [3, 1]), begun(drafts[0.0], [3, 1])
    told: list[int] = []
    with pytest.raises(ts.DeviceError):
        told.extend(model.tokens(30, draft=draft))
    assert 3 < len(told) < 30
    assert draft.states["position"] == model.states["position"]
    assert [*told, *model.tokens(30 - len(told), draft=draft)] == wanted


def test_a_slow_draft_ends(
    speaker: ts.Model, drafts: dict[float, ts.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    written: list[int] = []
    write = Drafting._write

    def slow(self: Drafting) -> list[int]:
        written.append(1)
        time.sleep(0.02)
        return write(self)

    monkeypatch.setattr(Drafting, "_write", slow)
    wanted = begun(speaker, [7]).run_steps(50).next_tokens.ravel().tolist()
    model, draft = begun(speaker, [7]), begun(drafts[9.0], [7])
    assert [*model.tokens(50, draft=draft)] == wanted
    assert len(written) <= 2 * (drafting._ROUNDS + 1)
    assert draft.states["position"] == model.states["position"]


def test_drafts_that_do_not_fit(speaker: ts.Model) -> None:
    one = begun(speaker, [1])
    own = states(ts.Sample("logits", "n", temperature=0.0))
    alone = ts.compile(decoder(), ["llvm"], lengths={"n": [1]}, states=own, cpu_threads=1)
    with pytest.raises(InputError, match="scores each of several values for a draft"):
        alone.tokens(3, draft=one)
    greedy = states(ts.Greedy("logits", "n"))
    other = ts.compile(decoder(), ["llvm"], lengths={"n": [1]}, states=greedy, cpu_threads=1)
    with pytest.raises(InputError, match="expected a draft that scores the 24 values"):
        one.tokens(3, draft=other)
    plain = ts.compile(decoder(), ["llvm"], lengths={"n": [1]}, cpu_threads=1)
    with pytest.raises(InputError, match="expected a state that Greedy or Sample chooses"):
        one.tokens(3, draft=plain)
