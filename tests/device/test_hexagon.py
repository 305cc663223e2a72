"""Hexagon: kernels of real instructions, run by qemu-hexagon."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tvm
from helpers.operator_checks import computed, every_value, one_by_one
from helpers.quantised_models import (
    Quantised,
    assert_as_onnx_runtime,
    integers,
    optimised,
    qdq,
    qdq_conv,
)
from helpers.relax_helpers import answers, module, random_const
from helpers.zoo_checks import quantised_network
from tvm import relax, rpc

import tvm_stretch as ts
from benchmarks import dsp
from tutorials import zoo
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.measuring.bench import Bench
from tvm_stretch.plan.measuring.samples import Sample, in_integers
from tvm_stretch.plan.measuring.workshop import Workshop
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network
from tvm_stretch.targets.hexagon.code.dsp_code import has_zig
from tvm_stretch.targets.hexagon.hexagon import VERSIONS
from tvm_stretch.targets.hexagon.kernels import hvx_window
from tvm_stretch.targets.processors import drop_absent, make_processors

needs_emulator = pytest.mark.skipif(
    shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon (qemu-user)"
)
needs_zig = pytest.mark.skipif(not has_zig(), reason="needs ziglang")
pytestmark = [needs_emulator, needs_zig]


PADDED = {"pads": [1, 1, 1, 1]}


@functools.cache
def network() -> tvm.IRModule:
    """uint8 convolution, max pool, and a second branch."""
    dice = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 8, 32), "uint8"))
    weight = relax.const(dice.integers(-128, 128, (16, 8, 3, 3)).astype("int8"))
    shift = relax.const(dice.integers(-9000, 9000, (1, 16, 1, 1)).astype("int32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, weight, padding=1, out_dtype="int32"))
            y = builder.emit(relax.op.add(y, shift))
            left = builder.emit(relax.op.nn.relu(y))
            right = builder.emit(relax.op.nn.max_pool2d(y, (3, 3), padding=1))
            out = builder.emit_output(relax.op.subtract(right, left))
        builder.emit_func_output(out)
    return builder.get()


def picture(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1, 8, 8, 32)).astype("uint8")


@functools.cache
def wanted() -> np.ndarray:
    return ts.compile(network(), "llvm", cpu_threads=1)(picture())


def test_a_whole_network(tmp_path: Path) -> None:
    """Alone on the DSP, from an artifact."""
    compiled = ts.compile(network(), ["hexagon"], cpu_threads=1)
    assert all(t.offset % 128 == 0 for t in compiled.graph.tensors if t.kind == "arena")
    compiled.export(tmp_path / "net.so")
    model = ts.load(tmp_path / "net.so")
    np.testing.assert_array_equal(model(picture()), wanted())
    state = model.health()["hexagon"]
    assert state["device"].startswith("Hexagon v66")  # emulated, or called by FastRPC
    assert state["packets"] > 1000  # it was really Hexagon
    timeline = model.timeline(repeat=1)
    assert str(timeline.execution).startswith("0 of ")
    assert {usage.processor for usage in timeline.usage if usage.kernels} == {"hexagon"}


def test_beside_the_cpu_and_opencl() -> None:
    """The convolution on the DSP, then a branch on each of the others that are here."""
    second = "opencl" if not drop_absent(["llvm", "opencl"])[1] else "cpu"
    regions = (
        PlannedRegion("stem", "hexagon", ("conv2d", "add")),
        PlannedRegion("left", "cpu", ("relu",)),
        PlannedRegion("right", second, ("max_pool2d",)),
        PlannedRegion("end", "hexagon", ("subtract",)),
    )
    targets = ["llvm", "hexagon", *(["opencl"] if second == "opencl" else [])]
    names = ("cpu", "hexagon", *(["opencl"] if second == "opencl" else []))
    model = ts.compile(network(), targets, plan=Plan(names, regions), cpu_threads=1)
    np.testing.assert_array_equal(model(picture()), wanted())
    np.testing.assert_array_equal(model.run_async(picture()).result(), wanted())
    assert model.health()["hexagon"]["regions"] == 4


def test_on_a_phone_with_an_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a phone: whether it can serve a DSP is asked there."""
    monkeypatch.setenv("TVM_STRETCH_STORE", str(tmp_path))
    phone = ts.connect(rpc.LocalSession(), "phone-with-an-emulator")
    assert "emulated by" in str(phone.describe())
    model = ts.compile(network(), [{"kind": "hexagon"}], device=phone, cpu_threads=1)
    assert model.graph.processors[1].name == "hexagon"
    np.testing.assert_array_equal(phone.load(model)(picture()), wanted())


def test_for_another_machine(tmp_path: Path) -> None:
    """Floats in vectors, of a version that has them; nothing here runs it."""

    def layers(x: relax.Expr) -> relax.Expr:
        x = relax.op.nn.conv2d(x, random_const(4, 4, 3, 3), padding=1)
        x = relax.op.nn.conv2d(relax.op.nn.relu(x), random_const(4, 1, 3, 3), groups=4)
        return relax.op.matmul(x, random_const(4, 8))

    target = {"kind": "hexagon", "mcpu": "hexagonv68", "device": "phone"}
    model = ts.compile(module(layers, (1, 4, 6, 6)), [target], cpu_threads=1)
    model.export(tmp_path / "net.so")
    with pytest.raises(ts.DeviceError, match="Hexagon v68 of phone"):
        model(np.zeros((1, 4, 6, 6), "float32"))


def test_a_network_of_floats_is_refused_with_the_reason() -> None:
    x = relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.relu(x))
        builder.emit_func_output(out)
    with pytest.raises(ts.StretchError, match="vectors of v66 hold no float32"):
        ts.compile(builder.get(), ["hexagon"], cpu_threads=1)


def test_what_quantises_is_computed_on_every_version() -> None:
    """v66 has no floats in vectors: each number alone, as ONNX Runtime and the CPU compute it."""
    scale, zero = relax.const(0.02, "float32"), relax.const(120, "uint8")
    x = relax.Var("x", relax.TensorType((1, 3, 5, 32), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.quantize(x, scale, zero, out_dtype="uint8"))
            y = builder.emit(relax.op.dequantize(y, scale, zero, out_dtype="float32"))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    data = np.random.default_rng(0).normal(size=(1, 3, 5, 32)).astype("float32")
    data[0, 0, 0, :2] = np.inf, -1e30
    want = np.clip(np.rint(data / np.float32(0.02)) + 120, 0, 255) - 120
    got = ts.compile(builder.get(), ["hexagon"], cpu_threads=1)(data)
    np.testing.assert_array_equal(got, want.astype("float32") * np.float32(0.02))


@pytest.mark.parametrize(
    "shape",
    [
        (3, 9, 8, 20, 2, 1),
        (3, 9, 5, 20, 2, 1),
        pytest.param((32, 7, 5, 20, 1, 1), marks=pytest.mark.full),
        (120, 4, 5, 120, 1, 5),  # groups share vectors, the last one is alone
        (56, 5, 4, 56, 2, 7),  # the last ones fill no vector
        (56, 5, 4, 56, 1, 7, "int8"),
    ],
)
def test_every_pixel_is_corrected(shape: tuple[Any, ...]) -> None:
    """Sums of pixels and of taps, where the last of them fill no vector: zero point 0, padded."""
    channels, rows, columns, filters, stride, groups, *signed = shape
    dice, dtype = np.random.default_rng(3), "int8" if signed else "uint8"
    low, high = (int(limit) for limit in (np.iinfo(dtype).min, np.iinfo(dtype).max))
    data = dice.integers(low, high + 1, (1, channels, rows, columns)).astype(dtype)
    inputs = channels // groups
    weight = dice.integers(-128, 128, (filters, inputs, 3, 3)).astype("int8")
    bias = dice.integers(-9000, 9000, filters).astype("int32")
    factor = (dice.uniform(0.2, 1, filters) / (375 * np.sqrt(inputs))).astype("float32")
    around = {"strides": (stride, stride), "padding": (1, 1, 1, 1), "groups": groups}
    conv = Integer("conv2d", Rounding(dtype, 0, low, high), (0,), **around)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data.shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            constants = map(relax.const, (weight, bias, factor))
            out = builder.emit_output(integer_call(builder, conv, x, *constants))
        builder.emit_func_output(out)
    (want,) = answers(builder.get(), data)
    got = ts.compile(builder.get(), ["hexagon"], cpu_threads=1)(data)
    assert np.abs(want.astype(int) - got).max() <= 1  # halves
    assert (want != got).mean() < 1e-2


def windows(cases: dict[str, tuple[int, ...]], zero: int, dtype: str) -> tvm.IRModule:
    """Depthwise convolutions beside each other (size, kernel, stride, dilation), and maxima."""
    dice, builder = np.random.default_rng(5), relax.BlockBuilder()
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    rounding, results = Rounding(dtype, zero, low, high), []
    inputs = [
        relax.Var(f"x{i}", relax.TensorType((1, 40, case[0], case[1]), dtype))
        for i, case in enumerate(cases.values())
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            for x, (_, _, kernel, stride, apart, *pool) in zip(inputs, cases.values(), strict=True):
                weight = dice.integers(-128, 128, (40, 1, kernel, kernel)).astype("int8")
                bias = dice.integers(-9000, 9000, 40).astype("int32")
                factor = (dice.uniform(0.2, 1, 40) / (400 * kernel)).astype("float32")
                padding = (apart * (kernel - 1) // 2,) * 4
                integer = Integer(
                    *("conv2d", rounding, (zero,)),
                    strides=(stride,) * 2,
                    padding=padding,
                    dilation=(apart,) * 2,
                    groups=40,
                )
                constants = map(relax.const, (weight, bias, factor))
                y = builder.emit(integer_call(builder, integer, x, *constants))
                if pool:
                    size, step, around = pool
                    y = builder.emit(
                        relax.op.nn.max_pool2d(y, (size,) * 2, (step,) * 2, (around,) * 4)
                    )
                results.append(y)
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    return builder.get()


WINDOWS = {
    "rows of whole vectors": (9, 8, 3, 1, 1, 3, 2, 1),
    "the last tile goes beyond": (7, 14, 3, 2, 1),
    "two words": (10, 11, 5, 1, 1, 3, 1, 1),
    "fewer pixels than a vector": (3, 3, 3, 1, 1),
    "taps apart": (11, 9, 3, 1, 2, 2, 2, 0),
}


MEANS = ((1, 160, 7, 7), (2, 48, 2, 3), (1, 32, 33, 32), (1, 32, 2, 2), (1, 32, 1, 3))
"""Five blocks of channels, a last pixel; two images; more than halves hold; too few pixels."""


@pytest.mark.parametrize(
    ("zero", "dtype"), [pytest.param(120, "uint8", marks=pytest.mark.full), (-3, "int8")]
)
def test_means_and_maxima_of_blocks(zero: int, dtype: str) -> None:
    """Behind a convolution, whose result is in blocks; large numbers fill the halves. Long rows."""
    limits, builder = np.iinfo(dtype), relax.BlockBuilder()
    rounding = Rounding(dtype, zero, int(limits.min), int(limits.max))
    inputs = [relax.Var(f"x{i}", relax.TensorType(s, dtype)) for i, s in enumerate(MEANS)]
    inputs.append(relax.Var("wide", relax.TensorType((1, 32, 5, 134), dtype)))
    results = []
    with builder.function("main", inputs):
        with builder.dataflow():
            for x in inputs:
                channels, rows, columns = (int(size) for size in x.ty.shape.values[1:])
                one = np.ones((channels, 1, 1, 1), "int8"), np.zeros(channels, "int32")
                constants = map(relax.const, (*one, np.ones(channels, "float32")))
                same = Integer("conv2d", rounding, (zero,), groups=channels)
                y = builder.emit(integer_call(builder, same, x, *constants))
                if columns < 100:
                    mean = Integer("mean", rounding, (zero,), (0.8713 / (rows * columns),))
                    results.append(builder.emit(integer_call(builder, mean, y)))
                    continue
                for stride in (1, 2):  # 134 and 67 columns: groups of vectors, some left, one again
                    pool = relax.op.nn.max_pool2d(y, (3, 3), (stride,) * 2, (1,) * 4)
                    results.append(builder.emit(pool))
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    dice, mod = np.random.default_rng(7), builder.get()
    data = [
        dice.integers(limits.max - 40, limits.max + 1, [int(d) for d in x.ty.shape.values])
        for x in inputs
    ]
    data = [x.astype(dtype) for x in data]
    got = ts.compile(mod, ["hexagon"], cpu_threads=1)(*data)
    for right, ours in zip(answers(mod, *data), got, strict=True):
        assert np.abs(right.astype(int) - ours).max() <= 1  # halves
        assert (right != ours).mean() < 0.02


@pytest.mark.parametrize(
    "zero, dtype", [(120, "uint8"), pytest.param(-3, "int8", marks=pytest.mark.full)]
)
def test_windows(zero: int, dtype: str) -> None:
    """What lies around the image, bands, signed pixels; maxima of columns and of rows."""
    mod = windows(WINDOWS, zero, dtype)
    dice = np.random.default_rng(6)
    limits = np.iinfo(dtype)
    data = [
        dice.integers(limits.min, limits.max + 1, [int(d) for d in p.ty.shape.values]).astype(dtype)
        for p in mod["main"].params
    ]
    with mock.patch.object(hvx_window, "_BAND_BYTES", 1500):
        got = ts.compile(mod, ["hexagon"], cpu_threads=1)(*data)
    for name, ours, right in zip(WINDOWS, got, answers(mod, *data), strict=True):
        off = np.abs(right.astype(int) - ours)
        assert off.max() <= 1, name  # halves
        assert (off > 0).mean() < 1e-2, name


def test_packets_of_kernels() -> None:
    """A profile has them, and their sum is what the DSP says it executed.

    Where threads share a kernel, the call's own does now more, now less.
    """
    model = ts.compile(network(), ["hexagon"], cpu_threads=1)
    before = model.health()["hexagon"]["packets"]
    profile = model.profile(1)
    runs = 2  # one that is not traced comes first
    each = sum(kernel.packets for kernel in profile.kernels)
    near = 0.2 if "TVM_STRETCH_TEST_FASTRPC" in os.environ else 0.01
    assert model.health()["hexagon"]["packets"] - before == pytest.approx(runs * each, rel=near)
    assert "packets" in repr(profile)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(64, 64, 16, 1), (512, 512, 7, 1), (64, 64, 16, 3)])
def test_packets_of_products(shape: tuple[int, int, int, int]) -> None:
    """At most 0.75 for each vrmpy that a convolution needs, with its rounding and stores."""
    channels, outs, size, kernel = shape
    layer = dsp.Layer("conv", channels, size, kernel, outs=outs)
    assert dsp.packets(layer) <= 0.75 * layer.vectors


@pytest.mark.full
def test_measured_by_packets(tmp_path: Path) -> None:
    """What a bench and a campaign say of an emulated DSP: packets at its clock."""
    (host, hexagon), _ = make_processors(["llvm", "hexagon"], 1)
    samples = [in_integers(Sample("conv", 32, (6, 6), 32, epilogue="relu"))]
    workshop = Workshop([hexagon, host])
    twice = [Bench(workshop).measure(workshop.samples(samples), batch=0) for _ in range(2)]
    (row, again) = ([r for r in rows if r.features.family == "integer_conv"] for rows in twice)
    assert row == again  # no clock has a part in it
    assert row[0].nanoseconds < 10_000
    assert row[0].sample == samples[0].to_json()
    lines: list[str] = []
    with mock.patch("tvm_stretch.plan.measuring.campaign.load_prior", lambda: samples):
        models = ts.tune.measure(["hexagon"], budget=0.1, cache=tmp_path, progress=lines.append)
    assert any("packets counted, 0.83 ns each, not timed" in line for line in lines)
    assert models["hexagon"].together_ratio == 1.0


@pytest.mark.parametrize(
    "version",
    [v if v in ("hexagonv65", "hexagonv75") else pytest.param(v, marks=pytest.mark.full)
     for v in VERSIONS],
)  # fmt: skip
def test_integers_on_every_version(version: str) -> None:
    """The emulator runs the code of newer ones too, as long as it has nothing but integers."""
    mod = windows({"one": (6, 6, 3, 1, 1, 2, 2, 0)}, 7, "uint8")
    data = np.random.default_rng(7).integers(0, 256, (1, 40, 6, 6)).astype("uint8")
    target = {"kind": "hexagon", "mcpu": version}
    (got,) = ts.compile(mod, [target], cpu_threads=1)(data)
    (want,) = answers(mod, data)
    assert np.abs(want.astype(int) - got).max() <= 1  # halves


@pytest.mark.full
def test_probed_by_packets(tmp_path: Path) -> None:
    """Halves that go up are no reason to refuse an operator; packets are said to be counted."""
    lines: list[str] = []
    found = ts.tune.probe(network(), "hexagon", cache=tmp_path / "v.json", progress=lines.append)
    assert not any(found.reasons.values())
    assert any("for speed, packets counted, 0.83 ns each, not timed" in line for line in lines)


_FLOATS = {"fast_style_transfer", "lstm"}
"""Instance norms are floats also in a network of 8 bits; products are added before they are
quantised, and no layer is convolved."""


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(zoo.names()) - _FLOATS))
def test_networks_of_the_zoo_alone(name: str) -> None:
    quantised, image = quantised_network(name)
    assert_as_onnx_runtime(quantised, image, ts.compile(quantised, ["hexagon"])(**image))


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["inception_v3", "mobilenet_v3_small", "pnasnet_mobile", "regnetx_1_6gf", "resnet50"]
)
def test_operators_of_the_zoo_one_by_one(name: str) -> None:
    """What the DSP computes of its own numbers, beside the CPU: a unit, of one in ten thousand."""
    quantised, image = quantised_network(name)
    mod = load_network(quantised)
    values = ts.compile(every_value(mod), ["hexagon"])(**image)
    cpu = ts.compile(one_by_one(mod), "llvm")
    given = {f"given_{v.name}": y for v, y in zip(computed(mod), values, strict=True)}
    wanted = cpu({info.name: {**image, **given}[info.name] for info in cpu.inputs})
    kinds = {operator.name: operator.kind for operator in Operators(mod["main"])}
    apart: dict[str, list[np.ndarray]] = {}
    for var, got, want in zip(computed(mod), values, wanted, strict=True):
        if got.dtype in ("uint8", "int8"):
            units = np.abs(got.astype(int) - want).ravel()
            apart.setdefault(kinds[var.name], []).append(units)
    for kind, found in apart.items():
        units = np.concatenate(found)
        assert units.max() <= 1, kind
        # means that are halves go up here (passes/average_by_sums.py), on the CPU as floats round
        assert units.mean() <= (0.06 if kind == "integer.average" else 1e-4), kind


def test_floats_are_rounded_to_even() -> None:
    """As processors round; what compiler-rt lacks of it is ours (`dsp/emulator/linux.c`)."""
    dice = np.random.default_rng(0)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.49999997, 8388607.5, 8388609.0, 3e38]
    x = np.concatenate([special, np.arange(-40, 40) / 2, dice.normal(0, 1e5, 911)])
    x = x.astype("float32")
    got = ts.compile(module(relax.op.round, x.shape), ["hexagon"])(x)
    np.testing.assert_array_equal(got, np.rint(x))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


CONVOLUTIONS = {
    "signed, of blocks that are not full": ((40, 20, 3, 7), {"dtype": "int8", **PADDED}),
    "few channels, apart": ((3, 20, 3, 11), {"zero": 7, "strides": [2, 2], **PADDED}),
    "rows of 32": ((32, 40, 3, 33), PADDED),
    "pixels apart": ((32, 24, 1, 9), {"strides": [2, 2], "zero": 200}),
    "groups that share blocks": ((48, 48, 3, 6), {"groups": 2, **PADDED}),
    "depthwise, five rows": ((18, 18, 5, 9), {"groups": 18, "pads": [2] * 4, "batch": 2}),
    "dense": ((70, 40, 1, 1), {}),
}


@pytest.mark.parametrize(
    "name",
    [n if n.startswith(("signed", "few")) else pytest.param(n, marks=pytest.mark.full)
     for n in CONVOLUTIONS],
)  # fmt: skip
def test_quantised_convolutions_of_onnx(name: str) -> None:
    """Halves may go up."""
    arguments, options = CONVOLUTIONS[name]
    model, x = qdq_conv(*arguments, **options)
    got = np.asarray(ts.compile(model, ["hexagon"], cpu_threads=1)(x)).astype(int)
    assert np.abs(got - optimised(model, x).astype(int)).max() <= 1


def test_sums_with_a_factor_for_each_pixel() -> None:
    """Averages that leave padding out."""
    x = Quantised(integers(1, 40, 6, 7), 0.0213, 3)
    y = Quantised(np.zeros(0, "uint8"), 0.0131, 20)
    model = qdq("AveragePool", [x], y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    got = np.asarray(ts.compile(model, ["hexagon"], cpu_threads=1)(x.array)).astype(int)
    assert np.abs(got - optimised(model, x.array).astype(int)).max() <= 1


def integer_network(more: bool) -> tvm.IRModule:
    """3x3 convolution with a zero point, its sum with itself; more: depthwise, pool, mean, 1x1."""
    dice = np.random.default_rng(3)

    def layer(x: relax.Expr, outs: int, kernel: int, groups: int = 1) -> relax.Call:
        channels = int(x.ty.shape.values[1])
        weight = dice.integers(-127, 128, (outs, channels // groups, kernel, kernel))
        bias = dice.integers(-9999, 9999, outs)
        size = np.sqrt(channels // groups * kernel * kernel)
        factor = dice.uniform(0.5, 1.5, outs) * 60 / (255 * 37 * size)
        constants = (weight.astype("int8"), bias.astype("int32"), factor.astype("float32"))
        integer = Integer(
            "conv2d",
            Rounding("uint8", 120, 0, 255),
            (120,),
            padding=(kernel // 2,) * 4,
            groups=groups,
        )
        return integer_call(builder, integer, x, *map(relax.const, constants))

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 36, 10, 10), "uint8"))
    total = Integer("add", Rounding("uint8", 7, 0, 255), (120, 120), (0.43, 0.61, -124.8))
    mean = Integer("mean", Rounding("uint8", 3, 0, 255), (120,), (1.3 / 25,))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(layer(x, 40, 3), name_hint="full")
            result = integer_call(builder, total, y, y)
            if more:
                y = builder.emit(result, name_hint="total")
                y = builder.emit(layer(y, 40, 3, groups=40), name_hint="depthwise")
                y = builder.emit(relax.op.nn.max_pool2d(y, (2, 2), (2, 2)), name_hint="pool")
                y = builder.emit(integer_call(builder, mean, y), name_hint="mean")
                result = layer(y, 64, 1)
            out = builder.emit_output(result, name_hint="point" if more else "total")
        builder.emit_func_output(out)
    return builder.get()


_MORE = ("depthwise", "pool", "mean", "point")


@pytest.mark.parametrize("more", [False, pytest.param(True, marks=pytest.mark.full)])
def test_integer_operators_alone_and_beside_the_cpu(more: bool) -> None:
    """Blocks of channels have another width on the CPU: what passes between them is plain."""
    mod = integer_network(more)
    x = np.random.default_rng(4).integers(0, 256, (1, 36, 10, 10)).astype("uint8")
    want = ts.compile(mod, "llvm", cpu_threads=1)(x).astype(int)
    alone = ts.compile(mod, ["hexagon"], cpu_threads=1)
    assert np.abs(alone(x).astype(int) - want).max() <= 1
    kernels = [node.kernel for node in alone.graph.nodes]  # what rounds takes no addition
    assert any(kernel.startswith("integer_conv2d") for kernel in kernels), kernels
    assert not any("conv2d_integer_add" in kernel for kernel in kernels), kernels
    regions = [PlannedRegion("first", "hexagon", ("full",))]
    regions += [PlannedRegion("second", "cpu", ("total", *(_MORE[:-1] if more else ())))]
    regions += [PlannedRegion("third", "hexagon", _MORE[-1:])] if more else []
    plan = Plan(("cpu", "hexagon"), tuple(regions))
    both = ts.compile(mod, ["llvm", "hexagon"], plan=plan, cpu_threads=1)
    assert np.abs(both(x).astype(int) - want).max() <= 1
