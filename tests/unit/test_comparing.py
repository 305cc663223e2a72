"""One plan for several phones: the table, and two servers of this machine that differ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from helpers.relax_helpers import random_inputs
from helpers.rpc_processes import Phone, Tracker, native_server
from helpers.search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.api import comparing
from tvm_stretch.base.errors import DeviceError, InputError
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.plan_table import PlanTable

CORES = sorted(os.sched_getaffinity(0))
ALONE = Plan(("cpu",), ())


def table(**seconds: tuple[float | None, ...]) -> PlanTable:
    names = ("pixel", "mi", "poco")[: len(next(iter(seconds.values())))]
    plans = dict.fromkeys(seconds, ALONE)
    return PlanTable(names, plans, seconds, ("gpu does not run on mi: no driver",))


def test_the_best_for_all_costs_least_where_it_costs_most() -> None:
    found = table(first=(0.010, 0.030), second=(0.012, 0.020), third=(0.011, 0.025))
    assert found.costs["second"] == pytest.approx((1.2, 1.0))
    assert found.best == "second" and found.plan is ALONE
    text = str(found).splitlines()
    assert text[0].split() == ["plan", "pixel", "mi", "at", "worst"]
    assert text[2].split() == ["second", "12.00", "ms", "x1.20", "20.00", "ms", "x1.00", "x1.20"]
    assert text[-1] == "best for all: second, which costs 20 % on pixel, nothing on mi"


def test_a_plan_that_does_not_run_everywhere_is_none_for_all() -> None:
    found = table(gpu=(0.010, None), cpu=(0.030, 0.020))
    assert found.best == "cpu" and found.costs["gpu"] == (1.0, None)
    assert "gpu does not run on mi: no driver" in str(found)
    nowhere = table(gpu=(0.010, None), dsp=(None, 0.020))
    with pytest.raises(DeviceError, match="a plan that all devices run, got none: gpu does not"):
        _ = nowhere.best
    assert "best for all: none runs everywhere" in str(nowhere)


@pytest.mark.parametrize("devices", [[], ["pixel", "mi"], "pixel", None])
def test_nonsense_is_refused(devices: object) -> None:
    with pytest.raises(InputError, match="at least two devices, or a fleet, for devices"):
        ts.tune.compare_plans(None, devices)  # type: ignore[arg-type]


def test_a_fleet_of_one_key_has_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="fleet of at least two keys for devices, got only 'mi'"):
        ts.tune.compare_plans(None, ts.tune.Fleet("127.0.0.1:1", ["mi"]))


def test_phones_of_one_key_are_told_apart() -> None:
    phones = [ts.Device(name, 1.0, lambda: None) for name in ("a", "b", "a")]  # type: ignore[arg-type,return-value]
    assert comparing._names(phones) == ["a", "b", "a (2)"]


@pytest.fixture
def phones() -> Iterator[list[ts.Device]]:
    """Two servers: one may use all cores, the other one only the first."""
    pytest.importorskip("tornado")
    if len(CORES) < 2:
        pytest.skip("one core: phones cannot differ in it")
    with ExitStack() as stack:
        tracker = Tracker()
        stack.callback(tracker.kill)
        one_core = ["taskset", "-c", str(CORES[0]), *native_server()[0]]
        for key, command in (("all", None), ("one", one_core)):
            phone = Phone("--tracker", tracker.address, key=key, command=command)
            stack.callback(phone.kill)
        yield [
            stack.enter_context(ts.connect(tracker.address, key, timeout=20, wait=5))
            for key in ("all", "one")
        ]


@pytest.mark.full
def test_two_phones_of_which_one_lacks_cores(phones: list[ts.Device]) -> None:
    """What both can run is best for both, however fast the other plan is on one of them."""
    mod = emit(["conv", "conv"], size=12)
    both = Plan(("cpu", "little"), (), shares={"conv2d": (16, 16), "conv2d1": (16, 16)})
    targets = ["llvm", {"kind": "little-cores", "cores": str(CORES[-1])}]
    alone = ts.compile(mod, "llvm", device=phones[0], cpu_threads=1).plan
    found = ts.tune.compare_plans(
        mod, phones, targets, plans={"both": both, "cpu alone": alone}, cpu_threads=1
    )
    assert found.devices == ("all", "one")
    assert found.seconds["both"][0] is not None and found.seconds["both"][1] is None
    assert None not in found.seconds["cpu alone"]
    assert found.best == "cpu alone"
    (refusal,) = found.refusals
    assert refusal.startswith("both does not run on one: expected cores")
    again = ts.compile(mod, targets, device=phones[1], plan=found.plan, cpu_threads=1)
    (x,) = random_inputs(mod)
    assert phones[1].load(again)(x).shape == (1, 32, 12, 12)


def test_without_plans_each_phone_brings_its_own(phones: list[ts.Device]) -> None:
    found = ts.tune.compare_plans(emit(["conv"], size=8), phones, "llvm", cpu_threads=1)
    assert list(found.plans) == ["of all"], "the other one's is the same"
    assert found.best == "of all" and not found.refusals
