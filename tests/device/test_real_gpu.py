"""Networks on a real GPU, and on it together with the CPU: `pytest -m gpu tests`."""

from __future__ import annotations

import numpy as np
import pytest

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network
from tvm_stretch.targets.opencl.opencl import local_device

DEVICE = local_device()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE is None or DEVICE.type == "cpu", reason="no real GPU"),
]


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1"])
def test_a_network_alone_and_with_the_cpu(name: str) -> None:
    mod = load_network(zoo.build(name, size=64))
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("float32")
    expected = ts.compile(mod, ["llvm"])(x)
    tolerance = 1e-4 * float(np.abs(expected).max())
    np.testing.assert_allclose(ts.compile(mod, ["opencl"])(x), expected, atol=tolerance)
    processors, _ = processors_of(None, ["llvm", "opencl"], None)
    costs = planning_costs(processors)
    for factor in (2.0, 5.0, 12.0):  # as if the GPU were slower, so that both get a part
        for rival in search(mod, costs.corrected((1.0, factor))).rivals:
            model = ts.compile(mod, ["llvm", "opencl"], plan=rival.plan)
            for _ in range(5):  # copies overlap kernels
                np.testing.assert_allclose(model(x), expected, atol=tolerance)
