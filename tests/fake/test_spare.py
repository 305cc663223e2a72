"""A device fails: with `spare`, the CPU runs its regions, too."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_targets import TARGET, fake_processor
from helpers.relax_helpers import two_convolutions as network
from helpers.rounding import assert_rounded

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan

X = np.random.default_rng(0).standard_normal((1, 16, 9, 9)).astype("float32")
HALF = {"conv2d1": (8, 8)}


def shared(**script: object) -> ts.Model:
    """Half of the second layer's channels on a device that does what the script says."""
    mod = network()
    plan = Plan(("cpu", "fake"), (), shares=HALF)
    device = fake_processor(**script)
    return ts.compile(mod, [TARGET, device], plan=plan, cpu_threads=1, spare=True)


def check(model: ts.Model, x: np.ndarray = X) -> None:
    want = ts.compile(network(), TARGET, cpu_threads=1)(x)
    assert_rounded(network(), [x], model(x), want)


def region_of(model: ts.Model) -> str:
    """The device's region."""
    return next(region.name for region in model.graph.regions if region.processor == 1)


def failing(message: str = "gone") -> ts.Model:
    name = region_of(shared())
    return shared(regions={name: {"fails": message, "failures": 1}})


def test_nothing_is_lost_while_all_goes_well() -> None:
    model = shared()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(model)
    assert model.lost is None
    assert str(model.timeline().execution).startswith("0 of ")


def test_the_cpu_answers_and_says_so_once() -> None:
    model = failing()
    with pytest.warns(RuntimeWarning, match=r"on processor 'fake', got: gone.*; the CPU runs"):
        check(model)
    assert model.lost is not None and "got: gone" in model.lost
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(model, 2 * X)
    execution = model.timeline().execution
    assert execution is not None
    assert {stray.found for stray in execution.strays} == {"cpu"}
    assert {stray.planned for stray in execution.strays} == {"fake"}


def test_runs_in_the_background_take_over_too() -> None:
    model = failing()
    with pytest.warns(RuntimeWarning):
        first = model.run_async(X).result()
    np.testing.assert_array_equal(model(X), first)


def test_an_artifact_carries_its_spare(tmp_path: Path) -> None:
    failing().export(tmp_path / "net.so")
    model = ts.load(tmp_path / "net.so")
    with pytest.warns(RuntimeWarning):
        check(model)


def test_without_spare_it_is_an_error() -> None:
    name = region_of(shared())
    device = fake_processor(regions={name: {"fails": "gone", "failures": 1}})
    plan = Plan(("cpu", "fake"), (), shares=HALF)
    model = ts.compile(network(), [TARGET, device], plan=plan, cpu_threads=1)
    said = r"on processor 'fake', got: gone; run it again, compile with spare=True .*processor$"
    with pytest.raises(ts.DeviceError, match=said):
        model(X)
    assert model.lost is None
    check(model)


def test_a_network_on_the_cpu_needs_no_spare() -> None:
    model = ts.compile(network(), TARGET, cpu_threads=1, spare=True)
    assert not model.graph.spare


def test_the_chosen_plan_gets_a_spare() -> None:
    model = ts.compile(network(), [TARGET, fake_processor()], cpu_threads=1, spare=True)
    assert model.graph.spare == (len(model.graph.processors) > 1)
    assert model.plan.reason
    check(model)
