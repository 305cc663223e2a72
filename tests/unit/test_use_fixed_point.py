"""Sums of products in integers: those of an exact definition, for any factor; and UseFixedPoint."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import floor, log2
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.integer_kernels import integer_kernel
from tvm_stretch.network.integers import Integer, Rounding, meaning_of
from tvm_stretch.passes.use_fixed_point import UseFixedPoint
from tvm_stretch.targets.cpu.kernels.integer_sums import fitted_sum, in_integers

COUNT = 16
ROUNDING = Rounding("uint8", 11, 0, 255)
FACTORS = {"sum": (0.3717345, 0.0131457, -9.1312), "sum with halves": (0.37, 0.0131, -9.25)}
"""Of both numbers, and what is added; of decimals some sums are halves."""


def without_floats(element: Any, *dtypes: str) -> tirx.PrimFunc:
    """A kernel of one axis, in which nothing computes in float32."""
    inputs = [te.placeholder((COUNT,), dtype, name=f"x{i}") for i, dtype in enumerate(dtypes)]
    out = te.compute((COUNT,), lambda i: element(*(x(i) for x in inputs)), name="out")
    func = te.create_prim_func([*inputs, out])
    assert 'Cast("float32"' not in func.script()
    return func


@functools.cache
def kernel(kind: str) -> Any:
    def product(n: Any, f: Any) -> Any:
        return in_integers(ROUNDING, [(n, f)], None)

    def product_of_two(a: Any, b: Any) -> Any:
        n = (a.astype("int32") - 3) * (b.astype("int32") - 100)
        return in_integers(ROUNDING, [(n, tirx.const(0.0043, "float32"))], 77.0)

    def sum_of_two(factors: Sequence[float]) -> Any:
        of_a, of_b = (tirx.const(f, "float32") for f in factors[:2])
        return lambda a, b: in_integers(ROUNDING, [(b, of_b), (a, of_a)], factors[2])

    def sum_with_one(a: Any, b: Any) -> Any:
        factors = (tirx.const(f, "float32") for f in (1.0, 0.375))
        return in_integers(ROUNDING, list(zip((a, b), factors, strict=True)), None)

    if kind == "product":
        func = without_floats(product, "int32", "float32")
    elif kind == "product of two":
        func = without_floats(product_of_two, "uint8", "uint8")
    elif kind == "sum with one":
        func = without_floats(sum_with_one, "uint8", "uint8")
    else:
        func = without_floats(sum_of_two(FACTORS[kind]), "uint8", "uint8")
    return tvm.compile(tvm.IRModule({"main": func}), "llvm")


def run(kind: str, *inputs: np.ndarray) -> np.ndarray:
    out = tvm.runtime.tensor(np.zeros(COUNT, "uint8"))
    kernel(kind)(*map(tvm.runtime.tensor, inputs), out)
    return out.numpy()


def rounded(value: Fraction) -> int:
    """To nearest, halves up; then the zero point and the ends of the type."""
    return min(max(floor(value + Fraction(1, 2)) + ROUNDING.zero, 0), 255)


factors = st.floats(2.0**-30, 30.0, width=32)
numbers = st.one_of(st.integers(-(2**24), 2**24), st.integers(-3000, 3000))


@settings(max_examples=max(60, settings().max_examples * 10))
@given(st.lists(st.tuples(numbers, factors), min_size=COUNT, max_size=COUNT))
def test_products_are_rounded_exactly(pairs: list[tuple[int, float]]) -> None:
    n = np.array([pair[0] for pair in pairs], "int32")
    f = np.array([pair[1] for pair in pairs], "float32")
    want = [rounded(Fraction(int(a)) * Fraction(float(b))) for a, b in zip(n, f, strict=True)]
    assert list(run("product", n, f)) == want


def test_channels_that_do_not_exist_have_factor_zero() -> None:
    n = np.arange(COUNT, dtype="int32") * 10**6
    assert set(run("product", n, np.zeros(COUNT, "float32"))) == {ROUNDING.zero}


def test_sums_differ_at_most_where_they_are_nearly_halves() -> None:
    dice, kind = np.random.default_rng(0), "sum with halves"
    exact = [Fraction(float(np.float32(v))) for v in FACTORS[kind]]
    for _ in range(20):
        a, b = (dice.integers(0, 256, COUNT).astype("uint8") for _ in range(2))
        for got, x, y in zip(run(kind, a, b), a, b, strict=True):
            value = exact[0] * int(x) + exact[1] * int(y) + exact[2]
            distance = abs(value - floor(value) - Fraction(1, 2))
            assert got == rounded(value) or distance < Fraction(1, 2**12)


def in_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What the kernel of a sum says, in multiply-adds that round once."""
    first, second, offset = np.float64(np.float32(FACTORS["sum"]))
    inner = (a * first + offset).astype("float32")
    value = (b * second + inner).astype("float32")
    return np.clip(np.rint(value) + ROUNDING.zero, 0, 255).astype("uint8")


def test_every_sum_of_two_numbers_of_8_bits_is_that_of_float32() -> None:
    all_b = np.arange(256, dtype="uint8").reshape(-1, COUNT)
    for a in range(256):
        first = np.full(COUNT, a, "uint8")
        want = in_float32(first, all_b)
        np.testing.assert_array_equal([run("sum", first, b) for b in all_b], want)


pieces = st.floats(2.0**-6, 1.5, width=32)
zeros = st.integers(0, 255)


@given(pieces, pieces, zeros, zeros, zeros)
def test_fitted_sums(of_a: float, of_b: float, zero_a: int, zero_b: int, zero: int) -> None:
    """Of any two factors; halves that are sums have none."""
    numbers = [np.arange(256), np.arange(-128, 128)]
    offset = np.float32(-of_a * zero_a - of_b * (zero_b - 128))

    def value(pair: Iterator[np.ndarray]) -> np.ndarray:
        a, b = (n.astype("float32") for n in pair)
        return a * np.float32(of_a) + (b * np.float32(of_b) + offset)

    limits = -zero, 255 - zero
    bits = floor(30 - log2(256 * (of_a + of_b) + abs(offset)))
    found = fitted_sum(numbers, [of_a, of_b], value, limits, bits)
    a, b = (grid.ravel() for grid in np.meshgrid(*numbers, indexing="ij"))
    exact = value(iter((a, b)))
    if found is None:
        distance = np.abs(exact - np.floor(exact) - 0.5)
        assert distance[(exact > -zero - 1) & (exact < 256 - zero)].min() < 2.0**-14
        return
    (first, second), last = found
    total = a * first + b * second + last
    assert np.abs(total).max() < 2**31
    np.testing.assert_array_equal(
        np.clip(total >> bits, *limits), np.rint(np.clip(exact, *limits)).astype(int)
    )


def test_products_of_two_numbers_of_8_bits() -> None:
    """They have 16 bits: a factor of 21 bits would be wrong in 21 of all cases."""
    all_b = np.arange(256, dtype="uint8").reshape(-1, COUNT)
    for a in range(256):
        exact = np.float64(np.float32(0.0043)) * ((a - 3) * (all_b.astype(int) - 100)) + 77
        want = np.clip(np.floor(exact + 0.5) + ROUNDING.zero, 0, 255)
        first = np.full(COUNT, a, "uint8")
        np.testing.assert_array_equal([run("product of two", first, b) for b in all_b], want)


def test_factor_of_one() -> None:
    a, b = np.random.default_rng(0).integers(0, 256, (2, COUNT)).astype("uint8")
    want = [rounded(int(x) + Fraction(3, 8) * int(y)) for x, y in zip(a, b, strict=True)]
    assert list(run("sum with one", a, b)) == want


def test_factors_beyond_int32_are_refused() -> None:
    def huge(a: Any, b: Any) -> Any:
        factor = tirx.const(1e8, "float32")
        return in_integers(ROUNDING, [(a, factor), (b, factor)], None)

    with pytest.raises(UnsupportedError, match="place it on the CPU"):
        without_floats(huge, "uint8", "uint8")


def test_kernels_of_integer_operators_are_written_again() -> None:
    of_a, of_b, offset = FACTORS["sum"]
    integer = Integer("add", ROUNDING, factors=(of_b, of_a, offset))
    given, _ = integer_kernel(integer, (((COUNT,), "uint8"),) * 2)
    assert 'Cast("float32"' in given.script()
    func = UseFixedPoint()(tvm.IRModule({"main": given}))["main"]
    assert "float32" not in func.script().replace("tvm_stretch.integer", "")
    assert meaning_of(func) == integer
    named = func.with_attr("global_symbol", "main")
    run_it = tvm.compile(tvm.IRModule({"main": named}), "llvm")["main"]
    a, b = np.random.default_rng(0).integers(0, 256, (2, COUNT)).astype("uint8")
    out = tvm.runtime.tensor(np.zeros(COUNT, "uint8"))
    run_it(*map(tvm.runtime.tensor, (b, a)), out)
    np.testing.assert_array_equal(out.numpy(), in_float32(a, b))


def test_other_kernels_stay() -> None:
    x = te.placeholder((COUNT,), "float32", name="x")
    out = te.compute((COUNT,), lambda i: x[i] * tirx.const(2.0, "float32") + x[i], name="out")
    mod = tvm.IRModule({"main": te.create_prim_func([x, out])})
    assert UseFixedPoint()(mod)["main"].same_as(mod["main"])
