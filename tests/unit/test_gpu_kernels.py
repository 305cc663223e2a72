"""Kernels for GPUs: plain sums against what an OpenCL device computes, at borders and odd channels.

Where the device is a CPU (PoCL), it runs the kernels of GPUs here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET
from helpers.gpu_checks import H100, LARGE, WITHOUT_LOCAL, check, described_gpu, needs_device
from helpers.relax_helpers import module, random_const, random_inputs, run
from helpers.rounding import assert_rounded
from tvm import relax
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.plan.cost.generic_features import from_json, to_json
from tvm_stretch.plan.cost.prediction import AnalyticModel
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.window import WindowConfig
from tvm_stretch.targets.kernels.features import EpilogueWork
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.template import choose, configurations
from tvm_stretch.targets.opencl.kernels import conv as gpu_conv
from tvm_stretch.targets.opencl.kernels import window as gpu_window
from tvm_stretch.targets.opencl.kernels import winograd as gpu_winograd
from tvm_stretch.targets.opencl.kernels.base import gpu_candidates
from tvm_stretch.targets.opencl.kernels.conv import (
    GroupConvConfig,
    group_conv_candidates,
    group_conv_cycles,
    tiled,
)
from tvm_stretch.targets.opencl.kernels.dense import RowConfig
from tvm_stretch.targets.opencl.kernels.group_features import (
    GroupConvFeatures,
    GroupWinogradFeatures,
)
from tvm_stretch.targets.opencl.kernels.item_conv import ItemConvConfig
from tvm_stretch.targets.opencl.kernels.machine import FAMILIES, GpuMachine, Winners, family_of
from tvm_stretch.targets.opencl.kernels.tiles import Tile, tiles_of
from tvm_stretch.targets.opencl.kernels.window import GroupWindowConfig, choose_group_window
from tvm_stretch.targets.opencl.kernels.winograd import (
    GroupWinogradConfig,
    group_winograd_candidates,
    group_winograd_cycles,
    with_tile,
)
from tvm_stretch.targets.opencl.opencl import OpenCLDevice, opencl_processor


def check_rounded(mod: tvm.IRModule) -> None:
    """As `check`, but within the rounding that Winograd's transforms explain."""
    inputs = random_inputs(mod)
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    assert_rounded(mod, inputs, ts.compile(mod, [processor])(*inputs), run(mod, *inputs)[0])


@contextmanager
def tile_of(*numbers: int, images: int = 0) -> Iterator[None]:
    """Convolutions get this tile, and none is Winograd's; ``images`` operands are in images."""

    def chosen(layer: ConvConfig, _gpu: GpuMachine) -> ConvConfig:
        return tiled(layer, Tile(*numbers), images)

    configurations.cache_clear()
    with (
        patch.object(gpu_conv, "choose_group_conv", chosen),
        patch.object(gpu_winograd, "group_winograd_candidates", lambda *_: ()),
    ):
        yield
    configurations.cache_clear()


def convolution(
    shape: tuple[int, ...], out: int, kernel: int, *, residual: bool = False, **attrs: Any
) -> tvm.IRModule:
    """A convolution with bias, perhaps something added, and relu."""
    weight = random_const(out, shape[1] // attrs.get("groups", 1), kernel, kernel)
    bias = random_const(1, out, 1, 1)

    def build(x: relax.Expr, *more: relax.Expr) -> relax.Expr:
        y = relax.op.add(relax.op.nn.conv2d(x, weight, **attrs), bias)
        return relax.op.nn.relu(relax.op.add(y, more[0]) if more else y)

    return module(build, shape, *([(shape[0], out, *shape[2:])] if residual else []))


@pytest.mark.variants(2)
@needs_device
@pytest.mark.parametrize(
    ("mod", "tile"),
    [
        # down, across, pixels, quads, depth, slices, splits
        (convolution((1, 3, 13, 17), 10, 3, strides=2, padding=1), (8, 2, 2, 1, 2, 1, 1)),
        (convolution((2, 20, 9, 7), 24, 3, padding=1, residual=True), (8, 2, 1, 2, 2, 4, 1)),
        (convolution((1, 36, 7, 7), 68, 1), (16, 4, 2, 1, 1, 2, 3)),
        (convolution((1, 12, 8, 9), 24, 3, strides=2, padding=(0, 1, 1, 0)), (8, 2, 1, 1, 8, 2, 2)),
        (convolution((1, 8, 9, 9), 8, 3, padding=2, dilation=2), (32, 2, 4, 1, 1, 1, 1)),
        (convolution((1, 32, 10, 10), 64, 3, padding=1, groups=2), (8, 4, 1, 2, 2, 2, 1)),
        (convolution((1, 10, 6, 6), 15, 3, padding=1, groups=5), (8, 1, 1, 1, 1, 1, 2)),
        (convolution((3, 16, 12, 5), 33, 1, strides=2), (8, 8, 8, 2, 2, 1, 1)),
    ],
)
def test_convolutions_of_groups(mod: tvm.IRModule, tile: tuple[int, ...]) -> None:
    with tile_of(*tile):
        check(mod)


SPLIT = (8, 2, 2, 1, 1, 2, 2)
"""A tile: down, across, pixels, quads, depth, slices, splits."""


def shared() -> tvm.IRModule:
    """A convolution to which its own input is added: the epilogue reads single numbers of it."""
    weight = random_const(8, 8, 3, 3)
    return module(lambda x: relax.op.add(relax.op.nn.conv2d(x, weight, padding=1), x), (1, 8, 7, 6))


@needs_device
@pytest.mark.parametrize(
    ("mod", "images", "read"),
    [
        (convolution((1, 3, 9, 7), 10, 3, padding=1), 2, 1),  # no quads in a plain image
        (convolution((1, 20, 9, 7), 24, 3, padding=1, residual=True), 1, 1),
        (convolution((2, 20, 9, 7), 24, 3, padding=1, residual=True), 2, 2),
        (shared(), 2, 1),
    ],
)
def test_operands_in_images(mod: tvm.IRModule, images: int, read: int) -> None:
    with tile_of(*SPLIT, images=images):
        processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
        source = ts.compile(mod, [processor]).module.imports[1].inspect_source()
        assert len(re.findall(r"#define tvm_stretch_pixel_", source)) == read
        check(mod)


def test_gpus_that_have_images() -> None:
    """Adreno reads images best, if they can view what its buffers hold; others are measured."""
    adreno = OpenCLDevice("gpu", "QUALCOMM Adreno(TM) 640", image_pixels=2**27)
    assert (adreno.machine.has_images, adreno.machine.images) == (True, 2)
    few = replace(adreno, image_pixels=2**16).machine
    assert (few.has_images, few.images) == (False, 0)
    others = {"AMD Radeon": (True, 0), LARGE.name: (False, 0)}  # to be measured; of no use
    for name, expected in others.items():
        gpu = replace(adreno, name=name).machine
        assert (gpu.has_images, gpu.images) == expected
    window = WindowConfig("depthwise", 1, 32, (14, 14), (3, 3), (1, 1), (1, 1, 1, 1), lanes=4)
    for found in (
        group_conv_candidates(layer(SHAPES[0]), adreno.machine, 1)[0],
        gpu_candidates(window, adreno.machine, 1)[0],
    ):
        assert isinstance(found, GroupConvConfig | GroupWindowConfig)
        assert found.images == 2


@contextmanager
def winograd_of(tile: int, *numbers: int) -> Iterator[None]:
    """3x3 layers become Winograd convolutions with tiles of this side and this product."""

    def chosen(layer: ConvConfig, _gpu: GpuMachine, _count: int) -> tuple[GroupWinogradConfig, ...]:
        return (with_tile(taken(GroupWinogradConfig, layer, tile=tile), Tile(*numbers)),)

    configurations.cache_clear()
    with (
        patch.object(gpu_winograd, "group_winograd_candidates", chosen),
        patch.object(gpu_winograd, "group_winograd_cycles", lambda *_: 0.0),
    ):
        yield
    configurations.cache_clear()


@needs_device
@pytest.mark.parametrize("tile", [pytest.param(2, marks=pytest.mark.full), 4])
@pytest.mark.parametrize(
    ("mod", "cut"),
    [
        (convolution((2, 16, 9, 7), 24, 3, padding=1, residual=True), (8, 2, 1, 1, 1, 1, 2)),
        (convolution((1, 20, 12, 12), 64, 3, padding=(0, 1, 1, 0)), (8, 4, 2, 2, 2, 2, 1)),
        (convolution((1, 30, 10, 10), 45, 3, padding=1, groups=5), (8, 1, 2, 1, 2, 1, 1)),
        (convolution((1, 16, 8, 6), 8, 3), (8, 2, 1, 1, 1, 1, 1)),
    ],
)
def test_winograd(mod: tvm.IRModule, cut: tuple[int, ...], tile: int) -> None:
    with winograd_of(tile, *cut):
        processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
        nodes = ts.compile(mod, [processor]).graph.nodes
        assert any("winograd" in node.kernel for node in nodes)
        check_rounded(mod)


@needs_device
@pytest.mark.parametrize("device", [LARGE, WITHOUT_LOCAL])
def test_what_the_model_chooses(device: OpenCLDevice) -> None:
    check(convolution((1, 24, 15, 14), 30, 3, padding=1, residual=True), device)


@needs_device
@pytest.mark.parametrize(("channels", "outputs"), [(130, 51), (64, 8), (3, 5)])
def test_a_row(channels: int, outputs: int) -> None:
    weight, bias = random_const(channels, outputs), random_const(1, outputs)
    check(module(lambda x: relax.op.add(relax.op.matmul(x, weight), bias), (1, channels)))


@needs_device
def test_a_row_of_few_channels_lies_in_no_blocks() -> None:
    check(convolution((1, 1, 1, 1), 4, 1))


@contextmanager
def window_of(tile: tuple[int, int], items: int, images: int = 0) -> Iterator[None]:
    """Windows get this tile; ``images`` operands are in images."""

    def chosen(layer: WindowConfig, gpu: GpuMachine) -> WindowConfig:
        found = choose_group_window(layer, gpu)
        return replace(found, tile=tile, group_items=items, images=images)

    configurations.cache_clear()
    with patch.object(gpu_window, "choose_group_window", chosen):
        yield
    configurations.cache_clear()


@pytest.mark.variants(2)
@needs_device
@pytest.mark.parametrize(
    ("kernel", "attrs", "tile"),
    [
        (3, {"padding": 1}, (1, 1)),
        (3, {"padding": 1, "strides": 2}, (2, 2)),
        (5, {"padding": 2, "strides": (1, 2)}, (1, 3)),
        (3, {"padding": 2, "dilation": 2}, (4, 1)),
        (9, {"padding": 4}, (1, 1)),
    ],
)
def test_depthwise(kernel: int, attrs: dict[str, Any], tile: tuple[int, int]) -> None:
    with window_of(tile, 32):
        check(convolution((2, 21, 11, 10), 21, kernel, groups=21, **attrs))


@needs_device
@pytest.mark.parametrize("images", [1, 2])
def test_windows_of_images(images: int) -> None:
    """A depthwise layer reads its weights as an image, then its input too, as the pool does."""
    weight = random_const(21, 1, 3, 3)

    def build(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, weight, groups=21, padding=1))
        return relax.op.nn.max_pool2d(y, 3, padding=1)

    mod = module(build, (2, 21, 11, 10))
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    with window_of((2, 1), 32, images):
        source = ts.compile(mod, [processor]).module.imports[1].inspect_source()
        assert len(re.findall(r"#define tvm_stretch_pixel_", source)) == {1: 1, 2: 3}[images]
        check(mod)


@pytest.mark.variants(2)
@needs_device
@pytest.mark.parametrize("tile", [(1, 1), (2, 3)])
@pytest.mark.parametrize(
    ("pool", "attrs"),
    [
        ("max_pool2d", {"pool_size": 3, "strides": 2, "padding": 1}),
        ("max_pool2d", {"pool_size": 2, "strides": 2, "ceil_mode": True}),
        ("avg_pool2d", {"pool_size": 3, "strides": 1, "padding": 1}),
        ("avg_pool2d", {"pool_size": 3, "strides": 2, "padding": 1, "count_include_pad": True}),
    ],
)
def test_pooling(pool: str, attrs: dict[str, Any], tile: tuple[int, int]) -> None:
    weight = random_const(12, 12, 1, 1)

    def build(x: relax.Expr) -> relax.Expr:
        return getattr(relax.op.nn, pool)(relax.op.nn.conv2d(x, weight), **attrs)

    with window_of(tile, 64):
        check(module(build, (1, 12, 9, 11)))


@needs_device
@pytest.mark.parametrize("shape", [(2, 3, 197), (5, 8), (2, 1100), (3, 7), (2, 4, 6, 33)], ids=str)
def test_softmax(shape: tuple[int, ...]) -> None:
    """Rows of less than 8 numbers take TVM's rules."""
    check(module(lambda x: relax.op.multiply(relax.op.nn.softmax(x), relax.const(3.0)), shape))


@needs_device
@pytest.mark.parametrize("size", [(20, 37), (3, 4)], ids=str)
def test_means_of_feature_maps_are_shared_by_work_items(size: tuple[int, int]) -> None:
    """Images of more and of fewer pixels than a group has items, and a last block of 2 channels."""
    weight = random_const(10, 3, 3, 3)

    def build(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.conv2d(x, weight, padding=1)
        return relax.op.sigmoid(relax.op.mean(y, [2, 3], keepdims=True))

    check(module(build, (2, 3, *size)), replace(LARGE, max_group_size=100))


def test_a_sum_has_as_many_items_as_pay_and_fit() -> None:
    assert [H100.sum_items(pixels) for pixels in (1, 49, 784, 12544)] == [32, 32, 128, 256]
    assert replace(H100, max_group_items=100).sum_items(12544) == 64
    assert replace(H100, local_bytes=1024).sum_items(12544) == 0
    assert replace(H100, local_on_chip=False).sum_items(49) == 0


@needs_device
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize(("shape", "kernels"), [((1, 7, 48), 1), ((2, 3, 5), 0)])
def test_normalisation_is_one_kernel(
    shape: tuple[int, ...], kernels: int, is_centred: bool, inverse: bool
) -> None:
    """Rows of less than 8 numbers take TVM's rules. RMSNorm is not centred."""
    scale, shift = random_const(shape[-1]), random_const(shape[-1])

    def build(x: relax.Expr) -> relax.Expr:
        mean = relax.op.mean(x, [-1], keepdims=True)
        apart = relax.op.subtract(x, mean) if is_centred else x
        variance = relax.op.mean(relax.op.multiply(apart, apart), [-1], keepdims=True)
        root = relax.op.sqrt(relax.op.add(variance, relax.const(1e-6)))
        factor = relax.op.divide(relax.const(1.0), root)
        y = relax.op.multiply(apart, factor) if inverse else relax.op.divide(apart, root)
        return relax.op.add(relax.op.multiply(y, scale), shift)

    mod = module(build, shape)
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    nodes = ts.compile(mod, [processor]).graph.nodes
    assert sum("group_norm" in node.kernel for node in nodes) == kernels
    assert len(nodes) == 1 or not kernels
    check(mod)


@needs_device
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 37, 20), (3, 20, 33)),
        ((2, 1, 16, 32), (1, 3, 32, 40)),
        ((5, 7), (7, 3)),
        ((70, 18), (18, 5)),
    ],
    ids=str,
)
def test_products_of_computed_matrices(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    half = relax.const(0.5)
    check(module(lambda x, y: relax.op.multiply(relax.op.matmul(x, y), half), a, b))


@needs_device
def test_a_matrix_by_itself() -> None:
    check(module(lambda x: relax.op.matmul(x, x), (2, 9, 9)))


@needs_device
def test_dense_layers_of_several_rows_need_no_blocks() -> None:
    """Bias, activation and what is added stay in the kernels of the products."""
    first, second = random_const(24, 40), random_const(40, 24)
    bias = random_const(40)

    def build(x: relax.Expr) -> relax.Expr:
        y = relax.op.nn.gelu(relax.op.add(relax.op.matmul(x, first), bias))
        return relax.op.add(relax.op.matmul(y, second), x)

    mod = module(build, (13, 24))
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    assert len(ts.compile(mod, [processor]).graph.nodes) == 2
    check(mod)
    check(mod, WITHOUT_LOCAL)


@needs_device
def test_what_is_added_to_a_stack_of_rows_is_part_of_the_product() -> None:
    weight = random_const(24, 24)

    def build(x: relax.Expr) -> relax.Expr:
        y = relax.op.reshape(relax.op.matmul(relax.op.reshape(x, (13, 24)), weight), (1, 13, 24))
        return relax.op.nn.softmax(relax.op.add(x, y))

    mod = module(build, (1, 13, 24))
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    assert len(ts.compile(mod, [processor]).graph.nodes) == 2
    check(mod)


@needs_device
def test_softmax_of_special_values() -> None:
    x = np.random.default_rng(0).standard_normal((5, 40), "float32")
    x[0, 3], x[1, 38], x[2, 0], x[3] = np.nan, np.inf, -np.inf, -np.inf
    x[4, :20] = -1e4
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    result = ts.compile(module(lambda x: relax.op.nn.softmax(x), x.shape), [processor])(x)
    with np.errstate(all="ignore"):
        power = np.exp(x - x.max(-1, keepdims=True))
        expected = power / power.sum(-1, keepdims=True)
    np.testing.assert_allclose(result, expected, rtol=3e-6, atol=1e-9)


# --- the choice -----------------------------------------------------------------------------------

SHAPES = (
    ConvShape(1, 64, (56, 56), 64, (3, 3), (1, 1), (1, 1, 1, 1)),
    ConvShape(1, 512, (7, 7), 512, (3, 3), (1, 1), (1, 1, 1, 1)),
    ConvShape(1, 3, (224, 224), 64, (7, 7), (2, 2), (3, 3, 3, 3)),
    ConvShape(1, 168, (28, 28), 168, (3, 3), (1, 1), (1, 1, 1, 1), groups=7),
    ConvShape(16, 256, (14, 14), 1024, (1, 1)),
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limits", [(1024, 48), (256, 32), (128, 8)])
def test_choices_stay_within_limits(shape: ConvShape, limits: tuple[int, int]) -> None:
    items, kibibytes = limits
    gpu = GpuMachine(8, max_group_items=items, local_bytes=kibibytes * 1024)
    machine = VectorMachine(4, 32, False, 2**20, 1, gpu=gpu)
    config = choose(shape, machine, 1 if shape.in_channels == 3 else 4)
    if isinstance(config, GroupWinogradConfig):
        config = config.product
    assert isinstance(config, GroupConvConfig)
    assert config.group_items <= items
    # sums that do not fit into registers took 40 times as long on an H100
    assert 4 * config.pixels * config.item_quads * config.group_items <= gpu.unit_registers
    assert config.local_bytes <= gpu.local_bytes


def layer(shape: ConvShape) -> ConvConfig:
    return taken(ConvConfig, shape, lanes=4, data_block=4, oc_blocks=1, pixels=1)


def test_few_outputs_are_shared_among_many_items() -> None:
    """A layer of 49 pixels must reach all units of a large GPU."""
    config = group_conv_candidates(layer(SHAPES[1]), H100, 1)[0]
    assert isinstance(config, GroupConvConfig)
    groups = config.tiles * config.out_groups * config.splits
    assert groups >= 100
    assert config.slices * config.splits >= 4


def test_many_outputs_are_not() -> None:
    config = group_conv_candidates(layer(SHAPES[4]), H100, 1)[0]
    assert isinstance(config, GroupConvConfig)
    assert config.splits == 1
    assert config.pixels * config.item_quads >= 8


def test_candidates_are_sorted_by_the_model() -> None:
    found = group_conv_candidates(layer(SHAPES[0]), H100, 20)
    cycles = [group_conv_cycles(config, H100) for config in found]
    assert cycles == sorted(cycles)
    assert len(set(found)) == 20


def test_rows_and_devices_without_local_memory_have_their_own() -> None:
    row = layer(ConvShape(1, 1280, (1, 1), 1000, (1, 1)))
    assert isinstance(group_conv_candidates(row, H100, 1)[0], RowConfig)
    mali = replace(H100, local_on_chip=False)
    assert isinstance(group_conv_candidates(row, mali, 1)[0], ItemConvConfig)
    tiny = GpuMachine(1, max_group_items=1, local_bytes=0)
    assert isinstance(group_conv_candidates(layer(SHAPES[0]), tiny, 1)[0], ItemConvConfig)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA"),
        ("QUALCOMM Adreno(TM) 640", "Adreno"),
        ("QUALCOMM Adreno(TM) 530", "Adreno 5xx"),
        ("Mali-G76", "Mali Bifrost"),
        ("Mali-G72", "Mali Bifrost, narrow"),
        ("Mali-G78 r0p1", "Mali Valhall"),
        ("Immortalis-G720", "Mali Valhall and 5th generation"),
        ("Samsung Xclipse 920", "Xclipse"),
        ("PowerVR B-Series BXM-8-256", "PowerVR"),
        ("Intel(R) Iris(R) Xe Graphics", "Intel"),
        ("AMD Radeon RX 7900", "AMD"),
    ],
)
def test_families_by_name(name: str, family: str) -> None:
    found = family_of(name)
    assert found is not None
    assert found.name == family


def test_nothing_is_assumed_of_other_names() -> None:
    assert family_of("a GPU of next year") is None
    assert all(family.source for family in FAMILIES)


def test_code_of_a_convolution() -> None:
    """Vectors are loaded whole, and one barrier stands between a slab and the next."""
    with tile_of(8, 4, 2, 1, 2, 1, 1):
        processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
        model = ts.compile(convolution((1, 16, 8, 8), 16, 3, padding=1), [processor])
    source = model.module.imports[1].inspect_source()
    (text,) = re.findall(
        r"^static void fused_conv2d\w*_work\([^)]*\) \{\n(.*?)^\}", source, re.M | re.S
    )
    assert text.count("barrier(CLK_LOCAL_MEM_FENCE)") == 2
    assert "*(__global const float4*)" in text
    assert "tvm_stretch_store_float4(" in text
    assert not re.search(r"vload4\(0, \w+_ptr \+ .*w_ptr", text)


def test_sums_of_windows_are_split_where_the_device_did_so() -> None:
    """Measured on an H200: 20.1 us with 16 splits, 30.3 with none, of 512 channels of 7x7."""
    shape = ConvShape(1, 512, (14, 14), 512, (3, 3), (2, 2), (1, 1, 1, 1))
    machine = VectorMachine(4, 32, False, 1 << 20, 1, gpu=H100)
    chosen = choose(shape, machine, 4)
    assert isinstance(chosen, GroupConvConfig)
    assert chosen.splits == 16


def test_winners_do_not_change_what_the_model_proposes() -> None:
    layer = taken(
        ConvConfig,
        ConvShape(1, 64, (14, 14), 96, (1, 1)),
        **{"lanes": 4, "data_block": 4, "oc_blocks": 1, "pixels": 1},
    )
    other = group_conv_candidates(layer, H100, 3)[2]
    tuned = replace(H100, winners=Winners({layer: other}))
    assert tiles_of(layer, tuned) is tiles_of(layer, H100)


MAXIMA = {
    "relu": lambda x: relax.op.nn.relu(x),
    "clip": lambda x: relax.op.clip(x, 0, 6),
    "pool": lambda x: relax.op.nn.max_pool2d(x, [2, 2]),
    "softmax": lambda x: relax.op.nn.softmax(x),
    "rows": lambda x: relax.op.max(x, [3]),
    "all": lambda x: relax.op.min(x),
    "two": lambda x: relax.op.maximum(x, relax.op.exp(x)),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize("name", MAXIMA)
def test_maxima_do_not_rely_on_what_drivers_make_of_nan(name: str, kind: str) -> None:
    """OpenCL leaves `max` of NaN open, and NVIDIA's drops it; comparisons are those of IEEE 754."""
    mod = module(MAXIMA[name], (1, 4, 3, 70))
    device = LARGE if kind == "gpu" else OpenCLDevice("cpu")
    source = ts.compile(mod, [described_gpu(device)]).module.imports[1].inspect_source()
    assert re.search(r"\btvm_stretch_best_m(?:ax|in)_float\d*\((?!float)", source)  # a call
    assert not re.search(r"\bf?m(?:ax|in)\(", source)
    wins = "a > b || a != a ? a : b" if kind == "gpu" else "a > b ? a : b"
    assert f"float tvm_stretch_best_max_float(float a, float b) {{ return {wins}; }}" in source


@needs_device
@pytest.mark.parametrize("tile", [(1, 1), (2, 2)])
def test_maxima_let_nan_through(tile: tuple[int, int]) -> None:
    weight = relax.const(np.eye(4, dtype="float32").reshape(4, 4, 1, 1))

    def build(x: relax.Expr) -> relax.Expr:
        return relax.op.nn.max_pool2d(relax.op.nn.conv2d(x, weight), pool_size=2, strides=2)

    mod = module(build, (1, 4, 4, 4))
    x = np.zeros((1, 4, 4, 4), "float32")
    x[0, :, 1, 2] = np.nan
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), LARGE)
    with window_of(tile, 64):
        result = ts.compile(mod, [processor])(x)
    assert np.isnan(result[0, :, 0, 1]).all()
    assert np.isfinite(result[0, :, 1]).all()


def test_features_of_a_convolution_are_those_of_the_model() -> None:
    machine = VectorMachine(4, 32, False, 1 << 20, 1, gpu=H100)
    plain = ConvConfig.smallest(SHAPES[0], machine, 4, exact=False)
    config = tiled(plain, Tile(8, 4, 2, 1, 2, 4, 2))
    found = config.work(EpilogueWork(), machine, 4)
    assert isinstance(found, GroupConvFeatures)
    assert from_json(to_json(found)) == found
    assert found.group_items == 8 * 4 * 4
    assert found.work_groups % 2 == 0
    whole = 2 * config.batch * config.out_size[0] * config.out_size[1] * config.out_channels
    assert found.split_numbers >= whole
    phases = found.phases()
    waits = math.hypot(phases["busy"], phases["waiting"])
    assert phases["slabs"] == pytest.approx(max(waits, phases["moved"]))
    core = config.work(EpilogueWork(), replace(machine, gpu=None), 4)
    assert core.family == "conv"  # a core that takes over computes in loops


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_winograd_pays_where_there_are_many_pixels(shape: ConvShape) -> None:
    """64 channels take 69 instead of 109 us of 16 images on an H100, 17 instead of 15 of one."""
    machine = VectorMachine(4, 32, False, 2**20, 1, gpu=H100)
    many = choose(replace(shape, batch=16), machine, 4)
    assert isinstance(many, GroupWinogradConfig)
    assert many.tile == 4
    assert isinstance(choose(replace(SHAPES[0], in_size=(28, 28)), machine, 4), GroupConvConfig)
    exact = replace(shape, batch=16, exact=True)
    assert isinstance(choose(exact, machine, 4), GroupConvConfig)
    plain = ConvConfig.smallest(exact, machine, 4, exact=False)
    tuned = replace(machine, gpu=replace(H100, winners=Winners({plain: many})))
    assert isinstance(choose(exact, tuned, 4), GroupConvConfig)
    assert choose(replace(exact, exact=False), tuned, 4) == many


def test_features_of_winograd() -> None:
    machine = VectorMachine(4, 32, False, 1 << 20, 1, gpu=H100)
    plain = ConvConfig.smallest(SHAPES[0], machine, 4, exact=False)
    large, small = group_winograd_candidates(plain, H100, 1)
    assert (large.tile, small.tile) == (4, 2)
    found = large.work(EpilogueWork(), machine, 4)
    assert isinstance(found, GroupWinogradFeatures)
    assert from_json(to_json(found)) == found
    assert found.plane_numbers == 36 * 14 * 14 * 64
    core = large.work(EpilogueWork(), replace(machine, gpu=None), 4)
    assert core is not None
    assert core.family == "winograd"
    assert group_winograd_cycles(large, H100) > 2 * 9250  # two more launches
    huge = replace(plain, in_size=(1024, 1024))
    assert not group_winograd_candidates(huge, H100, 1)  # its planes take 600 MB


def test_predictions_are_of_the_gpu() -> None:
    """A layer takes the time of its multiply-adds or more, and less on a GPU with more units."""
    small, large = (
        replace(LARGE, name="a GPU", compute_units=units, max_group_size=256) for units in (2, 32)
    )
    found = []
    for device in (small, large):
        processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), device)
        machine = processor.machine
        assert machine.gpu is not None
        config = choose(SHAPES[4], machine, 4)
        features = config.work(EpilogueWork(), machine, 4)
        speed = processor.speed
        found.append(AnalyticModel(speed).nanoseconds(features) - speed.start_ns)
        assert found[-1] >= 0.9 * features.flops / (16 * speed.cycles_per_ns)
    assert 3 < found[0] / found[1] < 64
