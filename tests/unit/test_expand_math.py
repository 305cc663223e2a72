"""ExpandMath: accuracy over the whole range, NaN and infinities, no-op, other types."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import TARGET, built
from tvm import te, tirx, topi

from tvm_stretch.passes.expand_math import ExpandMath
from tvm_stretch.targets.cpu.cpu import cpu_processor
from tvm_stretch.targets.kernels.schedule import schedule_kernel

EXACT = {
    "exp": np.exp,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log": np.log,
    "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "sin": np.sin,
    "cos": np.cos,
}


def elementwise(name: str, count: int, dtype: str = "float32") -> tvm.IRModule:
    """A PrimFunc that applies one function."""
    x = te.placeholder((count,), dtype, name="x")
    func = te.create_prim_func([x, getattr(topi, name)(x)])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def evaluate(mod: tvm.IRModule, values: np.ndarray) -> np.ndarray:
    out = tvm.runtime.empty(values.shape, str(values.dtype))
    tvm.tirx.build(mod, target=TARGET)["main"](tvm.runtime.tensor(values), out)
    return out.numpy()


def values_of_every_size() -> np.ndarray:
    dense = np.linspace(-120, 120, 4001)
    small = np.concatenate([np.geomspace(1e-44, 1, 500), np.linspace(0.5, 2, 501)])
    return np.concatenate([dense, small, -small, [0.0]]).astype("float32")


@pytest.mark.parametrize("name", EXACT)
def test_accuracy(name: str) -> None:
    values = values_of_every_size()
    mod = ExpandMath(doubles=True)(elementwise(name, len(values)))
    assert f"T.{name}" not in mod.script()
    with np.errstate(all="ignore"):
        exact = EXACT[name](values.astype("float64")).astype("float32")
    np.testing.assert_allclose(evaluate(mod, values), exact, rtol=1e-6, atol=2e-38)


@pytest.mark.parametrize("name", EXACT)
def test_nan_and_infinities(name: str) -> None:
    values = np.array([np.nan, np.inf, -np.inf], "float32")
    with np.errstate(all="ignore"):
        exact = EXACT[name](values.astype("float64")).astype("float32")
    got = evaluate(ExpandMath(doubles=True)(elementwise(name, 3)), values)
    np.testing.assert_allclose(got, exact, rtol=5e-7)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_large_numbers_have_exactly_one_as_their_value(name: str) -> None:
    """GELU of -1e30 is -1e23 if the last bit is missing; more than 1 is in no domain of acos."""
    values = np.array([-np.inf, -1e30, -20, -9.1, 9.1, 1e30, np.inf], "float32")
    got = evaluate(ExpandMath(doubles=True)(elementwise(name, len(values))), values)
    np.testing.assert_array_equal(got, np.sign(values))
    near = np.linspace(2.5, 9, 20001, dtype="float32")
    assert evaluate(ExpandMath(doubles=True)(elementwise(name, len(near))), near).max() <= 1


@pytest.mark.parametrize(("name", "dtype"), [("exp", "float64"), ("sqrt", "float32")])
def test_other_functions_and_types_are_left_alone(name: str, dtype: str) -> None:
    before = elementwise(name, 8, dtype)
    tvm.ir.assert_structural_equal(ExpandMath(doubles=True)(before), before)


def test_the_function_keeps_its_attributes() -> None:
    before = elementwise("exp", 8)
    after = ExpandMath(doubles=True)(before)
    assert isinstance(after["main"], tirx.PrimFunc)
    assert dict(after["main"].attrs) == dict(before["main"].attrs)


def stages(*names: str) -> tvm.IRModule:
    """A PrimFunc of functions of each other, each in a buffer, as FuseTIR leaves them."""
    x = value = te.placeholder((64,), name="x")
    for name in names:
        value = getattr(topi, name)(value)
    func = te.create_prim_func([x, value])
    return tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def test_a_third_function_of_each_other_is_a_call() -> None:
    """TVM's code generator took half a minute for three of them, and did not end for four."""
    text = ExpandMath(doubles=True)(stages("tanh", "sigmoid")).script()
    assert "T.tanh" not in text and "T.sigmoid" not in text
    text = ExpandMath(doubles=True)(stages("tanh", "sigmoid", "exp", "tanh")).script()
    assert "T.sigmoid" not in text
    assert text.count("T.exp(") == text.count("T.tanh(") == 1


def test_functions_beside_each_other_are_expanded() -> None:
    """Gates of an LSTM: tanh(sigmoid(a) * b + sigmoid(c) * tanh(d))."""
    a, b, c, d = (te.placeholder((8,), name=name) for name in "abcd")
    sums = topi.add(topi.multiply(topi.sigmoid(a), b), topi.multiply(topi.sigmoid(c), topi.tanh(d)))
    func = te.create_prim_func([a, b, c, d, topi.tanh(sums)])
    text = ExpandMath(doubles=True)(tvm.IRModule({"main": func})).script()
    assert "T.tanh" not in text and "T.sigmoid" not in text


def test_a_value_that_an_expression_reads_twice_has_copies_of_its_own() -> None:
    """A square of sigmoid; TVM's passes failed at one name in two places."""
    x = te.placeholder((2, 17, 7, 16), name="x")
    gate = topi.sigmoid(x)
    func = te.create_prim_func([x, topi.multiply(gate, gate)])
    expanded = ExpandMath(doubles=True)(tvm.IRModule({"main": func}))["main"]
    kernel = built(schedule_kernel(expanded, cpu_processor(TARGET, 1).machine))
    values = np.linspace(-9, 9, 3808, dtype="float32").reshape(2, 17, 7, 16)
    out = tvm.runtime.empty(values.shape, "float32")
    kernel["kernel"](tvm.runtime.tensor(values), out)
    exact = EXACT["sigmoid"](values)
    np.testing.assert_allclose(out.numpy(), exact * exact, rtol=1e-6)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sines_of_large_numbers(name: str) -> None:
    values = np.random.default_rng(0).uniform(-6e7, 6e7, 4000).astype("float32")
    values = np.concatenate([values, values / 1000])
    exact = EXACT[name](values.astype("float64"))
    mod = ExpandMath(doubles=True)(elementwise(name, len(values)))
    np.testing.assert_allclose(evaluate(mod, values), exact, rtol=1e-6, atol=5e-8)
    beyond = np.array([1e9, -1e30, 3.4e38], "float32")
    got = evaluate(ExpandMath(doubles=True)(elementwise(name, 3)), beyond)
    assert (np.abs(got) <= 1).all()
    at_the_end = EXACT[name](np.sign(beyond) * 6e7)  # as docs/differences.md says
    np.testing.assert_allclose(got, at_the_end, rtol=1e-6, atol=5e-8)


def test_sines_without_doubles() -> None:
    mod = elementwise("sin", 8)
    assert "T.sin" in ExpandMath(doubles=False)(mod).script()


def test_zero_keeps_its_sign() -> None:
    values = np.array([0.0, -0.0], "float32")
    for name in ("sin", "sinh", "asin", "atan", "asinh"):
        got = evaluate(ExpandMath(doubles=True)(elementwise(name, 2)), values)
        assert list(np.signbit(got)) == [False, True]
