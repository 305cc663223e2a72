"""What it costs to start a region on an engine, which a vendor's runtime runs as a whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.lab.stretching.judge import Task
from tvm_stretch.plan.cost.profile_file import load_profile, write_profile
from tvm_stretch.plan.measuring.calibrate import Latency, calibrate_profile
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.targets.kernels.features import Work
from tvm_stretch.targets.processors import make_processors


def network(before: int, behind: int) -> tvm.IRModule:
    """Convolutions before and behind a sine, which the engine of these tests refuses."""

    def body(x: relax.Expr) -> relax.Expr:
        for index in range(before + behind):
            x = relax.op.sin(x) if index == before else x
            x = relax.op.nn.conv2d(x, random_const(128, 128, 3, 3, seed=index), padding=1)
        return x

    return module(body, (1, 128, 56, 56))


def planned(source: tvm.IRModule, region_us: float, folder: Path, *names: str) -> Plan:
    """The plan for a phone whose NPU takes so long to start a region."""
    phone = load_profile("snapdragon-8-gen-2")
    npu = replace(phone.processor("npu"), region_us=region_us, refuses={"sin": "it has none"})
    processors = MappingProxyType({**phone.processors, "npu": npu})
    write_profile(replace(phone, processors=processors), folder / "phone.toml")
    return ts.plan_for(source, names, device=folder / "phone.toml")


def regions(plan: Plan) -> list[str]:
    return [region.processor for region in plan.regions]


def test_each_region_is_started(tmp_path: Path) -> None:
    whole = [planned(network(2, 0), us, tmp_path, "npu").predicted_ns for us in (0, 80)]
    assert whole[1] - whole[0] == 80_000
    plans = [planned(network(2, 2), us, tmp_path, "cpu", "npu") for us in (0, 5)]
    assert regions(plans[0]) == regions(plans[1]) == ["npu", "cpu", "npu"]
    assert plans[1].predicted_ns - plans[0].predicted_ns == 2 * 5_000


@pytest.mark.parametrize(
    ("region_us", "found"),
    [(0, ["npu", "cpu", "npu"]), (1_500, ["cpu", "npu"]), (100_000, ["cpu"])],
)
def test_few_large_regions_are_preferred(
    region_us: float, found: list[str], tmp_path: Path
) -> None:
    """The dearer a start is, the more is left to the CPU: first one layer, then all of them.

    The sine is fused with the second layer, so the CPU has both in any case.
    """
    assert regions(planned(network(2, 8), region_us, tmp_path, "cpu", "npu")) == found


def test_a_calibration_knows_the_start() -> None:
    """Latencies that have 60 us in them are explained better by a profile that has them too."""
    phone = load_profile("snapdragon-8-gen-2")
    npu = phone.processor("npu")
    assert npu.region_us == 60
    works = {
        f"net{n}": [Work("dense", 1e8 * n, 1e5 * n, 1e5 * n), Work("pointwise", 3e7, 2e5, 4e4 * n)]
        for n in range(1, 9)
    }
    rows = [
        Latency(name, "npu", 0.06 + sum(map(npu.nanoseconds, listed)) / 1e6)
        for name, listed in works.items()
    ]
    off = []
    for region_us in (60.0, 0.0):
        like = {**phone.processors, "npu": replace(npu, region_us=region_us)}
        profile = replace(phone, processors=MappingProxyType(like))
        off.append(np.mean(calibrate_profile(rows, works, profile).left_out_errors))
    assert off[0] < 0.02 < 2 * off[0] < off[1], off


def test_a_network_alone_is_started_before_it_is_stretched() -> None:
    costs = SimpleNamespace(regions=(0, 60_000))
    pricing = SimpleNamespace(costs=costs, nanoseconds=lambda *_, together: 1_000.4)
    task = Task(SimpleNamespace(layers=list), pricing, 0)
    assert [task.alone_ns(place) for place in (0, 1)] == [1_000, 61_000]


def test_engines_of_this_machine_have_starts() -> None:
    engine = {"kind": "engine", "provider": "CPUExecutionProvider", "device": "elsewhere"}
    processors, _ = make_processors(["llvm", engine], 1)
    costs = planning_costs(processors)
    assert costs.regions == (0, 10_000)
    assert costs.enter(0, 1, 64) - costs.hand_over(0, 1, 64) == 10_000
    assert costs.enter(1, 0, 64) == costs.hand_over(1, 0, 64)
    assert costs.transfers()[0][1](0) - costs.transfers(formed=True)[0][1](0) == 10_000
