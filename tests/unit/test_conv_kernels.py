"""The convolution templates compute what their plain sums say, for any shape and machine."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx, topi

from tvm_stretch.targets.cpu.kernels.conv import ConvConfig
from tvm_stretch.targets.cpu.kernels.conv_nest import ConvNest
from tvm_stretch.targets.cpu.kernels.conv_tiles import blocking, tiles_of_piece
from tvm_stretch.targets.cpu.kernels.winograd import (
    WinogradConfig,
    WinogradWeight,
)
from tvm_stretch.targets.kernels.cycles import register_tiles
from tvm_stretch.targets.kernels.layers import ConvShape, taken
from tvm_stretch.targets.kernels.loops import balanced
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose, configurations

AVX2 = VectorMachine(8, 16, False, 512 * 1024, 1)
NEON = VectorMachine(4, 32, True, 256 * 1024, 1)
AVX512 = VectorMachine(16, 32, False, 1024 * 1024, 2)
SMALL_CACHE = VectorMachine(8, 16, False, 8 * 1024, 1)
MACHINES = [AVX2, NEON, AVX512, SMALL_CACHE]


def run(func: tirx.PrimFunc, *arrays: np.ndarray) -> np.ndarray:
    """Build ``func`` and run it; the last parameter is the output."""
    library = built(func)
    shape = [int(d) for d in func.params[-1].shape]
    out = tvm.runtime.empty(shape, "float32")
    library["kernel"](*[tvm.runtime.tensor(a) for a in arrays], out)
    return out.numpy()


def blocked(array: np.ndarray, lanes: int) -> np.ndarray:
    """NCHW -> NCHW[c], or unchanged for one lane."""
    if lanes == 1:
        return array
    n, c, h, w = array.shape
    padded = np.pad(array, ((0, 0), (0, -c % lanes), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(n, -1, lanes, h, w).transpose(0, 1, 3, 4, 2))


def convolve(x: np.ndarray, w: np.ndarray, shape: ConvShape) -> np.ndarray:
    """The definition, in float64."""
    top, left, bottom, right = shape.padding
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    (kh, kw), (sh, sw), (dh, dw) = shape.kernel, shape.stride, shape.dilation
    height, width = (
        (x.shape[2] - (kh - 1) * dh - 1) // sh + 1,
        (x.shape[3] - (kw - 1) * dw - 1) // sw + 1,
    )
    out = np.zeros((shape.batch, shape.out_channels, height, width))
    inner, outer = shape.in_channels // shape.groups, shape.out_channels // shape.groups
    for g in range(shape.groups):
        for i in range(kh):
            for j in range(kw):
                part = x[:, g * inner : (g + 1) * inner, i * dh :, j * dw :][
                    :, :, : (height - 1) * sh + 1 : sh, : (width - 1) * sw + 1 : sw
                ]
                weights = w[g * outer : (g + 1) * outer, :, i, j]
                out[:, g * outer : (g + 1) * outer] += np.einsum("nchw,oc->nohw", part, weights)
    return out


def template_result(
    config: ConvConfig | WinogradConfig,
    machine: VectorMachine,
    x: np.ndarray,
    w: np.ndarray,
    bias: np.ndarray,
    residual: np.ndarray,
) -> np.ndarray:
    """The template with a fused ``relu(conv + bias + residual)``, back in NCHW."""
    weight = te.placeholder(w.shape, name="weight")
    winograd = isinstance(config, WinogradConfig)
    if isinstance(config, WinogradConfig):
        packed = taken(WinogradWeight, config).meaning(weight)
    else:
        packed = config.pack(weight)
    packing = te.create_prim_func([weight, packed])
    packed_weight = run(schedule_kernel(packing, machine) if winograd else packing, w)

    block = config.data_block if isinstance(config, ConvConfig) else config.lanes
    data = blocked(x, block)
    operands = [te.placeholder(a.shape, name=n) for a, n in ((data, "data"), (packed_weight, "w"))]
    extra = [blocked(bias, config.lanes), blocked(residual, config.lanes)]
    b, r = (te.placeholder(a.shape, name=n) for a, n in zip(extra, ("b", "r"), strict=True))
    out = topi.nn.relu(topi.add(topi.add(config.meaning(*operands), b), r))
    kernel = schedule_kernel(te.create_prim_func([*operands, b, r, out]), machine)
    result = run(kernel, data, packed_weight, *extra)
    n, _, h, w_, _ = result.shape
    return result.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w_)[:, : bias.shape[1]]


def check(shape: ConvShape, config: ConvConfig | WinogradConfig, machine: VectorMachine) -> None:
    """Compare the template with the definition on random data."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((shape.batch, shape.in_channels, *shape.in_size), dtype="float32")
    inner = shape.in_channels // shape.groups
    w = rng.standard_normal((shape.out_channels, inner, *shape.kernel), dtype="float32")
    expected = convolve(x, w, shape)
    bias = rng.standard_normal((1, shape.out_channels, 1, 1), dtype="float32")
    residual = rng.standard_normal(expected.shape, dtype="float32")
    expected = np.maximum(expected + bias + residual, 0)
    got = template_result(config, machine, x, w, bias, residual)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@st.composite
def conv_shapes(draw: st.DrawFn) -> ConvShape:
    """Odd sizes, channels that fill no block, every attribute of a convolution."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    size = tuple(draw(st.integers(span, span + 9)) for span in spans)
    return ConvShape(
        batch=draw(st.integers(1, 2)),
        in_channels=groups * draw(st.integers(1, 20)),
        in_size=(size[0], size[1]),
        out_channels=groups * draw(st.integers(1, 20)),
        kernel=kernel,
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding=draw(st.tuples(*[st.integers(0, 3)] * 4)),
        dilation=dilation,
        groups=groups,
    )


@given(shape=conv_shapes(), machine=st.sampled_from(MACHINES), plain=st.booleans())
def test_direct_convolution_of_any_shape(
    shape: ConvShape, machine: VectorMachine, plain: bool
) -> None:
    block = 1 if plain and shape.groups == 1 else machine.lanes
    tiles = ConvConfig.smallest(shape, machine, block).tiled(register_tiles(machine))
    check(shape, min(tiles, key=lambda config: config.cycles(machine)), machine)


WINOGRAD = [
    pytest.param(machine, padding, tile, marks=() if (m + p + t) % 3 == 0 else pytest.mark.full)
    for m, machine in enumerate((AVX2, AVX512, SMALL_CACHE))
    for p, padding in enumerate(((1, 1, 1, 1), (0, 0, 0, 0), (0, 2, 1, 0)))
    for t, tile in enumerate((2, 4))
]
"""Each machine with each tile, each padding with each tile; in full all combinations."""


@pytest.mark.variants(2)
@pytest.mark.parametrize(("machine", "padding", "tile"), WINOGRAD)
def test_winograd(tile: int, padding: tuple[int, int, int, int], machine: VectorMachine) -> None:
    shape = ConvShape(2, 20, (13, 9), 37, (3, 3), padding=padding)
    config = taken(WinogradConfig, shape, lanes=machine.lanes, tile=tile, oc_blocks=2, pixels=3)
    check(shape, config, machine)


@pytest.mark.parametrize(("groups", "inner", "outer"), [(3, 24, 24), (5, 24, 40)])
def test_winograd_of_groups_that_do_not_come_out_even(groups: int, inner: int, outer: int) -> None:
    """Pairs of groups share their middle vector; the last group has no other."""
    shape = ConvShape(
        1, groups * inner, (9, 7), groups * outer, (3, 3), padding=(1, 1, 1, 1), groups=groups
    )
    every = configurations(shape, AVX512, 16, 400)
    config = next(c for c in every if isinstance(c, WinogradConfig) and c.tile == 4)
    assert (config.merged_groups, groups % 2) == (2, 1)
    check(shape, config, AVX512)


def test_winograd_is_chosen_for_groups_of_24() -> None:
    shape = ConvShape(1, 168, (28, 28), 168, (3, 3), padding=(1, 1, 1, 1), groups=7)
    assert isinstance(choose(shape, AVX512, 16), WinogradConfig)


def test_the_reduction_is_cut_where_weights_outgrow_the_cache() -> None:
    shape = ConvShape(1, 200, (7, 7), 40, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    config = choose(shape, SMALL_CACHE, SMALL_CACHE.lanes)
    check(shape, config, SMALL_CACHE)


@pytest.mark.parametrize(("threads", "width"), [(1, 211), (2, 130)])
def test_long_single_rows_are_computed_in_pieces(threads: int, width: int) -> None:
    """Whole pieces, a rest, borders, and a last group of fewer output channels."""
    machine = dataclasses.replace(SMALL_CACHE, threads=threads)
    shape = ConvShape(2, 20, (1, width), 52, (1, 3), padding=(0, 1, 0, 1))
    config = choose(shape, machine, machine.lanes)
    assert isinstance(config, ConvConfig) and config.out_blocks % config.oc_blocks
    unwritten: Any = None
    nest = ConvNest(config, blocking(config, machine), *[unwritten] * 3, machine)
    assert 0 < tiles_of_piece(nest) * config.pixels < width
    check(shape, config, machine)


def test_winograd_is_chosen_for_wide_3x3_only() -> None:
    wide = ConvShape(1, 64, (56, 56), 64, (3, 3), padding=(1, 1, 1, 1))
    assert isinstance(choose(wide, AVX2, 8), WinogradConfig)
    strided = ConvShape(1, 64, (56, 56), 64, (3, 3), stride=(2, 2), padding=(1, 1, 1, 1))
    assert isinstance(choose(strided, AVX2, 8), ConvConfig)


@pytest.mark.parametrize(
    ("in_channels", "out_channels", "width", "taps", "pixels", "oc_blocks"),
    [(64, 64, 17, 3, 6, 2), (64, 64, 14, 3, 5, 2), (192, 56, 38, 1, 3, 4), (64, 40, 16, 3, 4, 3)],
)
def test_short_runs_of_tiles_stay_in_registers(
    in_channels: int, out_channels: int, width: int, taps: int, pixels: int, oc_blocks: int
) -> None:
    padding = (taps // 2, 0, taps // 2, 0)
    shape = ConvShape(1, in_channels, (width, width), out_channels, (taps, 1), padding=padding)
    tile = {"oc_blocks": oc_blocks, "pixels": pixels}
    config = taken(ConvConfig, shape, lanes=8, data_block=8, **tile)
    data = te.placeholder((1, in_channels // 8, width, width, 8), name="data")
    weight = te.placeholder(config.weight_shape, name="w")
    out = config.meaning(data, weight)
    kernel = schedule_kernel(te.create_prim_func([data, weight, out]), AVX2)
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver3"}
    assembly = built(kernel, tvm.target.Target(target)).inspect_source("asm")
    for block in re.split(r"\n(?=\.LBB)", assembly):
        sums = block.count("vfmadd")
        assert sums < 16 or len(re.findall(r"\(%rsp\).*%ymm|%ymm.*\(%rsp\)", block)) < sums / 2


@given(total=st.integers(1, 300), largest=st.integers(1, 30))
def test_balanced_parts(total: int, largest: int) -> None:
    parts = balanced(total, largest)
    assert sum(parts) == total
    assert max(parts) <= largest
    assert max(parts) - min(parts) <= 1
    assert len(parts) == -(-total // largest)


@pytest.mark.parametrize("template", ["conv", "winograd"])
def test_what_only_the_epilogue_reads_may_come_first(template: str) -> None:
    """``relu(z) + conv(x)``: FuseOps may put the relu, and what it reads, before the anchor."""
    shape = ConvShape(1, 16, (12, 12), 16, (3, 3), padding=(1, 1, 1, 1))
    config: ConvConfig | WinogradConfig
    if template == "winograd":
        config = taken(WinogradConfig, shape, lanes=8, tile=4, oc_blocks=2, pixels=3)
    else:
        config = taken(ConvConfig, shape, lanes=8, data_block=8, oc_blocks=2, pixels=4)
    weight_shape = config.weight_shape
    image = (1, 2, 12, 12, 8)
    z, x, w = (
        te.placeholder(s, name=n) for s, n in ((image, "z"), (image, "x"), (weight_shape, "w"))
    )
    before = topi.nn.relu(z)
    out = topi.add(before, config.meaning(x, w))
    func = te.create_prim_func([z, x, w, out])
    names = [block.name_hint for block in _blocks(func)]
    last = "winograd_output" if template == "winograd" else "conv2d"
    assert names.index("compute") < names.index(last)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype="float32") for s in (image, image, weight_shape)]
    got = run(schedule_kernel(func, AVX2), *arrays)
    expected = run(func, *arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def _blocks(func: tirx.PrimFunc) -> list[tvm.s_tir.SBlock]:
    sch = tvm.s_tir.Schedule(tvm.IRModule({"main": func}))
    return [sch.get(block) for block in sch.get_child_blocks(sch.get_sblock("root"))]
