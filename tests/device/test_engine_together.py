"""CPU, OpenCL and an engine at once: right answers, whatever ends in between."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
from helpers.engine_targets import ENGINE, needs_engine, needs_npu
from helpers.integer_networks import IntegerNetwork

import tvm_stretch as ts
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.split_outputs import can_be_shared
from tvm_stretch.run.timeline import Timeline
from tvm_stretch.targets.opencl.opencl import local_device

pytestmark = [
    needs_engine,
    pytest.mark.skipif(local_device() is None, reason="no OpenCL device"),
]
_BLOCK = 32
ROOT = Path(__file__).resolve().parents[2]
SCRIPTED = ROOT / "tests" / "native" / "scripted_ort.cc"


def network(size: int) -> object:
    """Two convolutions of 96 channels, in integers."""
    conv = ("conv", (3, 3), 1, (1, 1, 1, 1), 1, 1, 96)
    mod = IntegerNetwork(0).main([conv, conv], (1, 8, size, size))
    assert mod is not None
    return mod


def together(target: object, name: str, size: int = 12) -> tuple[ts.Model, ts.Model]:
    """The network in shares of three processors, and on the CPU alone."""
    mod = network(size)
    wide = [op for op in Operators(mod["main"]) if op.kind == "integer.conv2d"]
    assert all(can_be_shared(op.call) for op in wide)
    shares = {op.name: (op.shape[1] - 2 * _BLOCK, _BLOCK, _BLOCK) for op in wide}
    plan = ts.Plan(("cpu", "opencl", name), (), shares=shares)
    model = ts.compile(mod, ["llvm", "opencl", target], plan=plan, cpu_threads=1)
    return model, ts.compile(mod, "llvm", cpu_threads=1)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is a script that takes 100 ms for a region and computes nothing."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = f"-I{ROOT}"
    command = ["g++", "-std=c++17", "-shared", "-fPIC", folder, str(SCRIPTED), "-o"]
    subprocess.run([*command, str(tmp_path / "libonnxruntime.so")], check=True)
    monkeypatch.setenv("TVM_STRETCH_ENGINE_PATH", str(tmp_path))
    monkeypatch.setenv("SCRIPTED_MS", "100")


@pytest.mark.full
def test_three_processors_work_at_once(slow: None) -> None:
    """In one of a few traces, regions of any two of them intersect, and none waits in vain."""
    scripted = {"kind": "engine", "provider": "Scripted", "library": "libscripted.so"}
    model, _ = together(scripted, "engine", size=160)
    pairs = {("cpu", "opencl"), ("engine", "opencl"), ("cpu", "engine")}
    x = image(0, size=160)
    for _ in range(10):  # a thread that begins late on a busy machine may miss the others
        model(x)
        timeline = model.timeline()
        engines = [region for region in timeline.regions if region.processor == "engine"]
        free = [r for r in timeline.regions if r.processor == "cpu" and not r.after]
        assert len(engines) == len(free) == 2
        assert all(own.end < engine.end for own, engine in zip(free, engines, strict=True))
        pairs -= overlapping(timeline)
        if not pairs:
            return
    raise AssertionError(f"never at once: {pairs}")


def overlapping(timeline: Timeline) -> set[tuple[str, str]]:
    """The pairs of processors of which two regions overlap."""
    return {
        (one.processor, other.processor)
        for one, other in itertools.permutations(timeline.regions, 2)
        if one.start < other.end and other.start < one.end
    }


def image(seed: int, size: int = 12) -> np.ndarray:
    """A random input."""
    return np.random.default_rng(seed).integers(0, 256, (1, 8, size, size)).astype("uint8")


def test_shares_of_three_processors() -> None:
    model, alone = together(ENGINE, "engine")
    for seed in range(3):
        np.testing.assert_array_equal(model(image(seed)), alone(image(seed)))
    regions = model.graph.regions
    first = {region.processor: region for region in reversed(regions)}
    after = {p: {regions[i].processor for i in r.after} for p, r in first.items()}
    assert len(first) == 3 and not after[1] & {2} and not after[2] & {1}


@pytest.mark.full
@needs_npu
def test_with_the_emulated_tensor_unit() -> None:
    model, alone = together("npu", "npu")
    got, want = (y.astype(int) for y in (model(image(0)), alone(image(0))))
    assert np.abs(got - want).max() <= 2
    timeline = model.timeline()
    spans = {usage.processor: usage.kernels for usage in timeline.usage}
    assert set(spans) >= {"cpu", "opencl", "npu"} and all(spans.values())


@pytest.mark.full
def test_runs_with_cancels_and_kills() -> None:
    """Two hundred runs, of which a hundred are cancelled, and fifty kills of the engine."""
    model, alone = together(ENGINE, "engine")
    lost = {"cancelled": 0, "failed": 0, "right": 0}
    faults = itertools.cycle(["cancel", "run", "cancel", "kill"])
    for seed, fault in zip(range(200), faults, strict=False):
        x = image(seed % 5)
        future = model.run_async(x)
        if fault == "cancel":
            future.cancel()
        if fault == "kill" and (pid := model.health()["engine"]["pid"]) > 0:
            os.kill(pid, signal.SIGKILL)
        try:
            np.testing.assert_array_equal(future.result(), alone(x))
            lost["right"] += 1
        except CancelledError:
            lost["cancelled"] += 1
        except ts.DeviceError:
            lost["failed"] += 1
    assert sum(lost.values()) == 200
    assert lost["right"] >= 50 and lost["failed"] <= 50
    np.testing.assert_array_equal(model(image(0)), alone(image(0)))
    assert model.health()["engine"]["state"] == "running"
