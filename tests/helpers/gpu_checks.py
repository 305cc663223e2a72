"""GPUs that tests describe, and networks whose kernels for GPUs run on the OpenCL device here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET
from helpers.relax_helpers import answers, random_inputs
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.kernels.machine import describe_gpu
from tvm_stretch.targets.opencl.opencl import OpenCLDevice, local_device, opencl_processor
from tvm_stretch.targets.processor import Processor

LARGE = OpenCLDevice("gpu", "NVIDIA of the test", max_group_size=512, local_bytes=48 * 1024)
WITHOUT_LOCAL = replace(LARGE, local_on_chip=False)
H100 = describe_gpu("NVIDIA H100 80GB HBM3", 132, 1024, 48 * 1024, True)


NEEDS_DEVICE = (
    pytest.mark.gpu,
    pytest.mark.skipif(local_device() is None, reason="no OpenCL device"),
)
"""Marks of a test that computes on an OpenCL device: PoCL's here, or a real GPU with `-m gpu`."""


def needs_device(test: Any) -> Any:
    """The test with these marks."""
    for mark in NEEDS_DEVICE:
        test = mark(test)
    return test


def needs_cpu_device(test: Any) -> Any:
    """A test that runs kernels of CPUs on an OpenCL device: a real GPU refuses them."""
    device = local_device()
    lacks = device is None or device.type != "cpu"
    return pytest.mark.skipif(lacks, reason="no OpenCL device that is a CPU")(test)


def described_gpu(device: OpenCLDevice = LARGE) -> Processor:
    """A processor with the kernels of a GPU, which the OpenCL device here runs."""
    return opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), device)


def check(mod: tvm.IRModule, device: OpenCLDevice = LARGE) -> None:
    """The network on the device, against NumPy, or what TVM makes of it."""
    inputs = random_inputs(mod)
    result = ts.compile(mod, [described_gpu(device)])(*inputs)
    np.testing.assert_allclose(result, answers(mod, *inputs)[0], rtol=1e-4, atol=1e-4)
