"""Every network of the zoo answers what ONNX Runtime answers on the same ONNX file.

Its kernels are named after the operators in them.

Small inputs by default, the published ones with `make test-full`. Networks with a hundred million
weights or many hundred operators run only there, and those whose smaller relatives run by default.
"""

from __future__ import annotations

import pytest
from onnx_models import random_inputs, run_onnxruntime
from zoo_checks import (
    FULL_ONLY,
    assert_every_operator_is_in_one_node,
    assert_same_logits,
    quick_size,
)

import tvm_stretch as ts
from tvm_stretch import zoo


def compare_with_onnxruntime(name: str, size: int | None) -> None:
    model = zoo.build(name, size=size)
    inputs = random_inputs(model)
    (expected,) = run_onnxruntime(model, inputs)
    compiled = ts.compile(model, targets=["llvm"])
    assert_same_logits(expected, compiled(**inputs))
    if name != "lstm":  # its state starts at zero, so that the first operators are constants
        assert_every_operator_is_in_one_node(compiled)


RELATIVES = {"efficientnet_lite4", "mobilenet_v3_large", "regnetx_4gf", "squeezenet1_0"}


@pytest.mark.parametrize("name", sorted(set(zoo.names()) - FULL_ONLY - RELATIVES))
def test_small_input(name: str):
    compare_with_onnxruntime(name, quick_size(name))


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_published_input(name: str):
    compare_with_onnxruntime(name, None)
