"""Convolutions with moved taps beside ONNX Runtime: groups, borders, windows that do not divide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.one_operator import Case, Dice

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read import load_network

DICE = Dice()
numbers = DICE.numbers


def _case(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    out: tuple[int, int],
    reach: float,
    **given: Any,
) -> Case:
    """One with a bias and a mask; offsets are ``reach`` pixels in the mean."""
    attributes = {"group": 1, "offset_group": 1, "pads": [0] * 4, **given}
    taps = attributes["offset_group"] * weight[2] * weight[3]
    offsets = numbers(shape[0], 2 * taps, *out) * np.float32(reach)
    inputs = [numbers(*shape), numbers(*weight), offsets, numbers(weight[0])]
    inputs.append(numbers(shape[0], taps, *out))
    return Case("DeformConv", inputs, attributes, fixed=(1,), domain="", opset=19)


CASES = {
    "groups": _case(
        (2, 6, 9, 7), (4, 3, 3, 3), (7, 7), 1.5, group=2, offset_group=3, pads=[1] * 4,
        dilations=[2, 1],
    ),
    "strides": _case(
        (2, 4, 9, 7), (6, 4, 3, 2), (5, 7), 1.5, strides=[2, 1], pads=[1, 0, 2, 1]
    ),
    "far away": _case((1, 4, 8, 8), (6, 4, 3, 3), (8, 8), 30.0, pads=[1] * 4),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [n if n == "groups" else pytest.param(n, marks=pytest.mark.full) for n in CASES]
)
def test_same_as_onnx_runtime(name: str) -> None:
    """36 products of numbers below 100, and a place that is rounded below 40."""
    case = CASES[name]
    (got,), (want,) = case.computed(), case.expected()
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=36 * 100 * 2.0**-24)


def test_offsets_of_another_window_are_refused() -> None:
    case = _case((1, 4, 8, 8), (6, 4, 3, 3), (6, 6), 1.0)
    case.inputs[2] = numbers(1, 16, 6, 6)
    with pytest.raises(UnsupportedError, match="18 offsets for each of 1 pieces of 4 channels"):
        load_network(case.model())
