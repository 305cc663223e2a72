"""GPUs that tests describe, and networks whose kernels for GPUs run on the OpenCL device here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from fake_targets import TARGET
from relax_helpers import answers, random_inputs
from tvm.target import Target

import tvm_stretch as ts
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.kernels.gpu.families import describe_gpu
from tvm_stretch.targets.opencl import opencl_processor
from tvm_stretch.targets.opencl_device import OpenCLDevice, local_device

LARGE = OpenCLDevice("gpu", "NVIDIA of the test", max_group_size=512, local_bytes=48 * 1024)
WITHOUT_LOCAL = replace(LARGE, local_on_chip=False)
H100 = describe_gpu("NVIDIA H100 80GB HBM3", 132, 1024, 48 * 1024, True)


def needs_device(test: Any) -> Any:
    """A test that computes on an OpenCL device: PoCL's here, or a real GPU with `-m gpu`."""
    skipped = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")
    return pytest.mark.gpu(skipped(test))


def check(mod: tvm.IRModule, device: OpenCLDevice = LARGE) -> None:
    """The network on the device, against NumPy, or what TVM makes of it."""
    inputs = random_inputs(mod)
    processor = opencl_processor(Target("opencl"), cpu_processor(TARGET, 1), device)
    result = ts.compile(mod, [processor])(*inputs)
    np.testing.assert_allclose(result, answers(mod, *inputs)[0], rtol=1e-4, atol=1e-4)
