"""Caches of full length: runs write rows alone, in any order of runs, failures, cancels and plans.

Everything is integers, so that NumPy's answers are exact: those of the form that copies the cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.caches import (
    ACTIONS,
    STATES,
    WIDTH,
    Beside,
    Parts,
    cache,
    operators,
    planned,
    with_plans,
)
from helpers.dsp_targets import dsp_processor
from helpers.fake_targets import TARGET, fake_processor

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan

WRITES = "tvm_stretch.write"


@pytest.fixture(scope="module", params=["reads", "writes"])
def model(request: pytest.FixtureRequest) -> ts.Model:
    """On the CPU alone, or with another processor that reads the cache, or writes it, too."""
    first, (sums, *last) = operators()
    cut = first.index("scatter_nd") if request.param == "writes" else len(first)
    two = [("cpu", first[:cut]), ("fake", [*first[cut:], sums]), ("cpu", last)]
    plans = {"alone": [("cpu", [*first, sums, *last])], "two": two}
    return with_plans([fake_processor()], plans)


def test_runs_write_rows_alone(model: ts.Model) -> None:
    (state,) = model.graph.states
    assert state.row == 4 * WIDTH and state.starts >= len(model.graph.outputs)
    kernels = [node.kernel for node in model.graph.nodes if "scatter_nd" in node.name]
    assert len(kernels) == 2  # once in each plan
    assert all(kernel == WRITES or "_rows_" in kernel for kernel in kernels)


@pytest.mark.parametrize("steps", [60, pytest.param(5_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_runs(model: ts.Model, seed: int, steps: int) -> None:
    """The state is compared now and then only: most steps follow each other."""
    beside = Beside(model, seed)
    for _ in range(steps):
        beside.rng.choice(np.array(ACTIONS, object))(beside)
        if beside.rng.random() < 0.3:
            beside.check()
    beside.step()
    beside.check()


@pytest.mark.parametrize("action", dict.fromkeys(ACTIONS), ids=lambda action: action.__name__)
def test_steps_go_on_after(model: ts.Model, action: Callable[[Beside], None]) -> None:
    """Twice, because two memories change places."""
    for before in range(3):
        beside = Beside(model, before)
        for _ in range(before):
            beside.step()
        action(beside)
        beside.check()
        beside.step()
        beside.step()
        beside.check()


def test_a_cancelled_step_is_as_if_it_had_not_begun(model: ts.Model) -> None:
    """The other processor holds the run up after the rows are written."""
    beside = Beside(model)
    model.use("two")
    device = model.parts.devices[0]
    beside.step()
    device["take"]("r1", 500_000)
    future = model.run_async(*beside.inputs())
    time.sleep(0.05)
    future.cancel()
    device["take"]("r1", 0)
    with pytest.raises(ts.RunCancelledError):
        future.result(60)
    beside.check()
    beside.step()
    beside.step()


def test_instances_and_artifacts(model: ts.Model, tmp_path: Path) -> None:
    beside = Beside(model)
    beside.step()
    other = Beside(model.create_instance(), 1)
    other.step()
    beside.step()
    other.step()
    beside.check()
    other.check()
    one = ts.compile(cache(), [TARGET], states=STATES, cpu_threads=1)
    one.export(tmp_path / "cache.so")
    loaded = Beside(ts.load(tmp_path / "cache.so"))
    for _ in range(3):
        loaded.step()
    loaded.check()


def test_lengths_write_rows_of_their_own() -> None:
    """A prompt of several places, then one after the other."""
    lengths = (1, 5)
    model = ts.compile(cache("n"), [TARGET], lengths={"n": lengths}, states=STATES, cpu_threads=1)
    assert [node.kernel for node in model.graph.nodes].count(WRITES) == len(lengths)
    beside = Beside(model)
    for rows in (5, 1, 1, 5, 5, 1):
        beside.step(rows)
    beside.check()


def test_another_processor_writes_alone() -> None:
    """It knows a cache by its address, so the executor keeps both memories and copies rows."""
    first, last = operators()
    every = [*first, *last]
    plans: dict[str, Parts] = {"alone": [("cpu", every)], "two": [("fake", every)]}
    beside = Beside(with_plans([fake_processor()], plans))
    for action in (Beside.step, Beside.change_plan, Beside.divide_by_zero, Beside.step) * 3:
        action(beside)
        beside.check()


def test_another_plan_takes_over() -> None:
    """A processor fails, and the plan without it computes the answer in the same run."""
    first, last = operators()
    slow = {"r1": {"latency_us": 20_000}}
    devices = [fake_processor("d0"), fake_processor("d1", regions=slow)]
    names = (("a", "d0"), ("b", "d1"))
    model = with_plans(devices, {n: [("cpu", first), (device, last)] for n, device in names})
    model.adapt(6.0)
    beside = Beside(model)
    beside.step()
    beside.step()
    model.parts.devices[0]["fail"]("r1", "device lost", 1)
    with pytest.warns(RuntimeWarning, match="device lost"):
        beside.step()
    assert model.in_use == "b"
    beside.step()
    beside.step()
    beside.check()


def test_the_cpu_takes_over() -> None:
    """A processor fails in the only plan: spare kernels compute the same run again."""
    first, last = operators()
    device = fake_processor(regions={"r1": {"fails": "device lost", "failures": 1}})
    model = ts.compile(
        cache(),
        [TARGET, device],
        plan=Plan(("cpu", "fake"), planned([("cpu", first), ("fake", last)])),
        states=STATES,
        cpu_threads=1,
        spare=True,
    )
    assert WRITES in [node.kernel for node in model.graph.nodes]
    beside = Beside(model)
    with pytest.warns(RuntimeWarning, match="device lost"):
        beside.step()
    for _ in range(3):
        beside.step()
        beside.check()


def test_a_dsp_writes_rows_alone() -> None:
    """Behind its mailbox, where only what a region receives and sends is seen by both sides."""
    first, last = operators()
    cut = first.index("scatter_nd")
    two: Parts = [("cpu", first[:cut]), ("dsp", [*first[cut:], *last])]
    model = with_plans([dsp_processor()], {"alone": [("cpu", [*first, *last])], "two": two})
    beside = Beside(model)
    actions = [action for action in ACTIONS if action is not Beside.lose_device]
    for _ in range(40):
        beside.rng.choice(np.array(actions, object))(beside)
        beside.check()
