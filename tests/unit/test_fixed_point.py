"""Rounding in fixed point: as float32 rounds, and found again in what TVM makes of it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import te

from tvm_stretch.network.integers import Rounding
from tvm_stretch.targets.kernels.fixed_point import (
    FixedPoint,
    mantissas,
    narrowing_call,
    narrowing_of,
    rounded,
    write_out,
)

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


@functools.cache
def compiled(bits: int) -> Any:
    return tvm.compile(kernel(bits, ROUNDINGS[1]), target="llvm")["main"]


_ENDS = st.one_of(
    *(st.integers(0, 2**14).map(lambda d, end=end: end + d * (-1 if end > 0 else 1))
      for end in (2**31 - 1, -(2**31))),
    st.integers(-(2**31), 2**31 - 1),
)  # fmt: skip
_MANTISSAS = st.one_of(
    st.integers(2**31 - 2**10, 2**31 - 1), st.integers(2**22, 2**31 - 1), st.just(0)
)


@given(
    st.sampled_from((1, 2, 9, 15)),
    st.lists(st.tuples(_ENDS, _MANTISSAS), min_size=1, max_size=64),
)
def test_rounded_exactly_up_to_the_ends_of_int32(bits: int, pairs: list[tuple[int, int]]) -> None:
    """Sums that a bias takes near them: half a unit more must not wrap."""
    rounding = ROUNDINGS[1]
    number, mantissa = np.zeros((2, 4096), "int32")
    number[: len(pairs)], mantissa[: len(pairs)] = zip(*pairs, strict=True)
    got = tvm.runtime.tensor(np.empty(4096, rounding.dtype))
    arrays = (number, np.zeros(4096, "int32"), mantissa)
    compiled(bits)(*map(tvm.runtime.tensor, arrays), got)
    for (n, m), y in zip(pairs, got.numpy(), strict=False):
        exact = (n * m + (1 << (30 + bits)) >> (31 + bits)) + rounding.zero  # halves up
        assert y == min(max(exact, rounding.low), rounding.high), (n, m)


@pytest.mark.parametrize("bits", [1, 9])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_call_says_how_it_rounds(rounding: Rounding, bits: int) -> None:
    number, mantissa = (tvm.tirx.Var(name, "int32") for name in ("number", "mantissa"))
    call = narrowing_call(number, mantissa, FixedPoint(bits, rounding))
    found = narrowing_of(call)
    assert found is not None
    assert (found.bits, found.rounding) == (bits, rounding)
    assert found.number.same_as(number) and found.mantissa.same_as(mantissa)
    written = write_out(tvm.tirx.Evaluate(call)).value
    tvm.ir.assert_structural_equal(written, rounded(number, mantissa, bits, rounding))
    assert narrowing_of(written) is None


def test_factors_that_share_no_bits() -> None:
    assert mantissas(np.array([0.3, 0.001], "float32")) is not None
    assert mantissas(np.array([0.7], "float32")) is None  # no bit is left to round with
    assert mantissas(np.array([0.3, 1e-9], "float32")) is None
    assert mantissas(np.array([0.3, -0.1], "float32")) is None
    found = mantissas(np.array([0.3, 0.0], "float32"))  # a channel of zeros
    assert found is not None and found[0][1] == 0
