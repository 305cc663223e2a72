"""float16 by a real driver that has `cl_khr_fp16`: Intel's for CPUs, with kernels of GPUs.

NVIDIA's has none, nor has the PoCL of Debian. `pip install tvm-stretch[half]` brings one (240 MB).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
LIBRARY = Path(sys.prefix) / "lib" / "libintelocl.so"

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not LIBRARY.exists(), reason="no OpenCL driver with cl_khr_fp16"),
]

SETUP = """
import dataclasses
import numpy as np
from helpers import quantised_networks
import tvm
import tvm_stretch as ts
from helpers.cpu_targets import TARGET
from tutorials import zoo
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.opencl import opencl_processor
from tvm_stretch.targets.opencl.opencl import device_of, local_device
from tvm_stretch.targets.processor import Arithmetic

assert local_device().fp16, local_device()
target = tvm.target.Target({"kind": "opencl", "device": "gpu"})
gpu = opencl_processor(target, cpu_processor(TARGET, 1), device_of(target))
gpu = dataclasses.replace(gpu, hardware=dataclasses.replace(gpu.hardware, runs_here=True))
emulated = dataclasses.replace(cpu_processor(TARGET, 1), arithmetic=Arithmetic(half=True))
"""

FLOATS = """
for name in ("squeezenet1_1", "mobilenet_v3_small", "resnet18"):
    net = zoo.build(name, size=64)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("float32")
    wide = ts.compile(net, [gpu])(x)
    for precision in ("float16", "float16+float32"):
        # as far from float32 as LLVM's float16, which adds in another order: a factor for luck
        half = ts.compile(net, [gpu], precision=precision)(x)
        cpu = ts.compile(net, [emulated], precision=precision)(x)
        least = 2.0**-11 * np.abs(wide).max()
        assert np.abs(half - wide).max() < 3 * np.abs(cpu - wide).max() + least, (name, precision)
        assert half.argmax() == wide.argmax()
"""

QUANTISED = """
rng = np.random.default_rng(0)
networks = {
    name: (zoo.build(name, size=64), rng.standard_normal((4, 3, 64, 64)).astype("float32"))
    for name in ("resnet18", "mobilenet_v2")
}
networks["grouped"] = quantised_networks.grouped(), quantised_networks.IMAGES
for name, (net, images) in networks.items():
    quantised = ts.quantize(net, images)
    floats, exact = ts.compile(net, [TARGET]), ts.compile(quantised, [TARGET])
    names = [*exact.plan.processor_of()]
    regions = (
        PlannedRegion("gpu", "opencl", tuple(names[: len(names) // 2])),
        PlannedRegion("cpu", "cpu", tuple(names[len(names) // 2 :])),
    )
    for precision in ("float16", "float16+float32"):
        alone = ts.compile(quantised, [gpu], precision=precision)
        plan = Plan(("cpu", "opencl"), regions)
        both = ts.compile(quantised, [TARGET, gpu], precision=precision, plan=plan)
        for image in images[:2]:
            want, integers = floats(image[None]), exact(image[None])
            step = np.diff(np.unique(integers)).min()
            for model in (alone, both):
                # roundings that are left out bring answers nearer to float; a step for luck
                steps = np.abs(model(image[None]) - want).max() / step
                assert steps <= np.abs(integers - want).max() / step + 1, (name, precision, steps)
"""


@pytest.mark.parametrize("network", [FLOATS, QUANTISED], ids=["floats", "quantised"])
def test_float16(network: str) -> None:
    driver = {
        "LD_LIBRARY_PATH": str(LIBRARY.parent),  # the loader looks for what it needs there
        "TVM_STRETCH_OPENCL_LIB": str(LIBRARY),
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))),
    }
    command = [sys.executable, "-c", f"{SETUP}{network}"]
    run = subprocess.run(command, env={**os.environ, **driver}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
