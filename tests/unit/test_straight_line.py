"""Compiling is one line: the network passes each station once, and its model is made once."""

from __future__ import annotations

import pytest
from cpu_targets import TARGET
from fake_targets import fake_processor
from search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.runtime.model import Model


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


def test_the_model_that_won_is_not_built_again(
    made: list[Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_stretch.search.contest._PATIENCE", 1)
    mod = emit(["conv"], size=8, channels=8)
    model = ts.compile(mod, [TARGET, fake_processor("p1")], cpu_threads=1)
    *trials, last = made
    assert last is model and "chosen" in model.plan.reason and model.plan.considered
    assert any(model.module.same_as(trial.module) for trial in trials)
