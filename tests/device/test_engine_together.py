"""CPU, OpenCL and an engine at once: right answers, whatever ends in between."""

from __future__ import annotations

import itertools
import os
import signal
from concurrent.futures import CancelledError

import numpy as np
import pytest
from engine_targets import ENGINE, needs_engine, needs_npu
from integer_networks import IntegerNetwork

import tvm_stretch as ts
from tvm_stretch.ir.operators import Operators
from tvm_stretch.passes.split_outputs import can_be_shared
from tvm_stretch.targets.opencl_device import local_device

pytestmark = [
    needs_engine,
    pytest.mark.skipif(local_device() is None, reason="no OpenCL device"),
]
_BLOCK = 32


def network() -> object:
    """Two convolutions of 96 channels, in integers."""
    conv = ("conv", (3, 3), 1, (1, 1, 1, 1), 1, 1, 96)
    mod = IntegerNetwork(0).main([conv, conv], (1, 8, 12, 10))
    assert mod is not None
    return mod


def together(target: object, name: str) -> tuple[ts.Model, ts.Model]:
    """The network in shares of three processors, and on the CPU alone."""
    mod = network()
    wide = [op for op in Operators(mod["main"]) if op.kind == "integer.conv2d"]
    assert all(can_be_shared(op.call) for op in wide)
    shares = {op.name: (op.shape[1] - 2 * _BLOCK, _BLOCK, _BLOCK) for op in wide}
    plan = ts.Plan(("cpu", "opencl", name), (), shares=shares)
    model = ts.compile(mod, ["llvm", "opencl", target], plan=plan, cpu_threads=1)
    return model, ts.compile(mod, "llvm", cpu_threads=1)


def image(seed: int) -> np.ndarray:
    """A random input."""
    return np.random.default_rng(seed).integers(0, 256, (1, 8, 12, 10)).astype("uint8")


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
