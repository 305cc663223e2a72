"""Stretched networks, compiled: their branches answer what the module says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from cpu_targets import TARGET
from fake_targets import fake_processor
from relax_helpers import module
from relax_numpy import evaluate
from stretch_networks import SIZE, basic, network
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.errors import InputError
from tvm_stretch.search.costs import Costs, planning_costs
from tvm_stretch.targets.cpu import cpu_processor
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

    for user in ("stretching.stretching", "compiler"):
        monkeypatch.setattr(f"tvm_stretch.{user}.planning_costs", free)
    mod = network(basic, ((32, 1), (48, 1)), stem=16)
    stretched = ts.stretch(mod, two_processors()).module()
    with pytest.warns(UserWarning, match="whose weights were not trained"):
        model = ts.compile(mod, two_processors(), branching="stretch")
    assert_answers(model, evaluate(stretched, X))
    considered = {one.what for one in model.plan.considered}
    assert {"branches as designed", "cpu alone"} <= considered
    assert "stretched, weights not trained: cpu 1x" in model.plan.reason


def test_what_cannot_be_stretched_is_compiled_as_it_is() -> None:
    no_blocks = module(relax.op.nn.relu, (1, 8))
    model = ts.compile(no_blocks, [TARGET], branching="stretch")
    assert "not stretched: expected blocks between meeting points" in model.plan.reason


def test_wrong_words() -> None:
    mod = network(basic)
    with pytest.raises(InputError, match="expected 'exact' or 'stretch' for branching"):
        ts.compile(mod, [TARGET], branching="wide")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected no plan with branching='stretch'"):
        ts.compile(mod, [TARGET], branching="stretch", plan={})
