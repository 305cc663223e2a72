"""Sizes of the zoo's networks for tests, and what counts as the same answer."""

from __future__ import annotations

import numpy as np

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


def quick_size(name: str) -> int:
    """An input that does not take long."""
    return QUICK_SIZES.get(name, DEFAULT_QUICK_SIZE)
