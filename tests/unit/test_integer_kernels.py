"""Kernels of integer operators: exact on every machine, with the instructions that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built, host_of
from helpers.quantised_models import optimised, qdq_conv
from helpers.relax_helpers import answers, op_names
from tvm import relax, te
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, integer_of
from tvm_stretch.passes.block_channels import BlockChannels
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import vector_machine
from tvm_stretch.targets.cpu.kernels.integer_blocks import exact_parts
from tvm_stretch.targets.cpu.kernels.integer_conv import IntegerConvConfig
from tvm_stretch.targets.cpu.kernels.integer_window import IntegerWindowConfig
from tvm_stretch.targets.kernels.layers import ConvShape, IntegerConvShape, taken
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.schedule import schedule_kernel
from tvm_stretch.targets.kernels.template import choose
from tvm_stretch.targets.opencl.kernels.machine import GpuMachine
from tvm_stretch.targets.processors import make_processors

PADDED = {"pads": [1, 1, 1, 1]}
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "few channels": ((3, 20, 3, 11), {"zero": 7, "strides": [2, 2], **PADDED}),
    "signed, padded": ((24, 20, 3, 7), {"dtype": "int8", "zero": -9, "then": "Relu", **PADDED}),
    "unsigned, padded": ((32, 40, 3, 7), PADDED),
    "pixels apart": ((32, 24, 1, 9), {"strides": [2, 2], "zero": 200}),
    "groups that share blocks": ((48, 48, 3, 6), {"groups": 2, **PADDED}),
    "small groups": ((30, 60, 3, 6), {"groups": 5, "zero": 3, **PADDED}),
    "small groups, signed": ((24, 40, 3, 6), {"groups": 2, "dtype": "int8", "zero": -4, **PADDED}),
    "depthwise": ((20, 20, 3, 19), {"groups": 20, "strides": [2, 2], **PADDED}),
    "depthwise, five rows": ((18, 18, 5, 9), {"groups": 18, "pads": [2, 2, 2, 2], "batch": 2}),
    "depthwise, signed": ((16, 16, 3, 9), {"groups": 16, "dtype": "int8", "dilations": [2, 2]}),
}


@pytest.mark.variants(4)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_exact(name: str, lanes: int) -> None:
    arguments, options = CONVOLUTIONS[name]
    model, x = qdq_conv(*arguments, **options)
    host = host_of(lanes)
    blocked = BlockChannels({"cpu": host.machine})(load_network(model))
    assert not any(map(integer_of, calls(blocked)))
    result = np.asarray(ts.compile(model, targets=[host])(x))
    np.testing.assert_array_equal(result, optimised(model, x))


IN_FLOAT = ("few channels", "pixels apart", "small groups", "depthwise, signed")


@pytest.mark.parametrize("name", IN_FLOAT)
def test_exact_in_float(name: str) -> None:
    """As OpenCL does it: whole numbers in float32 are exact in any order of adding."""
    arguments, options = CONVOLUTIONS[name]
    model, x = qdq_conv(*arguments, **options)
    host = host_of(8)
    machine = replace(host.machine, float_integers=True)
    blocked = BlockChannels({"cpu": machine})(load_network(model))
    types = {str(call.ty.dtype) for call in calls(blocked) if isinstance(call, relax.Call)}
    assert "float32" in types and not any(map(integer_of, calls(blocked)))
    result = np.asarray(ts.compile(model, targets=[replace(host, machine=machine)])(x))
    np.testing.assert_array_equal(result, optimised(model, x))


@pytest.mark.parametrize("channels, kernel, groups", [(1000, 1, 1), (3, 25, 1), (1600, 1, 2)])
def test_sums_beyond_the_digits_of_float(channels: int, kernel: int, groups: int) -> None:
    """Sums beyond 2**24, most of which the bias takes off again: no bit may be lost."""
    dice = np.random.default_rng(0)
    data = dice.integers(200, 256, (1, channels, kernel, kernel)).astype("uint8")
    weight = dice.integers(90, 128, (8, channels // groups, kernel, kernel)).astype("int8")
    bias = -228 * weight.sum((1, 2, 3), dtype="int32")
    conv = Integer("conv2d", None, (0,), groups=groups)
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(data.shape, "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            constants = map(relax.const, (weight, bias))
            out = builder.emit_output(integer_call(builder, conv, x, *constants))
        builder.emit_func_output(out)
    mod, host = builder.get(), host_of(8)
    machine = replace(host.machine, float_integers=True)
    result = ts.compile(mod, targets=[replace(host, machine=machine)], cpu_threads=1)(data)
    np.testing.assert_array_equal(result, answers(mod, data)[0])


def test_parts_of_exact_sums() -> None:
    """As few as may be: numbers of either sign are counted by themselves."""
    weight = np.tile(np.array([127, -127], "int8"), 512).reshape(1, 1024, 1, 1)
    assert exact_parts(weight, 0, "uint8", 16) == [0]
    assert exact_parts(np.abs(weight), 0, "uint8", 16) == [0, 32]
    assert exact_parts(weight, 128, "uint8", 16) == [0]
    assert exact_parts(np.abs(weight[:, :1]).repeat(600, 2), 0, "uint8", 1) is None


def test_work_items_compute_in_float() -> None:
    targets = ["llvm", {"kind": "opencl", "device": "adreno"}]
    _, opencl = make_processors(targets, 1)[0]
    mod = load_network(qdq_conv(16, 16, 3, 9, zero=3)[0])
    after = BlockChannels({"opencl": opencl.machine})(mod)
    templates = [f for f in after.functions.values() if "tvm_stretch.kernel" in f.script()]
    assert len(templates) == 1
    assert not any(map(integer_of, calls(after)))


def calls(mod: tvm.IRModule) -> list[Any]:
    return [b.value for block in mod["main"].body.blocks for b in block.bindings]


def test_work_items_leave_integers_as_they_are() -> None:
    mod = load_network(qdq_conv(16, 16, 3, 9)[0])
    gpu = VectorMachine(4, 32, False, 2**20, 1, gpu=GpuMachine(4))
    after = BlockChannels({"gpu": gpu})(mod)
    assert op_names(after) == ["relax.call_tir"]
    assert integer_of(calls(after)[0]) is not None


CORES = {
    "icelake-server": ("x86_64-linux-gnu", "vpdpbusd.512", "vpdpbusd"),
    "skylake-avx512": ("x86_64-linux-gnu", "vpmaddwd.512", "vpmaddwd"),
    "alderlake": ("x86_64-linux-gnu", "vpdpbusd.256", "vpdpbusd"),
    "haswell": ("x86_64-linux-gnu", "vpmaddwd.256", "vpmaddwd"),
    "cortex-a76": ("aarch64-linux-gnu", "sdot", "sdot"),
    "neoverse-n2": ("aarch64-linux-gnu", "usdot", "usdot"),
    "cortex-a53": ("aarch64-linux-gnu", "", "mla"),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("depthwise", [False, True])
def test_instructions(core: str, depthwise: bool) -> None:
    triple, dot, instruction = CORES[core]
    target = Target({"kind": "llvm", "mtriple": triple, "mcpu": core})
    machine = vector_machine(target, 1)
    assert machine.dot == dot
    text = assembly(sums(machine, depthwise), machine, target)
    found = [line.split("#")[0] for line in text.splitlines() if line.startswith("\t")]
    assert sum(instruction in line for line in found) >= 8
    assert "vpmaddubsw" not in text  # it saturates
    assert "BackendAllocWorkspace" not in text


WIDENED: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "padded": ((20, 40, 3, 9), {"pads": [1, 1, 1, 1], "zero": 3}),
    "signed": ((16, 33, 1, 5), {"dtype": "int8"}),
    "groups": ((40, 96, 3, 9), {"groups": 2, "zero": 5}),
    "few channels": ((3, 32, 3, 9), {"strides": [2, 2]}),
}


@pytest.mark.variants(2)
@pytest.mark.parametrize("dot", ["vpmaddwd.256", "vpmaddwd.512"])
@pytest.mark.parametrize("name", WIDENED)
def test_pixels_are_made_int16_once(name: str, dot: str) -> None:
    """Without VNNI each of many output channels would convert them: the same sums."""
    arguments, options = WIDENED[name]
    model, x = qdq_conv(*arguments, **options)
    host = host_of(8 if dot.endswith("256") else 16)
    if dot.endswith("512") and not host.machine.dot.endswith("512"):
        pytest.skip("this machine has no AVX-512")
    machine = replace(host.machine, dot=dot)
    text = BlockChannels({"cpu": machine})(load_network(model)).script()
    assert f"{dot}.pairs" in text
    result = np.asarray(ts.compile(model, targets=[replace(host, machine=machine)])(x))
    np.testing.assert_array_equal(result, optimised(model, x))


@pytest.mark.parametrize("core", ["haswell", "skylake-avx512"])
def test_sums_of_pairs_stay_in_registers(core: str) -> None:
    target = Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": core})
    machine = vector_machine(target, 1)
    shape = IntegerConvShape(1, 64, (28, 1), 96, (1, 1), dtype="int16")
    conv = choose(shape, machine, machine.lanes)
    data = te.placeholder((1, 64 // machine.lanes, 28, 1, machine.lanes), "int16")
    weight = te.placeholder(conv.weight_shape, conv.way.weight)
    text = assembly([data, weight, conv.meaning(data, weight)], machine, target)
    loop = text[text.index("vpmaddwd") : text.rindex("vpmaddwd")]
    assert loop.count("vpmaddwd") > 20
    assert loop.count("(%rsp)") < loop.count("vpmaddwd") // 8


@pytest.mark.parametrize("options", [{"pads": [1, 1, 1, 1], "zero": 3}, {"dtype": "int8"}])
def test_small_matrices(options: dict[str, Any]) -> None:
    """Packed for `smmla`, sums are the same; tests/device runs its loop nest."""
    model, x = qdq_conv(20, 30, 3, 9, **options)
    mod = load_network(model)
    arm = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n2"})
    blocked = BlockChannels({"cpu": vector_machine(arm, 1)})(mod)
    dot = "smmla" if "dtype" in options else "usmmla"
    assert any(
        f'"dot": "{dot}"' in f.script().replace("\\", "") for f in blocked.functions.values()
    )
    x = qdq_conv(20, 30, 3, 9, **options)[1]
    np.testing.assert_array_equal(answers(blocked, x)[0], answers(mod, x)[0])


MATRICES = {
    "two blocks of channels": (ConvShape(1, 64, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1)), True),
    "one block": (ConvShape(1, 4, (14, 14), 64, (1, 1)), False),
    "pixels apart": (ConvShape(1, 64, (14, 14), 64, (3, 3), (2, 2)), False),
    "groups": (ConvShape(1, 64, (14, 14), 64, (3, 3), groups=2), False),
    "three pixels": (ConvShape(1, 64, (14, 5), 64, (3, 3)), False),
    "a matrix of a row": (ConvShape(1, 64, (1, 1), 64, (1, 1)), False),
}


@pytest.mark.parametrize("name", MATRICES)
def test_where_small_matrices_fit(name: str) -> None:
    shape, fits = MATRICES[name]
    arm = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n2"})
    config = choose(taken(IntegerConvShape, shape), vector_machine(arm, 1), 4)
    assert config.dot == ("usmmla" if fits else "usdot")


def test_sums_of_small_matrices_stay_in_registers() -> None:
    target = Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n2"})
    machine = vector_machine(target, 1)
    shape = ConvShape(1, 64, (14, 14), 96, (1, 1))
    conv = choose(taken(IntegerConvShape, shape), machine, 4)
    data = te.placeholder((1, 16, 14, 14, 4), "uint8")
    weight = te.placeholder(conv.weight_shape, conv.way.weight)
    out = conv.meaning(data, weight)
    text = assembly([data, weight, out], machine, target)
    first = text.index("usmmla")
    loop = text[first : text.rindex("usmmla")]
    assert loop.count("usmmla") + 1 >= 4 * conv.oc_blocks
    assert "[sp" not in loop and "usdot" not in text


def sums(machine: VectorMachine, depthwise: bool) -> list[te.Tensor]:
    """Operands and result of a 3x3 convolution of 64 channels."""
    data = te.placeholder((1, 64 // machine.lanes, 14, 14, machine.lanes), "uint8")
    if depthwise:
        config = IntegerWindowConfig(
            "depthwise", 1, 64, (14, 14), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1),
            lanes=machine.lanes, dot=machine.dot,
        )  # fmt: skip
        weight = te.placeholder(config.weight_shape, config.way.weight)
        return [data, weight, config.meaning(data, weight)]
    shape = ConvShape(1, 64, (14, 14), 64, (3, 3), padding=(1, 1, 1, 1))
    conv = IntegerConvConfig.configure(taken(IntegerConvShape, shape), machine, machine.lanes)[0]
    weight = te.placeholder(conv.weight_shape, conv.way.weight)
    return [data, weight, conv.meaning(data, weight)]


def assembly(tensors: list[te.Tensor], machine: VectorMachine, target: Target) -> str:
    func = schedule_kernel(te.create_prim_func(tensors), machine)
    return str(built(func, target).inspect_source("asm"))


def test_other_processors_have_no_instructions_of_the_cpu() -> None:
    targets = ["llvm", {"kind": "opencl", "device": "adreno"}]
    _, opencl = make_processors(targets, 1)[0]
    assert opencl.machine.dot == ""
    assert opencl.machine.float_integers
