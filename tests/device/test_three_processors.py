"""CPU, OpenCL and Hexagon at once, each with shares of the layers of a quantised network.

The DSP is emulated and some hundred times slower than the others: plans are written here, and say
nothing about speed. Its roundings differ from the CPU's where a product lies at a half.
"""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest
import tvm
from helpers.integer_networks import IntegerNetwork
from helpers.quantised_models import assert_as_onnx_runtime

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes.split_outputs import can_be_shared
from tvm_stretch.read import load_network
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig
from tvm_stretch.targets.opencl.opencl import local_device

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


def check_independent(model: ts.Model) -> None:
    """Some region of each processor may run beside one of each other processor.

    Whether they did in one run is chance: cores are few and busy.
    """
    regions = model.graph.regions
    before: list[set[int]] = []
    last: dict[int, int] = {}
    for number, region in enumerate(regions):
        waits = {*region.after, last.get(region.processor, -1)} - {-1}
        before.append(waits.union(*(before[index] for index in waits)))
        last[region.processor] = number
    beside = {
        frozenset((a.processor, b.processor))
        for (i, a), (j, b) in itertools.combinations(enumerate(regions), 2)
        if i not in before[j] and a.processor != b.processor
    }
    assert len(beside) == 3


def test_a_small_network() -> None:
    conv = ("conv", (3, 3), 1, (1, 1, 1, 1), 1, 1, 96)
    mod = IntegerNetwork(0).main([conv, conv], (1, 8, 12, 10))
    assert mod is not None
    model = ts.compile(mod, TARGETS, plan=in_shares(mod))
    x = np.random.default_rng(1).integers(0, 256, (1, 8, 12, 10)).astype("uint8")
    got, want = (y.astype(int) for y in (model(x), ts.compile(mod, "llvm")(x)))
    assert np.abs(got - want).max() <= 1
    assert np.mean(got != want) < 0.01
    check_independent(model)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["resnet18", "regnetx_1_6gf", "efficientnet_lite0"])
def test_networks(name: str) -> None:
    images = np.random.default_rng(0).standard_normal((4, 3, 64, 64)).astype("float32")
    quantised = ts.quantize(zoo.build(name, size=64), images)
    model = ts.compile(quantised, TARGETS, plan=in_shares(load_network(quantised)))
    assert_as_onnx_runtime(quantised, {"x": images[:1]}, np.asarray(model(images[:1])))
    print(name, model.timeline())
    check_independent(model)
