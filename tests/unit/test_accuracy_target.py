"""`ts.stretch(accuracy=)`: designs that lose too much accuracy in a supernet are pruned."""

from __future__ import annotations

import pytest
from helpers.search_helpers import costs
from helpers.stretch_networks import basic, network
from helpers.training_helpers import loader

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.lab.stretching.accuracy import AccuracyTarget, with_accuracy
from tvm_stretch.lab.stretching.design_rules import Rules
from tvm_stretch.lab.stretching.stretching import Stretching, stretch_network
from tvm_stretch.lab.training import TrainableNetwork, Training

TRAINING = Training(epochs=1, rate=0.01, seed=3)


@pytest.fixture(scope="module")
def found() -> Stretching:
    mod = network(basic, ((64, 2), (128, 4)), stem=32)
    st = stretch_network(mod, costs(1, 1), range(2), Rules())
    kept = [candidate for candidate in st.candidates if candidate.kept]
    assert len(kept) >= 3
    return st


def scripted(monkeypatch: pytest.MonkeyPatch, *shares: float) -> None:
    """Accuracies of the original and of the designs that the rules keep, the fastest first."""

    def accuracies(_found: Stretching, kept: list[object], _target: AccuracyTarget) -> list[float]:
        return [*shares, *(shares[-1] for _ in kept)][: 1 + len(kept)]

    monkeypatch.setattr("tvm_stretch.lab.stretching.accuracy._accuracies", accuracies)


def test_the_fastest_design_that_is_accurate_enough(
    monkeypatch: pytest.MonkeyPatch, found: Stretching
) -> None:
    first, second = found.candidates[:2]
    scripted(monkeypatch, 0.9, 0.85, 0.89, 0.95)
    none, point, much = (
        with_accuracy(found, AccuracyTarget([], [], TRAINING, loss)) for loss in (0.0, 0.02, 0.06)
    )
    assert point.best.design == second.design and point.best.accuracy == 0.89
    assert much.best.design == first.design
    assert none.best.ns >= second.ns and none.best.accuracy == 0.95
    pruned = next(one for one in point.candidates if one.design == first.design)
    assert pruned.rule == "accuracy (at least 88.0% of the tests, got 85.0%)"
    assert "right in 85.0%" in str(point) and not pruned.kept
    order = [candidate.kept for candidate in point.candidates]
    assert order == sorted(order, reverse=True)


def test_a_function_of_the_caller_trains(found: Stretching) -> None:
    """It gets the original network and then each design, as modules of torch."""
    seen: list[int] = []

    def train(net: TrainableNetwork) -> float:
        seen.append(sum(weight.numel() for weight in net.parameters()))
        return 0.9 if len(seen) == 1 else 0.8 + min(len(seen), 9) / 50

    kept = [candidate for candidate in found.candidates if candidate.kept]
    st = with_accuracy(found, AccuracyTarget(train, loss=0.03))
    assert seen == [st.original[1], *(candidate.parameters for candidate in kept)]
    assert st.best.accuracy == 0.88 and st.best.design == kept[2].design
    assert st.least_meetings == min(
        st.task.meetings(c.design)[0] for c in st.candidates if c.kept and c.accuracy
    )
    assert found.least_meetings is None
    with pytest.raises(InputError, match="a share from 0 to 1 from the function for train, got 9"):
        with_accuracy(found, AccuracyTarget(lambda _net: 9.0))
    with pytest.raises(InputError, match="no training beside a function"):
        AccuracyTarget(train, training=TRAINING)


def test_latency_over_accuracy(monkeypatch: pytest.MonkeyPatch, found: Stretching) -> None:
    """Figure 12: no design of the front is both slower and less accurate than another one."""
    scripted(monkeypatch, 0.9, 0.85, 0.8, 0.95)
    st = with_accuracy(found, AccuracyTarget([], [], TRAINING, 0.06))
    front = st.front()
    known = [(point.accuracy, point.ns) for point in front.points]
    assert known == sorted(known) and [share for share, _ in known] == [0.85, 0.95]
    assert front.accuracy == st.accuracy == 0.9 and found.accuracy is None
    assert str(front).startswith("| accuracy | ms |") and "| 0.90 |" in str(front)
    assert ">accuracy</text>" in front.svg()


def test_no_design_is_accurate_enough(monkeypatch: pytest.MonkeyPatch, found: Stretching) -> None:
    scripted(monkeypatch, 0.9, 0.5)
    with pytest.raises(UnsupportedError, match="train longer, or allow a larger loss"):
        _ = with_accuracy(found, AccuracyTarget([], [], TRAINING)).best


@pytest.mark.full
def test_they_are_trained_and_tested() -> None:
    """The same seed gives the same accuracies, and training makes them better than chance."""
    mod = network(basic, ((16, 2), (32, 2)))
    found = stretch_network(mod, costs(1, 1), range(2), Rules(least_ratio=0.5))
    training = Training(epochs=6, rate=0.05, seed=3)
    target = AccuracyTarget(loader(), loader(), training, loss=1.0)
    once, again = (with_accuracy(found, target) for _ in range(2))
    shares = [one.accuracy for one in once.candidates if one.kept]
    assert shares == [one.accuracy for one in again.candidates if one.kept]
    assert all(share is not None and share > 0.4 for share in shares)  # of five classes
    assert all(one.accuracy is None for one in once.candidates if not one.kept)


def test_bad_arguments(found: Stretching) -> None:
    with pytest.raises(InputError, match=r"a ts\.training\.Training for training, got 5"):
        AccuracyTarget([], [], 5)  # type: ignore[arg-type]
    for wrong in (-0.1, 1.5, "1 %", True):
        with pytest.raises(InputError, match="a share from 0 to 1 for loss"):
            AccuracyTarget([], [], TRAINING, wrong)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"a ts\.stretching\.AccuracyTarget for accuracy, got 0\.9"
    ):
        ts.stretch(found.mod, accuracy=0.9)  # type: ignore[arg-type]
