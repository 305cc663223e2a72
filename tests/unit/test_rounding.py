"""The bound of rounding lets all right answers pass, and no answer that misses a product."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import relax_numpy
from helpers.relax_helpers import answers, module, random_const, random_inputs, two_convolutions
from helpers.rounding import allowed, assert_rounded, winograd_gain
from tvm import relax


def test_float32_keeps_to_it(monkeypatch):
    mod = two_convolutions()
    inputs = random_inputs(mod)
    (got,) = answers(mod, *inputs)
    monkeypatch.setattr(relax_numpy, "_check", lambda *_: None)  # no value has its type then
    doubles = [x.astype("float64") for x in inputs]
    exact = relax_numpy.evaluate(mod, *doubles, constant=lambda c: c.astype("float64"))
    apart, most = np.abs(got - exact), allowed(mod, *inputs)[0]
    assert (apart <= most).all() and apart.max() > 1e-4 * most.max()


def test_a_pixel_that_is_left_out_shows():
    mod = two_convolutions()
    inputs = random_inputs(mod)
    (want,) = answers(mod, *inputs)
    inputs[0][0, 3, 4, 4] = 0
    (got,) = answers(mod, *inputs)
    with pytest.raises(AssertionError, match="rounding explains"):
        assert_rounded(mod, inputs, got, want)


def test_float16_does_not_pass_for_float32():
    mod = two_convolutions()
    inputs = random_inputs(mod)
    (want,) = answers(mod, *inputs)
    with pytest.raises(AssertionError, match="rounding explains"):
        assert_rounded(mod, inputs, want.astype("float16").astype("float32"), want)


def test_differences_of_large_numbers_may_be_wrong_by_as_much():
    mod = module(
        lambda x: relax.op.negative(relax.op.subtract(x, random_const(1, 4, 3, 3))), (1, 4, 3, 3)
    )
    (most,) = allowed(mod, np.full((1, 4, 3, 3), 1e6, "float32"))
    assert (most >= 2**-24 * 1e6).all()


def test_winograd_loses_more_digits_by_larger_tiles():
    """Squared errors: F(2x2) 2.8 times those of direct sums, F(4x4) by 989."""
    assert winograd_gain(2) == pytest.approx((5 / 3) ** 2)
    assert winograd_gain(4) == pytest.approx(988.75, rel=1e-4)
