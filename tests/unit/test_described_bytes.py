"""What kernels read and write is counted in bytes of their own numbers."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.cpu_targets import cpu_of
from helpers.integer_networks import IntegerNetwork
from helpers.relax_helpers import module, random_const
from tvm import relax

from tvm_stretch.make.kernels import KernelLevel, kernels_alone
from tvm_stretch.make.precision import processors_in
from tvm_stretch.make.reading import Reader
from tvm_stretch.plan.search.priced_kernels import half_of
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.cpu.kernels.window import PoolFeatures, WindowFeatures
from tvm_stretch.targets.kernels.conv_features import ConvFeatures
from tvm_stretch.targets.kernels.features import Features
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.processor import Arithmetic

PIXELS = 28 * 28
ITEMS = {"float32": 4, "float16": 2, "float16+float32": 2, "uint8": 1}


def layers(x: relax.Expr) -> relax.Expr:
    """Pointwise, depthwise, 5x5, and a pool: what each of them reads and writes is known."""
    nn = relax.op.nn
    y = nn.conv2d(x, random_const(64, 64, 1, 1))
    y = nn.conv2d(y, random_const(64, 1, 3, 3), padding=1, groups=64)
    y = nn.conv2d(y, random_const(64, 64, 5, 5), padding=2)
    return nn.max_pool2d(y, [3, 3], [1, 1], [1, 1, 1, 1])


def lowered(dtype: str) -> tuple[KernelLevel, VectorMachine]:
    host = dataclasses.replace(cpu_processor(cpu_of(8), 1), arithmetic=Arithmetic(half=True))
    if dtype == "uint8":
        convs = [("conv", (k, k), 1, (k // 2,) * 4, 1, g, 64) for k, g in ((1, 1), (3, 0), (5, 1))]
        pool = ("max_pool2d", 3, 1, (1, 1, 1, 1), False, False)
        mod = IntegerNetwork(0).main([*convs, pool], (1, 64, 28, 28))
        assert mod is not None
        return kernels_alone(mod, host), host.machine
    mod = Reader(module(layers, (1, 64, 28, 28)), None, dtype).sized({}).mod
    (host,), _ = processors_in(dtype, [host], [host])
    return kernels_alone(mod, host), host.machine


@pytest.mark.parametrize("dtype", ITEMS)
def test_kernels_count_the_bytes_of_their_numbers(dtype: str) -> None:
    level, machine = lowered(dtype)
    item, found = ITEMS[dtype], []
    for group in level.graph.groups:
        for kernel in level.kernels[group.name]:
            if kernel.anchored is None:
                continue
            read, written = item, {item}
            if dtype == "uint8":  # without VNNI, the kernel before a convolution writes int16
                read = 2 if isinstance(kernel.features, ConvFeatures) else 1
                written = {1, 2}
            check(kernel.features, read, written)
            halves = half_of(group, [kernel], "outputs", machine)
            assert halves is not None and [half.item_bytes for half in halves[0]] == [read]
            found.append(kernel.features)
    assert len(found) == 4


def check(kernel: Features, item: int, written: set[int]) -> None:
    values = 64 * PIXELS
    # integers read an image with its padding, biases and factors
    constants = item * (64 * (32 * 32 - PIXELS) + 1024) if 1 in written else 0
    assert kernel.item_bytes == item
    assert item * values <= kernel.in_bytes <= item * values + constants
    if isinstance(kernel, PoolFeatures):
        assert kernel.out_bytes in (item * values, 4 * values)  # the result is float32 again
        return
    assert isinstance(kernel, ConvFeatures | WindowFeatures)
    taps = kernel.kernel_height_taps * kernel.kernel_width_taps
    inputs = 1 if isinstance(kernel, WindowFeatures) else 64
    assert kernel.out_bytes in {one * values for one in written}
    assert kernel.weight_bytes == item * 64 * inputs * taps
    least = values + kernel.out_bytes / item
    assert least <= kernel.device_work().values <= least + constants
