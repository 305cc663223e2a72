"""Kernels for tests of the cost model, and a pretended machine that runs them."""

from __future__ import annotations

import math

import numpy as np

from tvm_stretch.plan.cost.prediction import AnalyticModel
from tvm_stretch.targets.kernels.features import EpilogueWork, Features
from tvm_stretch.targets.kernels.layers import ConvShape
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose

MACHINE = VectorMachine(8, 16, False, 512 * 1024, 1)
DEVICE = {"machine": "test", "processor": "cpu", "threads": 1}


def conv(channels: int, size: int = 28, kernel: int = 1, outputs: int | None = None) -> Features:
    pad = kernel // 2
    shape = ConvShape(
        1, channels, (size, size), outputs or channels, (kernel, kernel), (1, 1), (pad,) * 4
    )
    features: Features = choose(shape, MACHINE, 8).work(EpilogueWork(), MACHINE, 4)
    return features


def some_convs(count: int, seed: int = 0) -> list[Features]:
    dice = np.random.default_rng(seed)
    channels = 8 * dice.integers(1, 40, (count, 2))
    sizes = dice.integers(5, 60, count)
    return [conv(int(c), int(s), 1, int(o)) for (c, o), s in zip(channels, sizes, strict=True)]


def pretended(kernels: list[Features], noise: float = 0.03, seed: int = 0) -> list[float]:
    """Times of a machine that differs from the analytic model in ways trees can learn."""
    dice = np.random.default_rng(seed)
    base = AnalyticModel()
    return [
        base.nanoseconds(kernel)
        * (1.3 if kernel.weight_bytes > 100_000 else 0.9)
        * math.exp(noise * dice.standard_normal())
        for kernel in kernels
    ]
