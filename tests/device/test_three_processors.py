"""CPU, OpenCL and Hexagon at once, each with shares of the layers of a quantised network.

The DSP is emulated and some hundred times slower than the others: plans are written here, and say
nothing about speed. Its roundings differ from the CPU's where a product lies at a half.
"""

from __future__ import annotations

import itertools
import shutil
import time

import numpy as np
import pytest
import tvm
from integer_networks import IntegerNetwork
from quantised_models import assert_as_onnx_runtime

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.codegen.dsp_code import has_zig
from tvm_stretch.frontend import load_network
from tvm_stretch.ir.operators import Operators
from tvm_stretch.passes.split_outputs import can_be_shared
from tvm_stretch.runtime.timeline import Timeline
from tvm_stretch.targets.opencl_device import local_device

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon"),
    pytest.mark.skipif(not has_zig(), reason="needs ziglang"),
    pytest.mark.skipif(local_device() is None, reason="no OpenCL device"),
]

TARGETS = ["llvm", "opencl", "hexagon"]
_BLOCK = 32
"""Channels of a block of the DSP; of the others it is a multiple."""


def in_shares(mod: tvm.IRModule) -> ts.Plan:
    """Large convolutions: a block for OpenCL and the DSP each, the CPU has what is left."""
    wide = [
        op
        for op in Operators(mod["main"])
        if op.kind == "integer.conv2d" and can_be_shared(op.call) and op.shape[1] >= 3 * _BLOCK
    ]
    shares = {op.name: (op.shape[1] - 2 * _BLOCK, _BLOCK, _BLOCK) for op in wide}
    return ts.Plan(("cpu", "opencl", "hexagon"), (), shares=shares)


def meetings(timeline: Timeline) -> set[tuple[str, str]]:
    """Pairs of processors that computed at the same time."""
    busy = [
        (region.processor, span.start, span.end)
        for region in timeline.regions
        for span in region.work
        if span.kind == "kernel"
    ]
    return {
        (a, b)
        for (a, start, end), (b, first, last) in itertools.product(busy, busy)
        if a < b and max(start, first) < min(end, last)
    }


def check_overlap(model: ts.Model) -> None:
    """Each processor with each other one; in one of many runs, because cores are few and busy."""
    found: set[tuple[str, str]] = set()
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found |= meetings(model.timeline(repeat=1))
        if len(found) == 3:
            return
    raise AssertionError(f"only {found} computed at the same time")


def test_a_small_network() -> None:
    conv = ("conv", (3, 3), 1, (1, 1, 1, 1), 1, 1, 96)
    mod = IntegerNetwork(0).main([conv, conv], (1, 8, 12, 10))
    assert mod is not None
    model = ts.compile(mod, TARGETS, plan=in_shares(mod))
    x = np.random.default_rng(1).integers(0, 256, (1, 8, 12, 10)).astype("uint8")
    got, want = (y.astype(int) for y in (model(x), ts.compile(mod, "llvm")(x)))
    assert np.abs(got - want).max() <= 1
    assert np.mean(got != want) < 0.01
    check_overlap(model)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["resnet18", "regnetx_1_6gf", "efficientnet_lite0"])
def test_networks(name: str) -> None:
    images = np.random.default_rng(0).standard_normal((4, 3, 64, 64)).astype("float32")
    quantised = ts.quantize(zoo.build(name, size=64), images)
    model = ts.compile(quantised, TARGETS, plan=in_shares(load_network(quantised)))
    assert_as_onnx_runtime(quantised, {"x": images[:1]}, np.asarray(model(images[:1])))
    print(name, model.timeline())
    check_overlap(model)
