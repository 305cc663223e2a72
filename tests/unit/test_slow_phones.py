"""Phones of one kind of which one is slow: each gets the plan that is the fastest there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.relax_helpers import random_inputs
from helpers.search_helpers import emit
from tvm import rpc

import tvm_stretch as ts

CORES = sorted(os.sched_getaffinity(0))
SLOW = 0.02  # seconds, for what takes less than one millisecond


def processors(model: Any) -> int:
    return len({region.processor for region in model.graph.regions})


class Paced(ts.Device):
    """A device on which runs take longer that use so many processors."""

    slow: int

    def load(self, model: Any) -> Any:
        there = super().load(model)
        delay = SLOW * (processors(there) == self.slow)
        timed_run = there.timed_run

        def slowed() -> Any:
            run = timed_run()
            return lambda: run() + delay

        there.timed_run = slowed
        return there


@pytest.mark.skipif(len(CORES) < 2, reason="one core: no second processor")
@pytest.mark.full
def test_a_slow_phone_gets_another_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    mod = emit(["conv", "conv"], size=28, channels=32)
    targets = ["llvm", {"kind": "little-cores", "cores": str(CORES[-1])}]
    used, answers = [], []
    for key, slow in (("alone", 1), ("together", 2)):
        phone = ts.connect(rpc.LocalSession(), key)
        phone.__class__ = Paced
        monkeypatch.setattr(phone, "slow", slow, raising=False)
        model = ts.compile(mod, targets, device=phone, cpu_threads=1)
        used.append(processors(model))
        assert any(one.measured_ns for one in model.plan.considered)
        answers.append(phone.load(model)(*random_inputs(mod)))
    assert used == [2, 1]
    largest = float(np.abs(answers[0]).max())
    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=1e-5 * largest)
