"""Cores of the CPU as a processor of their own: described, placed on, run on those cores only."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import HERE, TARGET
from helpers.described_phone import BIG, LITTLE, described
from helpers.relax_helpers import answers, random_inputs
from helpers.search_helpers import emit

import tvm_stretch as ts
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.plan import Plan
from tvm_stretch.targets.cpu import little
from tvm_stretch.targets.processors import make_processors

CORES = sorted(os.sched_getaffinity(0))
TWO = pytest.mark.skipif(len(CORES) < 2, reason="one core: nothing is left for the CPU")


def halves() -> Plan:
    """Every convolution of 32 channels in halves."""
    return Plan(("cpu", "little"), (), shares={"conv2d": (16, 16), "conv2d1": (16, 16)})


def own(core: int) -> dict[str, str]:
    return {"kind": "little-cores", "cores": str(core)}


# --- what it is -----------------------------------------------------------------------------------


def test_a_phone_has_big_and_little_ones() -> None:
    wanted = ["llvm", "opencl", "little-cores"]
    (cpu, _, little), placeable = processors_of(described(), wanted, None)
    assert [p.name for p in placeable] == ["cpu", "opencl", "little"]
    assert (cpu.threads, little.threads, little.hardware.cores) == (4, 4, (0, 1, 2, 3))
    assert str(cpu.target.attrs["mcpu"]) == "cortex-a76"
    assert str(little.target.attrs["mcpu"]) == "cortex-a55"
    assert little.machine.in_order and not cpu.machine.in_order
    assert little.speed.cycles_per_ns < 0.4 * cpu.speed.cycles_per_ns
    assert little.hardware.device == "pixel" and not little.hardware.runs_here
    unasked, _ = processors_of(described(), None, None)
    assert "little" not in [p.name for p in unasked]


def test_features_that_little_cores_lack_are_not_used() -> None:
    found = described(features=["crc", "neon"])
    _, (_, little) = processors_of(found, ["llvm", "little-cores"], None)
    assert "mcpu" not in little.target.attrs


def test_cores_that_are_all_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = described(cores=[{"number": n, **BIG} for n in range(4)])
    with pytest.raises(ts.TargetError, match="got pixel, whose cores are all alike; name some"):
        processors_of(alike, ["llvm", "little-cores"], None)
    machine = {"cores": [{"number": n, **BIG} for n in range(2)]}
    monkeypatch.setattr(
        little.tvm, "get_global_func", lambda _name: lambda: json.dumps(machine), raising=True
    )
    with pytest.raises(ts.TargetError, match="got this machine, whose cores are all alike"):
        make_processors(["llvm", "little-cores"], None)
    machine["cores"].append({"number": 2, **LITTLE})
    assert make_processors(["little-cores"], 1)[1][0].hardware.cores == (2,)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"cores": "x"}, "a list of cores like"),
        ({"cores": "0,0"}, "a list of cores like"),
        ({"cores": "3-1"}, "a list of cores like"),
        ({"cores": "0,"}, "a list of cores like"),
        ({"core": "0"}, "expected cores, mcpu, mattr for target little-cores, got core"),
        ({"cores": "0", "mcpu": "no-such-core"}, "for mcpu, got 'no-such-core'"),
    ],
)
def test_nonsense_is_refused(target: dict[str, str], said: str) -> None:
    with pytest.raises(ts.TargetError, match=said):
        make_processors(["llvm", {"kind": "little-cores", **target}], 1)


def test_the_cpu_leaves_them_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS", raising=False)
    (host, other), _ = make_processors(["llvm", {"kind": "little-cores", "cores": "0"}], None)
    assert host.threads == max(1, len(CORES) - 1) and other.threads == 1


# --- what it does ---------------------------------------------------------------------------------


@TWO
def test_both_compute_and_answers_are_the_same(tmp_path: Path) -> None:
    """Kernels for another core than the CPU's; also from an artifact."""
    mod = emit(["conv", "conv"], size=12)
    plan = halves()
    target = own(CORES[-1])
    if HERE == 16:
        target["mcpu"] = "haswell"
    model = ts.compile(mod, [TARGET, target], plan=plan, cpu_threads=1)
    inputs = random_inputs(mod)
    (want,) = answers(mod, *inputs)
    model.export(tmp_path / "net.so")
    for one in (model, ts.load(tmp_path / "net.so"), model.create_instance()):
        for _ in range(20):
            np.testing.assert_allclose(one(*inputs), want, rtol=1e-3, atol=1e-3)
    timeline = model.timeline()
    assert {region.processor for region in timeline.regions} == {"cpu", "little"}
    ours, others = (
        {
            model.graph.nodes[n].kernel
            for r in model.graph.regions
            for n in r.nodes
            if r.processor == p
        }
        for p in (0, 1)
    )
    assert not ours & others or HERE != 16, "two cores, two codes"


def cores_of_threads() -> set[str]:
    """The cores that each thread of this process may use."""
    tasks = Path("/proc/self/task").glob("*/status")
    return {
        line.split(":")[1].strip()
        for task in tasks
        for line in task.read_text().splitlines()
        if line.startswith("Cpus_allowed_list")
    }


@TWO
def test_its_thread_stays_on_its_cores_and_the_cpu_keeps_off() -> None:
    mod = emit(["conv", "conv"], size=12)
    model = ts.compile(mod, [TARGET, own(CORES[-1])], plan=halves(), cpu_threads=1)
    inputs = random_inputs(mod)
    model(*inputs)
    assert str(CORES[-1]) in cores_of_threads(), "the thread of ours"
    model.set_affinity([CORES[0]])
    model(*inputs)
    assert str(CORES[-1]) in cores_of_threads(), "it is what the processor is"
    assert sorted(os.sched_getaffinity(threading.get_native_id())) == CORES


def test_cores_that_are_not_here(tmp_path: Path) -> None:
    """An error that names them; with a spare, the CPU runs it all."""
    mod = emit(["conv", "conv"], size=12)
    inputs = random_inputs(mod)
    with pytest.raises(ts.StretchError, match="expected cores 1000 for processor 'little'"):
        ts.compile(mod, [TARGET, own(1000)], plan=halves(), cpu_threads=1)(*inputs)
    model = ts.compile(mod, [TARGET, own(1000)], plan=halves(), cpu_threads=1, spare=True)
    (want,) = answers(mod, *inputs)
    with pytest.warns(RuntimeWarning, match="the CPU runs everything now"):
        np.testing.assert_allclose(model(*inputs), want, rtol=1e-3, atol=1e-3)
    assert "cores 1000" in model.lost
