"""Runs in the background, while kernels wait for bells and the CPU's kernels use TVM's pool."""

from __future__ import annotations

from concurrent.futures import CancelledError

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import answers, module, random_const
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.read import load_network
from tvm_stretch.targets.opencl.opencl import local_device

pytestmark = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")

SHAPE = (1, 8, 24, 24)
THREADS = 2


def network() -> tvm.IRModule:
    """Three convolutions, each of which needs all channels of the one before it."""
    weights = [random_const(32, channels, 3, 3, seed=channels) for channels in (8, 32, 32)]

    def body(x: relax.Expr) -> relax.Expr:
        for weight in weights:
            x = relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1))
        return x

    return load_network(module(body, SHAPE))


@pytest.fixture(scope="module")
def shared() -> ts.Model:
    """Half of each layer on either processor, so that they meet before each layer."""
    halves = {name: (16, 16) for name in ("conv2d", "conv2d1", "conv2d2")}
    plan = Plan(("cpu", "opencl"), (), shares=halves)
    model = ts.compile(network(), ["llvm", "opencl"], plan=plan, cpu_threads=THREADS)
    assert model.graph.threads == THREADS
    assert len(model.graph.regions) >= 6
    return model


def inputs(count: int) -> list[np.ndarray]:
    dice = np.random.default_rng(0)
    return [dice.standard_normal(SHAPE).astype("float32") for _ in range(count)]


@pytest.fixture(scope="module")
def expected() -> list[tuple[np.ndarray, np.ndarray]]:
    """Inputs and what the network makes of them."""
    return [(x, answers(network(), x)[0]) for x in inputs(4)]


def is_right(got: np.ndarray, want: np.ndarray) -> bool:
    return np.allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_instances_side_by_side(shared: ts.Model, expected: list) -> None:
    instances = [shared.create_instance() for _ in range(3)]
    futures = [
        (instances[number % 3].run_async(x), want)
        for number in range(30)
        for x, want in [expected[number % len(expected)]]
    ]
    assert all(is_right(future.result(), want) for future, want in futures)


def test_cancelled_runs_leave_the_others_right(shared: ts.Model, expected: list) -> None:
    futures = [
        (shared.run_async(x), want) for number in range(40) for x, want in [expected[number % 4]]
    ]
    for future, _ in futures[::3]:
        future.cancel()
    finished = 0
    for future, want in futures:
        try:
            assert is_right(future.result(), want)
            finished += 1
        except CancelledError:
            continue
    assert finished >= 26, "only every third was asked to stop"
    x, want = expected[0]
    assert is_right(shared(x), want)
