"""Tokens that are guessed from the text so far: the same ones, in fewer runs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.small_decoder import PLACES, WORDS, decoder, recurrent, states

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError


@pytest.fixture(scope="module")
def guessing() -> ts.Model:
    """Gives scores of each token that a run reads."""
    own = states(ts.Sample("logits", "n", temperature=0.0))
    network = decoder(of_each=True)
    return ts.compile(network, ["llvm"], lengths={"n": [1, 4, 8]}, states=own, cpu_threads=1)


PROMPTS = [[1, 2, 3, 4, 5] * 3, [7, 7, 7, 7], [*range(12)], [5, 9, 5, 9, 5, 9, 2]]
SAMPLINGS = [{"temperature": 0.0}, {"temperature": 0.3, "seed": 5}, {"temperature": 1.5, "seed": 1}]


def plain(model: ts.Model, count: int) -> list[int]:
    """The tokens of runs without guesses."""
    return model.run_steps(count).next_tokens.ravel().tolist()


def same_states(one: ts.Model, other: ts.Model, read: int) -> bool:
    """Whether two models go on alike: caches count up to the position."""
    first, second = one.states, other.states
    near = np.allclose(first["past"][:read], second["past"][:read], atol=1e-5)
    return near and all((first[n] == second[n]).all() for n in ("tokens", "position"))


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_tokens_are_those_without_guesses(
    guessing: ts.Model, prompt: list[int], sampling: dict[str, float]
) -> None:
    model, other = guessing.create_instance(), guessing.create_instance()
    for one in (model, other):
        one.set_sampling(**sampling)
        one.feed(prompt)
    count = PLACES - len(prompt) - 5
    assert [*model.tokens(count)] == plain(other, count)
    assert same_states(model, other, len(prompt) + count)
    assert plain(model, 3) == plain(other, 3), "and they go on alike"


def test_a_text_that_repeats_takes_fewer_runs(guessing: ts.Model) -> None:
    """The greedy tokens of this decoder soon repeat."""
    most = 1
    for prompt in PROMPTS:
        model = guessing.create_instance()
        model.feed(prompt)
        left = PLACES - len(prompt) - 8
        while left > 0:
            chosen = len(model.module["guess"](left).numpy())
            most, left = max(most, chosen), left - chosen
    assert most > 2


@pytest.mark.parametrize("read", range(1, 24))
def test_who_reads_may_stop_anywhere(guessing: ts.Model, read: int) -> None:
    """What was chosen and not read is taken back, the random numbers, too."""
    model, other = guessing.create_instance(), guessing.create_instance()
    for one in (model, other):
        one.set_sampling(temperature=0.2, seed=read)
        one.feed(PROMPTS[0])
    tokens = model.tokens(40)
    told = [*itertools.islice(tokens, read)]
    tokens.close()
    assert told == plain(other, read)
    assert same_states(model, other, len(PROMPTS[0]) + read)
    assert [*model.tokens(9)] == plain(other, 9)


@pytest.mark.parametrize("stop", range(WORDS))
def test_a_stop_ends_the_text_where_it_is(guessing: ts.Model, stop: int) -> None:
    model, other = guessing.create_instance(), guessing.create_instance()
    for one in (model, other):
        one.feed(PROMPTS[3])
    got, want = [*model.tokens(30, stop=[stop])], other.run_steps(30, stop=[stop]).next_tokens
    assert got == want.ravel().tolist()
    assert same_states(model, other, len(PROMPTS[3]) + len(got))


def test_the_last_places_are_written_without_guesses(guessing: ts.Model) -> None:
    """Guesses have no room there; the cache itself is full as without them."""
    model, other = guessing.create_instance(), guessing.create_instance()
    for one in (model, other):
        one.feed(PROMPTS[0])
    room = PLACES - len(PROMPTS[0])
    assert [*model.tokens(room)] == plain(other, room)
    with pytest.raises(InputError, match="indices of take"):
        next(model.tokens(1))


def test_states_that_cannot_be_taken_back_have_no_guesses() -> None:
    """A hidden state has read all that a run read."""
    own = {"tokens": ts.Sample("logits", "n", temperature=0.0), "hidden": "next_hidden"}
    network = recurrent()
    model = ts.compile(network, ["llvm"], lengths={"n": [1, 4]}, states=own, cpu_threads=1)
    model.feed([1, 2, 1, 2, 1, 2])
    other = model.fork()
    assert all(len(model.module["guess"](9).numpy()) == 1 for _ in range(20))
    assert model.states["hidden"].shape == other.states["hidden"].shape


def test_greedy_states_have_no_guesses_and_the_same_tokens() -> None:
    own = states(ts.Greedy("logits", "n"))
    network = decoder(of_each=True)
    model = ts.compile(network, ["llvm"], lengths={"n": [1, 4]}, states=own, cpu_threads=1)
    model.feed(PROMPTS[1])
    other = model.fork()
    assert [*model.tokens(20)] == plain(other, 20)


def test_wrong_calls_are_refused(guessing: ts.Model) -> None:
    model = guessing.create_instance()
    model.feed(PROMPTS[0])
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(InputError):
            next(model.tokens(wrong))
    with pytest.raises(InputError, match="stop"):
        next(model.tokens(1, stop=["a"]))
    for wrong in (-1, 1, 2**62):
        with pytest.raises(ValueError, match="take_back"):
            model.module["take_back"](wrong)
    known = model.module["guess"](30).numpy()
    with pytest.raises(ValueError, match="take_back"):
        model.module["take_back"](len(known))
    model()
    with pytest.raises(ValueError, match="take_back"):
        model.module["take_back"](1)
