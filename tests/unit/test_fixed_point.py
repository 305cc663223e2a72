"""Rounding in fixed point: as float32 rounds, and found again in what TVM makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm_stretch.targets.kernels.fixed_point import mantissas, narrowing_of, rounded
from tvm_stretch.targets.kernels.integers import Rounding

ROUNDINGS = (
    Rounding("uint8", 120, 0, 255),
    Rounding("int8", -7, -128, 100),
    Rounding("uint8", 0, 0, 255),
    Rounding("int8", 0, -128, 127),
)


def kernel(bits: int, rounding: Rounding) -> tvm.tirx.PrimFunc:
    n, b, m = (te.placeholder((4096,), "int32") for _ in range(3))
    out = te.compute((4096,), lambda i: rounded(n[i] + b[i], m[i], bits, rounding), name="out")
    return te.create_prim_func([n, b, m, out])


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_as_float32(rounding: Rounding) -> None:
    dice = np.random.default_rng(0)
    factor = dice.uniform(1e-4, 2e-3, 4096).astype("float32")
    number = (dice.normal(0, 60, 4096) / factor).astype("int32")
    found = mantissas(factor)
    assert found is not None
    got = np.empty(4096, rounding.dtype)
    run = tvm.compile(kernel(found[1], rounding), target="llvm")["main"]
    buffers = [tvm.runtime.tensor(a) for a in (number, number, found[0], got)]
    run(*buffers)
    want = np.rint((2 * number).astype("float32") * factor) + rounding.zero
    want = np.clip(want, rounding.low, rounding.high)
    assert (buffers[-1].numpy() != want).mean() < 1e-3  # halves go up here


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_found_again(rounding: Rounding) -> None:
    body = kernel(9, rounding).body.block.body
    while not isinstance(body, tvm.s_tir.SBlockRealize):
        body = body.body
    narrowing = narrowing_of(body.block.body.value)
    assert narrowing is not None
    assert (narrowing.bits, narrowing.rounding) == (9, rounding)
    assert narrowing_of(body.block.body.value.value) is None


def test_factors_that_share_no_bits() -> None:
    assert mantissas(np.array([0.3, 0.001], "float32")) is not None
    assert mantissas(np.array([0.7], "float32")) is None  # no bit is left to round with
    assert mantissas(np.array([0.3, 1e-9], "float32")) is None
    assert mantissas(np.array([0.3, -0.1], "float32")) is None
    found = mantissas(np.array([0.3, 0.0], "float32"))  # a channel of zeros
    assert found is not None and found[0][1] == 0
