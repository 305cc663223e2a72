"""Compiling is one line: the network passes the stations, and its model is made once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from helpers import rooms
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.search_helpers import emit
from real_walk import walks

import tvm_stretch as ts
from tvm_stretch.run.model import Model

STATIONS = ("api.compiler", "make.pipeline", "plan.search")


def test_the_network_goes_straight_through_the_files() -> None:
    """`real_walk.py` counts on the real call tree."""
    page = (Path(rooms.ROOT) / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for walk in walks(8, 8):
        print(*walk.stays, sep="\n")
        assert 10 < len(walk.stays) <= 60 and len(walk.returns) <= 20
        assert max(Counter(walk.climbs).values(), default=0) <= 2
        names = (stay.removeprefix("tvm_stretch.") for stay in walk.stays)
        assert all(f"`{name}`" in page for name in names if name.startswith(STATIONS))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """The models that are made meanwhile."""
    found: list[Model] = []
    initialise = Model.__init__

    def noting(self: Model, *given: object, **named: object) -> None:
        found.append(self)
        initialise(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Model, "__init__", noting)
    return found


def test_a_model_is_made_once(made: list[Model]) -> None:
    mod = emit(["conv"], size=8, channels=8)
    model = ts.compile(mod, TARGET, cpu_threads=1)
    plan = model.plan
    given = ts.compile(mod, TARGET, cpu_threads=1, plan=plan, spare=True)
    assert made == [model, given] and given.plan.regions == plan.regions


def test_the_model_that_won_is_not_built_again(made: list[Model]) -> None:
    mod = emit(["conv"], size=8, channels=8)
    model = ts.compile(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    *trials, last = made
    assert last is model and "chosen" in model.plan.reason and model.plan.considered
    assert any(model.module.same_as(trial.module) for trial in trials)


def test_a_plan_alone_is_predicted_and_nothing_is_built(made: list[Model]) -> None:
    mod = emit(["conv"] * 2, size=28, channels=32)
    plan = ts.plan_for(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    assert plan.predicted_ns and plan.considered and not made
    assert plan.reason.endswith("predicted for this machine, not measured")
