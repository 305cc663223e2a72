"""What OpenCL refuses on devices with certain limits, and kernels that stay within them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET
from helpers.relax_helpers import module, random_const, random_inputs, run
from tvm import relax
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.network.operators import Calls
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.opencl import (
    FAMILIES,
    PHONE_GPU,
    OpenCLDevice,
    described_device,
    device_of,
    local_device,
    opencl_processor,
)
from tvm_stretch.targets.processor import Processor

BIG_GPU = OpenCLDevice("gpu", "the test's GPU", fp16=True, fp64=True)
ADRENO = {"kind": "opencl", "device": "adreno"}


def processor_of(device: OpenCLDevice, target: object = "opencl") -> Processor:
    return opencl_processor(Target(target), cpu_processor(TARGET, 1), device)


def reason(device: OpenCLDevice, mod: tvm.IRModule) -> str | None:
    """Why the device refuses the only operator of a module."""
    (call,) = Calls(mod["main"]).calls.values()
    return processor_of(device).why_not(call)


def doubled(shape: tuple[int, ...], dtype: str = "float32") -> tvm.IRModule:
    return module(lambda x: relax.op.add(x, x), shape, dtype=dtype)


def in_image(shape: tuple[int, ...]) -> tvm.IRModule:
    scope = relax.VDevice(Target("opencl"), 0, "global.texture-nhwc")
    x = relax.Var("x", relax.TensorType(shape, "float32", vdevice=scope))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(relax.op.nn.relu(x))
        bb.emit_func_output(result)
    return bb.get()


@pytest.mark.parametrize(
    ("limits", "mod", "expected"),
    [
        ({"fp64": False}, doubled((4,), "float64"), "the test's GPU has no float64 (cl_khr_fp64)"),
        ({"fp16": False}, doubled((4,), "float16"), "the test's GPU has no float16 (cl_khr_fp16)"),
        ({}, doubled((4,), "float8_e4m3fn"), "OpenCL has no float8_e4m3fn"),
        (
            {"max_buffer_bytes": 2**20},
            doubled((512, 513)),
            "a tensor of 1.0 MiB; a buffer of the test's GPU holds 1.0 MiB",
        ),
        (
            {"max_buffer_bytes": 2**40},
            doubled((2**15, 2**15)),
            "a tensor of 4.0 GiB; kernels for GPUs count bytes in 32 bits",
        ),
        ({}, in_image((1, 8, 8, 4)), "this executor keeps tensors in buffers"),
    ],
)
def test_each_limit_refuses_with_a_reason(
    limits: dict[str, Any], mod: tvm.IRModule, expected: str
) -> None:
    found = reason(replace(BIG_GPU, **limits), mod)
    assert found is not None
    assert expected in found


@pytest.mark.parametrize(
    "mod", [doubled((4,), "float64"), doubled((4,), "float16"), doubled((512, 513))]
)
def test_a_device_without_these_limits_takes_them(mod: tvm.IRModule) -> None:
    assert reason(BIG_GPU, mod) is None


def test_scatters_run_on_every_device() -> None:
    indices = relax.const(np.zeros((2, 3), "int64"))
    mod = module(lambda x, u: relax.op.scatter_elements(x, indices, u), (3, 3), (2, 3))
    assert reason(BIG_GPU, mod) is None
    assert reason(replace(BIG_GPU, type="cpu"), mod) is None


def test_refusals_are_explained() -> None:
    mod = doubled((4,), "float64")
    model = ts.compile(mod, [TARGET, {"kind": "opencl", "device": "gpu"}], cpu_threads=1)
    assert model.plan.processor_of() == {"add": "cpu"}
    assert "a phone's GPU has no float64 (cl_khr_fp64)" in model.plan.explain()


def test_families_of_devices() -> None:
    assert (
        device_of(Target(ADRENO)) == device_of(Target("qcom/adreno-opencl")) == FAMILIES["adreno"]
    )
    assert device_of(Target({"kind": "opencl", "device": "gpu"})) == PHONE_GPU


REPORT = {
    **{"type": "gpu", "name": "odd", "driver": "1", "fp16": False, "fp64": False},
    **{"max_group_size": 256, "local_bytes": 16384, "local_is_fast": True, "compute_units": 4},
    **{"max_buffer_bytes": 2**30, "has_images": False},
}
"""What a driver may say of itself."""


@pytest.mark.parametrize(
    "wrong",
    [
        {"compute_units": 0},
        {"max_group_size": 0},
        {"local_bytes": 0},
        {"compute_units": 2**32 - 1, "max_group_size": 2**63, "local_bytes": 2**63},
    ],
    ids=str,
)
def test_limits_that_no_device_has_still_make_kernels(wrong: dict[str, int]) -> None:
    device = described_device({**REPORT, **wrong})
    model = ts.compile(convolutions(), [processor_of(device)])
    most = wrong.get("max_group_size", 256) or 1
    assert all(math.prod(launch["group_size"]) <= most for launch in launches(model))


def test_a_device_without_room_for_a_tensor_is_refused() -> None:
    device = described_device({**REPORT, "max_buffer_bytes": 0})
    with pytest.raises(ts.UnsupportedError, match=r"a buffer of odd holds 0\.0 MiB"):
        ts.compile(convolutions(), [processor_of(device)])


# --- kernels within the limits --------------------------------------------------------------------


def normalised(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    pooled = bb.emit(relax.op.mean(x, [2, 3], keepdims=True))
    scaled = bb.emit(relax.op.multiply(x, relax.op.sigmoid(pooled)))
    rows = bb.emit(relax.op.reshape(scaled, (8, 24 * 36 // 8)))
    return relax.op.nn.softmax(relax.op.concat([rows, rows], axis=1))


def reductions() -> tvm.IRModule:
    """A mean, a softmax of long rows, elementwise work."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 24, 6, 6), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(normalised(bb, x))
        bb.emit_func_output(result)
    return bb.get()


def convolutions() -> tvm.IRModule:
    def body(x: relax.Var) -> relax.Expr:
        y = relax.op.nn.relu(relax.op.nn.conv2d(x, random_const(24, 8, 3, 3), padding=1))
        y = relax.op.nn.conv2d(y, random_const(24, 1, 3, 3, seed=1), strides=2, groups=24)
        return relax.op.nn.max_pool2d(y, (3, 3), (2, 2))

    return module(body, (1, 8, 13, 11))


def adreno_layouts() -> tvm.IRModule:
    """Operators that TVM has rules of its own for: layouts of four channels, pooling in them."""

    def body(x: relax.Var) -> relax.Expr:
        four = relax.op.layout_transform(x, lambda n, c, h, w: (n, c // 4, h, w, c % 4))
        return relax.op.nn.max_pool2d(four, (3, 3), (2, 2), layout="NCHW4c")

    return module(body, (1, 8, 13, 11))


def launches(model: ts.Model) -> list[dict[str, Any]]:
    code = json.loads(model.module.imports[1].inspect_source("json"))
    return [launch for listed in code["kernels"].values() for launch in listed]


def local_bytes(model: ts.Model) -> int:
    """The most local memory of any kernel."""
    source = model.module.imports[1].inspect_source()
    kernels = re.findall(r"^__kernel .*\n(.*)", source, re.M)
    arrays = [re.findall(r"__local float4 \w+\[(\d+)\]", kernel) for kernel in kernels]
    return max(sum(16 * int(count) for count in counts) for counts in arrays)


def test_what_work_items_share_is_loaded_after_the_barrier() -> None:
    """LLVM moves loads of `restrict` pointers over barriers (NVIDIA's driver gave wrong means)."""
    model = ts.compile(reductions(), [processor_of(FAMILIES["adreno"])])
    source = model.module.imports[1].inspect_source()
    assert local_bytes(model) > 0
    assert re.search(r"__global \w+\* restrict", source)
    assert re.search(r"__local \w+\* \w+", source)
    assert not re.search(r"__local \w+\* restrict", source)


def outer_product() -> tvm.IRModule:
    """A sum over one element, and what is fused behind it."""
    return module(
        lambda x, y, z: relax.op.add(z, relax.op.matmul(x, y)), (2, 8, 1), (2, 1, 8), (2, 8, 8)
    )


@pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
def test_functions_of_c_and_sums_of_one_element() -> None:
    for mod in (outer_product(), module(lambda x: relax.op.acosh(relax.op.exp(x)), (4, 5))):
        inputs = [np.abs(value) for value in random_inputs(mod)]
        (expected,) = run(mod, *inputs)
        found = local_device()
        own = [OpenCLDevice("cpu")] if found is not None and found.type == "cpu" else []
        for device in (PHONE_GPU, *own):
            model = ts.compile(mod, [processor_of(device)])
            np.testing.assert_allclose(model(*inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("limits", "network", "target"),
    [
        pytest.param(
            limits, network, target, marks=() if (i + n + t) % 4 == 1 else pytest.mark.full
        )
        for i, limits in enumerate([(256, 32 * 1024), (128, 1024), (16, 64), (1, 0)])
        for n, network in enumerate([reductions, convolutions, adreno_layouts])
        for t, target in enumerate(["opencl", ADRENO])
    ],
)
def test_kernels_stay_within_the_limits(
    network: Any, limits: tuple[int, int], target: object
) -> None:
    items, local = limits
    device = replace(FAMILIES["adreno"], max_group_size=items, local_bytes=local)
    mod = network()
    model = ts.compile(mod, [processor_of(device, target)])
    assert all(math.prod(launch["group_size"]) <= items for launch in launches(model))
    assert local_bytes(model) <= local
    if local_device() is not None:
        inputs = random_inputs(mod)
        (expected,) = run(mod, *inputs)
        np.testing.assert_allclose(model(*inputs), expected, rtol=1e-4, atol=1e-5)
