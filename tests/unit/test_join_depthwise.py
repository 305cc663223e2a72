"""A depthwise convolution and the 1x1 convolution after it in one kernel of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET
from helpers.gpu_checks import LARGE, WITHOUT_LOCAL, check, needs_device
from helpers.relax_helpers import module, random_const
from tvm import relax, s_tir, tirx
from tvm.target import Target

from tvm_stretch.make.kernels import KernelLevel, kernels_alone, kernels_of_plan
from tvm_stretch.network.attributes import ANNOTATION
from tvm_stretch.network.operators import Operators
from tvm_stretch.passes import join_depthwise
from tvm_stretch.plan.cost.generic_features import from_json, to_json
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.kernels.fused import blocks_of
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.opencl.kernels.group_features import GroupPairFeatures
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine
from tvm_stretch.targets.opencl.kernels.pair import (
    GroupPairConfig,
    choose_pair,
    is_pair,
    pair_cycles,
)
from tvm_stretch.targets.opencl.opencl import OpenCLDevice, opencl_processor
from tvm_stretch.targets.processor import Processor

BIG = replace(LARGE, name="NVIDIA H100", max_group_size=1024, compute_units=132)


@contextmanager
def pair_of(group_pixels: int, pixels: int, columns: int, slices: int) -> Iterator[None]:
    """Pairs are joined with this configuration, whatever the model says."""

    def chosen(window: Any, conv: Any, inner: int, gpu: GpuMachine) -> GroupPairConfig | None:
        if not is_pair(window, conv):
            return None
        cut = {"pixels": pixels, "columns": columns, "slices": slices}
        config = {"window": window, "conv": conv, "inner": inner, "group_pixels": group_pixels}
        return GroupPairConfig(**config, **cut)

    with patch.object(join_depthwise, "choose_pair", chosen):
        yield


def pair(
    shape: tuple[int, ...], out: int, kernel: int = 3, *, residual: bool = False, **attrs: Any
) -> tvm.IRModule:
    """Both convolutions with bias, relu6 between them, and perhaps something added."""
    channels = shape[1]
    depthwise, weight = random_const(channels, 1, kernel, kernel), random_const(out, channels, 1, 1)
    bias, other = random_const(1, channels, 1, 1), random_const(1, out, 1, 1)
    attrs = {"padding": kernel // 2, **attrs}

    def build(x: relax.Expr, *more: relax.Expr) -> relax.Expr:
        y = relax.op.add(relax.op.nn.conv2d(x, depthwise, groups=channels, **attrs), bias)
        y = relax.op.add(relax.op.nn.conv2d(relax.op.clip(y, 0.0, 6.0), weight), other)
        return relax.op.add(y, more[0]) if more else y

    return module(build, shape, *([(shape[0], out, *shape[2:])] if residual else []))


def gpu(device: OpenCLDevice = BIG) -> Processor:
    """A GPU, whether or not one is here."""
    return opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), device)


def lowered(mod: tvm.IRModule, processor: Processor | None = None) -> KernelLevel:
    """The kernels of a network that runs on a GPU alone."""
    mod = load_network(mod)
    operators = Operators(mod["main"])
    names = tuple(op.name for op in operators if isinstance(op.binding.value, relax.Call))
    plan = Plan(("opencl",), (PlannedRegion("r0", "opencl", names),))
    return kernels_of_plan(mod, plan, [processor or gpu()])


def pairs(level: KernelLevel) -> list[tirx.PrimFunc]:
    """The joined kernels."""
    kernels = [f for f in level.mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    return [f for f in kernels if any(map(_is_joined, blocks_of(f)))]


def _is_joined(block: s_tir.SBlock) -> bool:
    return str(block.annotations.get(ANNOTATION, "")).startswith("group_pair ")


@needs_device
@pytest.mark.parametrize(
    ("mod", "config"),
    [
        # pixels of a group and of an item, columns, slices
        (pair((1, 40, 9, 9), 24), (8, 2, 1, 4)),
        (pair((2, 36, 9, 7), 20, residual=True), (4, 2, 5, 2)),
        (pair((2, 10, 9, 7), 18, residual=True), (7, 1, 1, 1)),
        (pair((1, 20, 11, 8), 32, strides=2), (14, 7, 2, 4)),
        (pair((1, 12, 9, 9), 8, 5, dilation=2, padding=4), (32, 4, 1, 4)),
        (pair((1, 12, 10, 9), 8, 9), (32, 4, 1, 4)),
        (pair((1, 12, 10, 9), 8, padding=(0, 1, 1, 0)), (16, 4, 1, 2)),
    ],
)
def test_pairs_of_groups(mod: tvm.IRModule, config: tuple[int, int, int, int]) -> None:
    with pair_of(*config):
        assert len(pairs(lowered(mod))) == 1
        check(mod)


def test_a_core_takes_over() -> None:
    with pair_of(8, 2, 1, 4):
        (joined,) = pairs(lowered(pair((1, 12, 9, 9), 8, residual=True)))
    dice = np.random.default_rng(0)
    shapes = [tuple(map(int, param.shape)) for param in joined.params]
    values = [dice.standard_normal(shape).astype("float32") for shape in shapes]

    def result(func: tirx.PrimFunc) -> np.ndarray[Any, Any]:
        tensors = [tvm.runtime.tensor(value) for value in values]
        tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), TARGET)(
            *tensors
        )
        return tensors[-1].numpy()

    scheduled = schedule_kernel(joined, cpu_processor(TARGET, 1).machine)
    assert "T.sblock" not in scheduled.script()  # it is no generic schedule
    np.testing.assert_allclose(result(scheduled), result(joined), rtol=1e-4, atol=1e-4)


# MobileNetV2's and EfficientNet's, as they were measured on an H100 and an H200
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "out", "joins"),
    [
        ((1, 192, 28, 28), 3, 1, 32, True),
        ((1, 384, 14, 14), 3, 1, 64, True),
        ((16, 144, 56, 56), 3, 2, 32, True),
        ((16, 960, 7, 7), 3, 1, 320, False),  # groups of few pixels compute, and repeat, too much
        ((1, 144, 56, 56), 5, 2, 40, True),
        ((1, 480, 14, 14), 5, 1, 112, False),
        ((1, 672, 14, 14), 5, 2, 192, False),
    ],
)
def test_what_is_joined(
    shape: tuple[int, ...], kernel: int, stride: int, out: int, joins: bool
) -> None:
    assert len(pairs(lowered(pair(shape, out, kernel, strides=stride)))) == joins


def test_what_stays_apart() -> None:
    little = gpu(replace(BIG, local_bytes=1024))
    assert not pairs(lowered(pair((1, 384, 14, 14), 64), little))
    assert not pairs(lowered(pair((1, 384, 14, 14), 64), gpu(WITHOUT_LOCAL)))
    assert not pairs(kernels_alone(pair((1, 384, 14, 14), 64), gpu()))


def test_a_result_with_two_readers_stays_apart() -> None:
    depthwise, weights = random_const(40, 1, 3, 3), [random_const(24, 40, k, k) for k in (1, 3)]

    def build(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.conv2d(x, depthwise, groups=40, padding=1)
        one, other = (relax.op.nn.conv2d(y, w, padding=i) for i, w in enumerate(weights))
        return relax.op.add(relax.op.nn.relu(one), other)

    with pair_of(8, 2, 1, 4):
        assert not pairs(lowered(module(build, (1, 40, 9, 9))))


def test_one_kernel_has_the_operators_of_both() -> None:
    level = lowered(pair((1, 384, 14, 14), 64))
    computing = [k for name in level.kernels for k in level.kernels[name] if k.computes]
    (kernel,) = (k for k in computing if isinstance(k.features, GroupPairFeatures))
    (group,) = (g for g in level.graph.groups if len(g.operators) > 1)
    assert [op.kind for op in group.operators] == [
        *("nn.conv2d", "add", "clip", "nn.conv2d", "add")
    ]
    features = kernel.features
    assert features.flops == 2 * 196 * (384 * 9 + 384 * 64)
    assert features.in_bytes == 4 * (384 * 196 + 64) and features.out_bytes == 4 * 64 * 196
    assert from_json(to_json(features)) == features


def test_the_model_counts_what_is_repeated() -> None:
    processor = gpu()
    machine = processor.machine.gpu
    assert machine is not None
    with patch.object(join_depthwise, "choose_pair", wraps=choose_pair) as asked:
        assert pairs(lowered(pair((16, 144, 56, 56), 32, strides=2), processor))
    config = choose_pair(*asked.call_args.args)
    assert config is not None
    one, four = (pair_cycles(replace(config, columns=n), machine) for n in (1, 4))
    assert four.total > one.total  # the depthwise sums are computed four times
    assert four.moved_bytes == one.moved_bytes
