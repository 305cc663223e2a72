"""Sums lie in registers by construction: no template takes memory from the heap for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.lowered import heap_buffers, winograd_of_tile
from tvm import te, tirx

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.cpu.kernels.winograd import (
    WinogradConfig,
    WinogradWeight,
)
from tvm_stretch.targets.kernels.layers import ConvShape, SoftmaxShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose

AVX2 = VectorMachine(8, 16, False, 512 * 1024, 1)
AVX512 = VectorMachine(16, 32, False, 1024 * 1024, 1)
NEON = VectorMachine(4, 32, True, 512 * 1024, 1)
MACHINES = [AVX2, AVX512, NEON]


def kernel(machine: VectorMachine, out: te.Tensor, *operands: te.Tensor) -> tirx.PrimFunc:
    return schedule_kernel(te.create_prim_func([*operands, out]), machine)


@pytest.mark.variants(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kernel_size, stride", [(1, 1), (3, 1), (3, 2), (7, 2)])
def test_direct_convolution(machine: VectorMachine, kernel_size: int, stride: int) -> None:
    pad = kernel_size // 2
    channels = 3 if kernel_size == 7 else 64
    shape = ConvShape(
        1, channels, (28, 28), 64, (kernel_size,) * 2, (stride,) * 2, (pad,) * 4
    )  # fmt: skip
    config = choose(shape, replace(machine), 1 if channels == 3 else machine.lanes)
    if isinstance(config, WinogradConfig):
        config = ConvConfig(
            **vars(shape), lanes=machine.lanes, data_block=machine.lanes, oc_blocks=2, pixels=7
        )
    image = (1, config.in_blocks, 28, 28)
    data = te.placeholder(image + ((machine.lanes,) if channels > 3 else ()), name="data")
    weight = te.placeholder(config.weight_shape, name="weight")
    out = config.meaning(data, weight)
    assert heap_buffers(kernel(machine, out, data, weight)) == 0


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("tile", [2, 4])
def test_winograd(machine: VectorMachine, tile: int) -> None:
    shape = ConvShape(1, 64, (13, 13), 64, (3, 3), padding=(1, 1, 1, 1))
    config = winograd_of_tile(shape, machine, tile)
    lanes = machine.lanes
    data = te.placeholder((1, 64 // lanes, 13, 13, lanes), name="data")
    weight = te.placeholder((64, 64, 3, 3), name="weight")
    packed = te.placeholder(config.weight_shape, name="packed")
    whole = config.meaning(data, packed)
    packing = taken(WinogradWeight, config).meaning(weight)
    assert heap_buffers(kernel(machine, packing, weight)) == 0
    # the planes of a band and their products are as large as the second-level cache allows
    assert heap_buffers(kernel(machine, whole, data, packed)) == 2


@pytest.mark.variants(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("columns, buffers", [(197, 0), (1000, 0), (50_000, 1)])
def test_softmax(machine: VectorMachine, columns: int, buffers: int) -> None:
    config = choose(SoftmaxShape((4, columns), -1), machine)
    assert config is not None
    data = te.placeholder((4, columns), name="data")
    out = config.meaning(data)
    assert heap_buffers(kernel(machine, out, data)) == buffers


def test_threads_take_memory_for_planes_once() -> None:
    machine = replace(AVX2, threads=2)
    shape = ConvShape(1, 64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1))
    config = winograd_of_tile(shape, machine, 4)
    data = te.placeholder((1, 8, 56, 56, 8), name="data")
    packed = te.placeholder(config.weight_shape, name="packed")
    whole = config.meaning(data, packed)
    text = kernel(machine, whole, data, packed).script()
    threads, taken, tasks = (text.index(word) for word in ("T.parallel(", "alloc", "for task"))
    assert threads < taken < tasks


@pytest.mark.variants(3)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    "kind, size, stride",
    [("depthwise", 3, 1), ("depthwise", 5, 2), ("max", 3, 2), ("avg", 7, 1), ("avg", 2, 2)],
)
def test_windows(machine: VectorMachine, kind: str, size: int, stride: int) -> None:
    lanes, pad = machine.lanes, size // 2
    config = WindowConfig(
        kind, 1, 2 * lanes, (28, 28), (size,) * 2, (stride,) * 2, (pad,) * 4, lanes=lanes
    )
    operands = [te.placeholder((1, 2, 28, 28, lanes), name="data")]
    weight = te.placeholder((2, size, size, lanes), name="weight")
    if kind == "depthwise":
        operands.append(weight)
    window = config.meaning(*operands)
    assert heap_buffers(kernel(machine, window, *operands)) == 0
