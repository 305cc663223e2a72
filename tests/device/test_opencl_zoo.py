"""Networks of the zoo on the machine's OpenCL device, alone and together with the CPU.

The device may be a CPU (PoCL): its kernels are then a CPU's loop nests. Those for GPUs run there
too, if only as slowly as one work-item after the other.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx_models import random_inputs, run_onnxruntime
from tvm_stretch.targets.cpu import cpu_processor
from tvm_stretch.targets.opencl import opencl_processor
from tvm_stretch.targets.opencl_device import PHONE_GPU, find_device, local_device
from zoo_checks import FULL_ONLY, assert_same_logits, quick_size

import tvm_stretch as ts
from tvm_stretch import zoo
from tvm_stretch.frontend import load_network
from tvm_stretch.search import shared_plan

pytestmark = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")

QUICK = ("squeezenet1_1", "mobilenet_v3_small", "resnet18", "regnetx_1_6gf", "lstm")
SHARED = ("squeezenet1_1", "efficientnet_lite0", "regnetx_1_6gf")


def compare(name: str, size: int | None, targets: list[object], **options: object) -> ts.Model:
    """Compile, run, compare with ONNX Runtime."""
    onnx_model = zoo.build(name, size=size)
    inputs = random_inputs(onnx_model)
    (expected,) = run_onnxruntime(onnx_model, inputs)
    model = ts.compile(onnx_model, targets, **options)
    assert_same_logits(expected, np.from_dlpack(model(**inputs)))
    return model


@pytest.mark.parametrize("name", sorted(set(QUICK) & set(zoo.names())))
def test_small_input(name: str) -> None:
    model = compare(name, quick_size(name), ["opencl"])
    assert {region.processor for region in model.plan.regions} == {"opencl"}


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(zoo.names()) - set(QUICK) - FULL_ONLY))
def test_other_networks_with_small_inputs(name: str) -> None:
    compare(name, quick_size(name), ["opencl"])


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_published_input(name: str) -> None:
    compare(name, None, ["opencl"])


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small"])
def test_kernels_of_gpus(name: str) -> None:
    host = cpu_processor(tvm.target.Target("llvm"), 1)
    gpu = opencl_processor(tvm.target.Target({"kind": "opencl", "device": "gpu"}), host, PHONE_GPU)
    compare(name, quick_size(name), [gpu])


@pytest.mark.parametrize("name", sorted(set(SHARED) & set(zoo.names())))
def test_layers_shared_with_the_cpu(name: str) -> None:
    onnx_model = zoo.build(name, size=quick_size(name))
    host = cpu_processor(tvm.target.Target("llvm"), 1)
    device = opencl_processor(tvm.target.Target("opencl"), host, find_device())
    candidate = shared_plan(
        load_network(onnx_model), [host, device], lambda _: (1.0, 1.5), least_work=1000
    )
    assert candidate is not None
    model = compare(name, quick_size(name), ["llvm", "opencl"], plan=candidate.plan, debug=True)
    assert {region.processor for region in model.graph.regions} == {0, 1}
