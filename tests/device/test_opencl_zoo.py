"""Networks of the zoo on the machine's OpenCL device, alone and together with the CPU.

By default a network of few kernels: drivers take up to a second for each kernel.

The device may be a CPU (PoCL): its kernels are then a CPU's loop nests. Those for GPUs run there
too, if only as slowly as one work-item after the other.
"""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import onnx
import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.fake_targets import fake_code
from helpers.integer_networks import IntegerNetwork
from helpers.onnx_models import Net, every_template, random_inputs, run_onnxruntime
from helpers.relax_helpers import answers, module
from helpers.zoo_checks import FULL_ONLY, assert_same_logits, quick_size
from tvm import relax

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.make.branching import branch
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.regions import form_regions
from tvm_stretch.read import load_network
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.opencl.opencl import (
    PHONE_GPU,
    OpenCLDevice,
    find_device,
    local_device,
    opencl_processor,
)
from tvm_stretch.targets.processor import Processor

pytestmark = pytest.mark.skipif(local_device() is None, reason="no OpenCL device")

SMALL = "every_template"


def quick_and_full(*names: str) -> list[object]:
    """The small network by default, the others in `make test-full`."""
    return [SMALL, *(pytest.param(name, marks=pytest.mark.full) for name in names)]


def network(name: str, size: int | None, batch: int = 1) -> onnx.ModelProto:
    return every_template(batch) if name == SMALL else zoo.build(name, size=size, batch=batch)


def compare(
    name: str, size: int | None, targets: list[object], batch: int = 1, **options: object
) -> ts.Model:
    """Compile, run, compare with ONNX Runtime."""
    onnx_model = network(name, size, batch)
    inputs = random_inputs(onnx_model)
    (expected,) = run_onnxruntime(onnx_model, inputs)
    model = ts.compile(onnx_model, targets, **options)
    assert_same_logits(expected, model(**inputs))
    return model


def test_small_input() -> None:
    model = compare(SMALL, None, ["opencl"])
    assert {region.processor for region in model.plan.regions} == {"opencl"}


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(zoo.names()) - FULL_ONLY))
def test_other_networks_with_small_inputs(name: str) -> None:
    compare(name, quick_size(name), ["opencl"])


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_published_input(name: str) -> None:
    compare(name, None, ["opencl"])


def phone_gpu() -> Processor:
    target = tvm.target.Target({"kind": "opencl", "device": "gpu"})
    return opencl_processor(target, cpu_processor(TARGET, 1), PHONE_GPU)


@pytest.mark.parametrize("name", quick_and_full("squeezenet1_1", "mobilenet_v3_small"))
def test_kernels_of_gpus(name: str) -> None:
    compare(name, quick_size(name), [phone_gpu()])


@pytest.mark.parametrize("name", quick_and_full("mobilenet_v3_small"))
def test_the_cpu_takes_over_kernels_of_gpus(name: str) -> None:
    useless = phone_gpu()
    code = dataclasses.replace(useless.code, build=lambda _kernels, _schedule: fake_code())
    useless = dataclasses.replace(useless, code=code)
    with pytest.warns(RuntimeWarning, match="the CPU runs everything now"):
        model = compare(name, quick_size(name), [useless], spare=True)
    assert model.lost is not None and "fake" in model.lost


@pytest.mark.parametrize("target", ["opencl", "gpu"])
def test_integers_in_float(target: str) -> None:
    """The same numbers as in integers."""
    conv = ("conv", (3, 3), 2, (1, 1, 1, 1), 1, 1, 8)
    layers = [conv, ("residual", 1, False), ("max_pool2d", 2, 2, (0,) * 4, True, True)]
    mod = IntegerNetwork(0).main(layers, (1, 24, 9, 5))
    x = np.random.default_rng(1).integers(0, 256, (1, 24, 9, 5)).astype("uint8")
    got = ts.compile(mod, targets=[phone_gpu() if target == "gpu" else target])(x)
    np.testing.assert_array_equal(got, answers(mod, x)[0])


@pytest.mark.parametrize("shape", [(5, 7), (1, 1000)])
def test_mean_of_everything_on_a_gpu(shape: tuple[int, ...]) -> None:
    """TVM's rule for sums within a group fails where the result has no axes."""
    x = np.random.default_rng(0).random(shape, dtype="float32")
    mod = module(lambda x: relax.op.reshape(relax.op.mean(x), (1,)), shape)
    got = ts.compile(mod, targets=[phone_gpu()])(x)
    np.testing.assert_allclose(got, [x.mean()], rtol=1e-5)


CORES = OpenCLDevice("cpu", compute_units=4)  # small kernels are not worth several


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "device"),
    [(SMALL, PHONE_GPU), pytest.param("squeezenet1_1", CORES, marks=pytest.mark.full)],
)
def test_images_of_a_batch_are_computed_at_the_same_time(name: str, device: OpenCLDevice) -> None:
    host = cpu_processor(TARGET, 1)
    processor = opencl_processor(tvm.target.Target("opencl"), host, device)
    model = compare(name, quick_size(name), [processor], batch=3)
    code = json.loads(model.module.imports[1].inspect_source("json"))
    groups = [
        math.prod(launch["groups"])
        for name, launches in code["kernels"].items()
        for launch in launches
        if "conv2d" in name
    ]
    several = [count for count in groups if count > 1]
    assert 2 * len(several) >= len(groups), groups  # the smaller layers are not worth several


def test_sums_that_several_units_continue() -> None:
    """Inputs of a dense layer in parts: one launch leaves its sums in memory for the next."""
    net = Net()
    x = net.input("x", (1, 576, 3, 3))
    gate = net.conv(net.op("GlobalAveragePool", x), 576, (1, 1))
    onnx_model = net.model(net.op("Mul", x, net.op("HardSigmoid", gate)))
    processor = opencl_processor(tvm.target.Target("opencl"), cpu_processor(TARGET, 1), CORES)
    inputs = random_inputs(onnx_model)
    model = ts.compile(onnx_model, [processor])
    code = json.loads(model.module.imports[1].inspect_source("json"))
    kernels = [launches for name, launches in code["kernels"].items() if "conv2d" in name]
    assert any("scratch" in dict(launches[-1]["args"]) for launches in kernels)
    assert_same_logits(run_onnxruntime(onnx_model, inputs)[0], model(**inputs))


def half_of_each_layer(mod: tvm.IRModule, processors: list[Processor]) -> ts.Plan:
    """Every convolution that fills two blocks of channels, half on each processor."""
    lanes = processors[0].machine.lanes
    blocks = {
        name: int(call.ty.shape.values[1]) // lanes
        for name, call in Calls(mod["main"]).calls.items()
        if call.op.name == "relax.nn.conv2d" and int(call.attrs.groups) == 1
    }
    shares = {
        name: (count // 2 * lanes, (count - count // 2) * lanes)
        for name, count in blocks.items()
        if count > 1 and count * lanes == int(Calls(mod["main"]).calls[name].ty.shape.values[1])
    }
    branched = branch(mod, shares, ())
    names = [processor.name for processor in processors]
    placed = {
        name: names[branched.owners.get(name, 0)] for name in Calls(branched.mod["main"]).calls
    }
    return ts.Plan(tuple(names), form_regions(branched.mod["main"], placed), shares=shares)


@pytest.mark.parametrize("name", quick_and_full("efficientnet_lite0", "regnetx_1_6gf"))
def test_layers_shared_with_the_cpu(name: str) -> None:
    onnx_model = network(name, quick_size(name))
    host = cpu_processor(TARGET, 1)
    device = opencl_processor(tvm.target.Target("opencl"), host, find_device())
    plan = half_of_each_layer(load_network(onnx_model), [host, device])
    model = compare(name, quick_size(name), [TARGET, "opencl"], plan=plan, debug=True)
    assert {region.processor for region in model.graph.regions} == {0, 1}
