"""Networks of the zoo on OpenVINO's device of this machine, beside ONNX Runtime's own kernels."""

from __future__ import annotations

import importlib.util

import pytest
from helpers.engine_targets import eager
from helpers.onnx_models import every_template, random_inputs, run_onnxruntime
from helpers.zoo_checks import assert_same_logits, quick_size

import tvm_stretch as ts
from tutorials import zoo


def why_absent() -> str:
    """Why OpenVINO has no device here; empty if it has one."""
    if importlib.util.find_spec("onnxruntime_ep_openvino") is None:
        return "needs onnxruntime-ep-openvino"
    try:
        ts.compile(every_template(1), ["openvino", "llvm"], plan=eager("openvino"))
    except ts.TargetError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    if reason := why_absent():
        pytest.skip(reason)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_answers(name: str) -> None:
    """Floats in float32; what the provider refuses stays on the CPU, with a reason."""
    network = zoo.build(name, size=quick_size(name))
    inputs = random_inputs(network)
    model = ts.compile(network, ["openvino", "llvm"], plan=eager("openvino"), cpu_threads=1)
    owners = model.plan.processor_of()
    refused = {op for op, owner in owners.items() if owner == "cpu"}
    print(f"{name}: {len(refused)} of {len(owners)} refused, {len(model.plan.regions)} regions")
    assert len(refused) < len(owners)
    answer = model(**inputs)
    answers = answer if isinstance(answer, tuple) else (answer,)
    for expected, got in zip(run_onnxruntime(network, inputs), answers, strict=True):
        assert_same_logits(expected, got)
