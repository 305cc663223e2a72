"""Every network of the zoo answers what ONNX Runtime answers on the same ONNX file.

Small inputs by default, the published ones with `make test-full`. Networks with a hundred million
weights or many hundred operators run only there.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import random_inputs, run_onnxruntime

import tvm_stretch as ts
from tvm_stretch import zoo

# Sizes that every stage survives (strides of 32; valid convolutions of the Inceptions).
QUICK_SIZES = {
    "inception_v3": 107,
    "lstm": 3,
    "squeezenet1_0": 67,
    "squeezenet1_1": 67,
}
DEFAULT_QUICK_SIZE = 64
FULL_ONLY = {"efficientnet_b5", "inception_v4", "nasnet_large", "pnasnet_large", "vgg16", "yolov2"}


def assert_same_logits(expected: np.ndarray, got: np.ndarray) -> None:
    """Within 1e-3 of the largest logit, and the same class on top."""
    assert got.shape == expected.shape
    assert np.isfinite(expected).all()
    error = np.abs(got - expected).max() / np.abs(expected).max()
    assert error <= 1e-3
    assert got.argmax() == expected.argmax()


def compare_with_onnxruntime(name: str, size: int | None) -> None:
    model = zoo.build(name, size=size)
    inputs = random_inputs(model)
    (expected,) = run_onnxruntime(model, inputs)
    assert_same_logits(expected, np.from_dlpack(ts.compile(model, targets=["llvm"])(**inputs)))


@pytest.mark.parametrize("name", sorted(set(zoo.names()) - FULL_ONLY))
def test_small_input(name: str):
    compare_with_onnxruntime(name, QUICK_SIZES.get(name, DEFAULT_QUICK_SIZE))


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(zoo.names()))
def test_published_input(name: str):
    compare_with_onnxruntime(name, None)
