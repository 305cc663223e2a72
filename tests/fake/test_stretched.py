"""Stretched networks, compiled: their branches answer what the module says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_processor
from helpers.relax_numpy import evaluate
from helpers.stretch_networks import SIZE, basic, network

import tvm_stretch as ts
from tvm_stretch.plan.search.costs import Costs, planning_costs
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.processor import Processor

X = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE)).astype("float32")


def two_processors() -> list[Processor]:
    return [cpu_processor(TARGET, 1), fake_processor()]


def assert_answers(model: ts.Model, expected: np.ndarray) -> None:
    got = model(X)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_compiled_with_branches_on_their_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing over is free here: such a small network would be left as it is."""

    def free(processors: Sequence[Processor]) -> Costs:
        return dataclasses.replace(planning_costs(processors), hand_over=lambda *_: 0)

    mod = network(basic, ((32, 1), (48, 1)), stem=16)
    with monkeypatch.context() as patched:
        patched.setattr("tvm_stretch.plan.search.site.planning_costs", free)
        found = ts.stretch(mod, two_processors())
    model = found.compile_untrained()
    assert_answers(model, evaluate(found.module(), X))
    considered = {one.what for one in model.plan.considered}
    assert {"branches as designed", "cpu alone"} <= considered
    assert "weights not trained: cpu 1x" in model.plan.reason
