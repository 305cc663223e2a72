"""Do no harm: who wins, on scripted latencies."""

from __future__ import annotations

import itertools
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.fake_targets import TARGET
from helpers.relax_helpers import module
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.progress import reporting
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.plan.search import contest
from tvm_stretch.plan.search.contest import (
    MeasureError,
    Outcome,
    compare,
    is_lasting,
    trace,
    winner,
)
from tvm_stretch.run.measures_of_model import MetersOfModel


class Clock:
    """Time that only passes while a scripted model runs."""

    def __init__(self) -> None:
        self.now = 0.0


class Scripted:
    """A model whose runs take what a script says."""

    def __init__(self, clock: Clock, latencies: Iterator[float]) -> None:
        self.clock = clock
        self.latencies = latencies

    def timed_run(self) -> Callable[[], float]:
        def run() -> float:
            took = next(self.latencies)
            self.clock.now += took
            return took

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(contest, "_PATIENCE", 4)  # conftest.py has less
    return Clock()


def always(seconds: float) -> Iterator[float]:
    return itertools.repeat(seconds)


def noisy(seconds: float, seed: int, spread: float = 0.05) -> Iterator[float]:
    dice = random.Random(seed)
    while True:
        yield seconds * dice.lognormvariate(0, spread)


def test_ctrl_c_between_two_models(clock: Clock) -> None:
    """Large models run for seconds, and dozens of times."""

    def pressed() -> Iterator[float]:
        signal.raise_signal(signal.SIGINT)
        yield 1.0

    with pytest.raises(KeyboardInterrupt), reporting(print):
        compare([Scripted(clock, pressed()), Scripted(clock, always(1.0))])
    assert clock.now == 1.0


def test_ctrl_c_between_two_traced_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def pressed() -> str:
        runs.append("one")
        signal.raise_signal(signal.SIGINT)
        return "{}"

    nothing = Graph((), (), (), (), (), (), (), 0, 0, 0).to_json()
    model = ts.Model({"trace": pressed, "graph": lambda: nothing})
    monkeypatch.setattr(MetersOfModel, "random_run", lambda _: lambda: None)
    with pytest.raises(KeyboardInterrupt), reporting(print):
        trace(model, 5)
    assert runs == ["one"]


def test_the_faster_one_wins(clock: Clock) -> None:
    outcomes = compare([Scripted(clock, always(s)) for s in (2.0, 3.0, 1.0)])
    assert winner(outcomes) == 2
    assert outcomes[0] == Outcome(2.0, 1.0, 1.0, 1.0)
    assert outcomes[1].ratio == pytest.approx(1.5) and outcomes[2].seconds == pytest.approx(1.0)


def test_of_several_that_win_the_fastest_ships(clock: Clock) -> None:
    outcomes = compare([Scripted(clock, always(s)) for s in (4.0, 2.0, 1.0, 3.0)])
    assert winner(outcomes) == 2


def test_a_tie_keeps_the_first(clock: Clock) -> None:
    assert winner(compare([Scripted(clock, always(1.0)) for _ in range(3)])) == 0


def test_one_model_is_its_own_winner(clock: Clock) -> None:
    assert winner(compare([Scripted(clock, always(1.0))])) == 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_win(clock: Clock, seed: int) -> None:
    """Equal models whose runs vary by a twentieth: the first stays, but for a rare accident."""
    models = [Scripted(clock, noisy(1.0, 2 * seed + i)) for i in range(2)]
    outcome = compare(models)[1]
    assert winner(compare(models)) == 0 or outcome.high > 0.97


def test_a_clear_gain_wins_through_noise(clock: Clock) -> None:
    models = [Scripted(clock, noisy(1.0, 1)), Scripted(clock, noisy(0.8, 2))]
    outcomes = compare(models)
    assert winner(outcomes) == 1
    assert outcomes[1].low <= outcomes[1].ratio <= outcomes[1].high < 1


def test_a_disturbed_machine_gets_more_rounds(clock: Clock) -> None:
    """Noise of two thirds hides a gain of a third from fifteen rounds, but not for long."""
    wins = 0
    for seed in range(40):
        models = [Scripted(clock, noisy(s, 2 * seed + i, 0.67)) for i, s in enumerate((1.0, 0.67))]
        wins += winner(compare(models))
    assert wins >= 25  # 12 of 40 without more rounds


def test_rounds_are_counted_aloud(clock: Clock) -> None:
    lines: list[str] = []
    with reporting(lines.append):
        compare([Scripted(clock, always(2)), Scripted(clock, always(1))])
    assert lines[0] == "round 1 of 60" and lines[-1] == f"round {len(lines)} of 60"


def test_what_is_clear_takes_few_rounds(clock: Clock) -> None:
    """Wins and losses in every round; what wins by little is looked at longer."""

    def rounds(*seconds: float) -> int:
        clock.now = 0.0
        outcomes = compare([Scripted(clock, noisy(s, i, 0.01)) for i, s in enumerate(seconds)])
        assert is_lasting(outcomes)
        return round((clock.now / sum(seconds) - 3) / 2)

    assert rounds(1.0, 0.8, 1.3) == 6
    assert rounds(1.0, 0.8, 0.97) == 15


@pytest.mark.parametrize(
    ("ratio", "low", "high", "lasts"),
    [(0.96, 0.9, 1.02, True), (0.9, 0.85, 1.02, False), (1.4, 1.1, 1.7, False)],
    ids=["worth nothing", "perhaps luck", "disturbed"],
)
def test_what_may_end_otherwise_next_time(
    ratio: float, low: float, high: float, lasts: bool
) -> None:
    assert is_lasting([Outcome(1, 1, 1, 1), Outcome(ratio, ratio, low, high)]) is lasts


def test_a_machine_that_slows_down_slows_both(clock: Clock) -> None:
    """The second is faster in each round, although its last runs are slower than the first's."""
    slowing = [1.0 + 0.2 * (number // 2) for number in range(60)]
    models = [Scripted(clock, iter([s * k for s in slowing])) for k in (1.0, 0.9)]
    outcomes = compare(models)
    assert outcomes[1].high < 1 and winner(outcomes) == 1


def test_a_single_outlier_changes_nothing(clock: Clock) -> None:
    spiked = itertools.chain([0.5] * 10, [50.0], always(0.5))
    assert winner(compare([Scripted(clock, always(1.0)), Scripted(clock, spiked)])) == 1


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=40))
def test_the_interval_holds_the_median(latencies: list[float]) -> None:
    outcome = contest._outcome(latencies, [1.0] * len(latencies))
    assert min(latencies) <= outcome.low <= outcome.ratio <= outcome.high <= max(latencies)


def test_a_model_that_fails_is_an_error_of_its_own(clock: Clock) -> None:
    class Lost:
        def timed_run(self) -> Callable[[], float]:
            raise RuntimeError("a trace\nthe device is lost")

        timeline = timed_run

    with pytest.raises(MeasureError, match=r"^the device is lost$"):
        compare([Scripted(clock, always(1.0)), Lost()])
    with pytest.raises(MeasureError, match="the device is lost"):
        trace(Lost(), 1)


def test_a_reason_travels_with_the_model(tmp_path: Path) -> None:
    model = ts.compile(module(lambda x: relax.op.nn.relu(x), (4,)), TARGET, cpu_threads=1)
    said = ts.Model(model.module, parts=model.parts.explained("because"))
    assert (said.plan.reason, model.plan.reason) == ("because", "")
    assert said.create_instance().plan.reason == "because"
    said.export(tmp_path / "model.so")
    assert ts.load(tmp_path / "model.so").plan.reason == "because"
