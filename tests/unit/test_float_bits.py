"""Quantising by the bits of floats: the same number as the division and rounding of float32."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_stretch.targets.kernels.float_bits import is_saturating, is_scaling, quantise_bits

COUNT = 1 << 15
_RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


def kernel(scale: float, zero: int, dtype: str) -> tirx.PrimFunc:
    """What `saturated` and TVM make of quantising."""
    low, high = (tirx.const(float(v), "float32") for v in _RANGES[dtype])

    def element(x: tirx.Expr) -> tirx.Expr:
        whole = tirx.nearbyint(x / tirx.const(scale, "float32")) + tirx.const(zero, "float32")
        return tirx.max(low, tirx.min(high, whole)).astype("int32").astype(dtype)

    x = te.placeholder((COUNT,), "float32", name="x")
    out = te.compute((COUNT,), lambda i: element(x[i]), name="out")
    return te.create_prim_func([x, out]).with_attr("global_symbol", "main")


def bits_and_ties(seed: int, scale: np.float32) -> np.ndarray:
    """Any bits, special ones, and the neighbours of what lies between two results."""
    dice = np.random.default_rng(seed)
    some = dice.integers(0, 2**32, COUNT // 4, dtype="uint32").view("float32")
    ties = (dice.integers(-600, 600, COUNT // 2) + 0.5) * np.float64(scale)
    near = ties.astype("float32").view("int32") + dice.integers(-3, 4, COUNT // 2).astype("int32")
    plain = dice.normal(0, 100, COUNT // 4).astype("float32") * scale
    x = np.concatenate([some, near.view("float32"), plain])
    x[:8] = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38]
    return x


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 114), ("int8", -5)])
@given(st.one_of(st.floats(2.0**-99, 2.0**99, width=32), st.just(0.25)), st.integers(0, 99))
def test_the_same_number_for_every_float(dtype: str, zero: int, scale: float, seed: int) -> None:
    func = kernel(scale, zero, dtype)
    in_integers = func.with_body(quantise_bits(func.body))
    assert "float32(" not in in_integers.script() and "nearbyint" not in in_integers.script()
    x, out = bits_and_ties(seed, np.float32(scale)), tvm.runtime.empty((COUNT,), dtype)
    tvm.compile(tvm.IRModule({"main": in_integers}), target=TARGET)["main"](
        tvm.runtime.tensor(x), out
    )
    with np.errstate(all="ignore"):
        want = np.clip(np.rint(x / np.float32(scale)) + np.float32(zero), *_RANGES[dtype])
    want = np.where(np.isnan(want), 0, want).astype(dtype)
    np.testing.assert_array_equal(out.numpy(), want)


@pytest.mark.parametrize(
    ("kind", "number", "taken"),
    [
        ("divide", 0.02, True),
        ("multiply", 4.0, True),
        ("multiply", 3.0, False),  # rounds another number
        ("divide", -0.02, False),
        ("divide", 0.0, False),
        ("divide", float("inf"), False),
        ("divide", float("nan"), False),
        ("divide", 1e-38, False),  # a quarter is not normal
        ("subtract", 0.02, False),
    ],
)
def test_which_scales_are_taken(kind: str, number: float, taken: bool) -> None:
    assert is_scaling(kind, number) is taken


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ((114.0, 0.0, 255.0), True),
        ((0.5, 0.0, 255.0), False),
        ((0.0, 0.0, 65535.0), False),
        ((0.0, -float("inf"), 255.0), False),
        ((float("nan"), 0.0, 255.0), False),
    ],
)
def test_which_ranges_are_taken(limits: tuple[float, float, float], taken: bool) -> None:
    assert is_saturating(*limits) is taken
