"""Every network of the zoo answers what ONNX Runtime answers on the same ONNX file.

Its kernels are named after the operators in them.

Small inputs by default, the published ones with `make test-full`. Networks with a hundred million
weights or many hundred operators run only there, and those whose relatives run by default.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.onnx_models import random_inputs, run_onnxruntime
from helpers.quantised_models import optimised
from helpers.zoo_checks import (
    FULL_ONLY,
    assert_every_operator_is_in_one_node,
    assert_same_logits,
    quantised_network,
    quick_size,
)

import tvm_stretch as ts
from tutorials import zoo


def compare_with_onnxruntime(name: str, size: int | None, target: object) -> None:
    model = zoo.build(name, size=size)
    inputs = random_inputs(model)
    (expected,) = run_onnxruntime(model, inputs)
    compiled = ts.compile(model, targets=[target])
    assert_same_logits(expected, compiled(**inputs))
    if name != "lstm":  # its state starts at zero, so that the first operators are constants
        assert_every_operator_is_in_one_node(compiled)


RELATIVES = {
    "efficientnet_lite0",
    "efficientnet_lite4",
    "fast_style_transfer",
    "inception_v3",
    "mobilenet_v1",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
    "pnasnet_mobile",
    "posenet",
    "regnetx_1_6gf",
    "regnetx_4gf",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet56",
    "retinaface",
    "shufflenet_v2",
    "squeezenet1_0",
}
OPTIMISED = "squeezenet1_1"
"""With all that LLVM does, as users have it; others without, which takes a fraction of the time."""


@pytest.mark.parametrize("name", sorted(set(zoo.names()) - FULL_ONLY - RELATIVES))
def test_small_input(name: str):
    compare_with_onnxruntime(name, quick_size(name), "llvm" if name == OPTIMISED else TARGET)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_published_input(name: str):
    compare_with_onnxruntime(name, None, "llvm")


@pytest.mark.full
@pytest.mark.parametrize("name", zoo.names())
def test_in_8_bits(name: str):
    """Within a step of ONNX Runtime's logits: not even the order of sums differs."""
    quantised, image = quantised_network(name)
    # ONNX Runtime's optimiser (1.30 to 1.32) fails on exact sums of the recurrent one
    if name == "lstm":
        (want,) = run_onnxruntime(quantised, image)
    else:
        want = optimised(quantised, *image.values())
    got = ts.compile(quantised, targets=["llvm"])(**image)
    step = np.diff(np.unique(want)).min()
    assert np.abs(got - want).max() <= 1.01 * step
    assert got.argmax() == want.argmax()
