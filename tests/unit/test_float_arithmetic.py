"""Floats are no real numbers, from the passes to machine code and OpenCL C."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import random_expressions
import tvm
import tvm_ffi
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module
from random_expressions import Expression
from tvm import relax, tirx
from tvm.ir import Expr

import tvm_stretch as ts
from tvm_stretch.make.code.float_arithmetic import simplify_integers

X, Y, Z = (Expression("input", value=float(number)) for number in range(3))


def _const(value: float) -> Expression:
    return Expression("constant", value=value)


def _op(op: str, *operands: Expression) -> Expression:
    return Expression(op, operands)


def _sum(x: Expression, y: Expression) -> Expression:
    return _op("Add", x, y)


def _less(x: Expression, y: Expression) -> Expression:
    return _op("Sub", x, y)


ONE, ZERO, NAN, MAGIC = map(_const, (1.0, 0.0, math.nan, 12582912.0))
SPLIT = _op("Mul", X, _const(4097.0))
TOTAL = _sum(X, Y)
WRITTEN = {
    "rounding by a magic number": _less(_sum(X, MAGIC), MAGIC),
    "what a sum lost": _less(_sum(X, ONE), X),
    "Kahan's correction": _less(_less(TOTAL, X), Y),
    "Veltkamp's halves, which a fused product breaks": _less(SPLIT, _less(SPLIT, X)),
    "the error of a product": _less(_op("Mul", X, Y), _op("Mul", X, Y)),
    "NaN differs from itself": _op("Where", _op("Not", _op("Equal", X, X)), ZERO, X),
    "not less is not greater or equal": _op("Where", _op("Not", _op("Less", X, Y)), X, Z),
    "less or equal": _op("Where", _op("LessOrEqual", X, Y), X, Z),
    "neither less nor not less": _op(
        "Where", _op("Or", _op("Less", X, Y), _op("GreaterOrEqual", X, Y)), X, Z
    ),
    "times zero": _op("Mul", X, ZERO),
    "zero divided": _op("Div", ZERO, X),
    "divided by zero": _op("Div", X, ZERO),
    "divided by itself": _op("Div", X, X),
    "divided by three": _op("Div", X, _const(3.0)),
    "divided by the smallest number": _op("Div", X, _const(-1e-45)),
    "minus itself": _less(X, X),
    "plus zero": _sum(X, ZERO),
    "negated": _op("Neg", X),
    "zero minus": _less(ZERO, X),
    "two sums of constants": _sum(_sum(X, _const(16777218.0)), _const(1.5)),
    "the smaller of NaN": _op("Min", X, NAN),
    "the larger of weights": _op("Max", Expression("weights", value=1.0), X),
    "the smaller of a number and weights": _op("Min", X, Expression("weights", value=2.0)),
    "divided by a zero that is chosen twice": _op(
        "Div", X, _op("Where", _op("Less", X, Y), ZERO, ZERO)
    ),
    "a sum with NaN, rounded": _op("Floor", _sum(X, NAN)),
    "a product with a zero chosen twice": _op(
        "Mul", X, _op("Where", _op("Less", X, Y), ZERO, ZERO)
    ),
}


@pytest.mark.parametrize("target", [TARGET, "opencl"], ids=["cpu", "opencl"])
def test_expressions_that_programs_write(target: object) -> None:
    wrong = random_expressions.differences([*WRITTEN.values()], [target], cpu_threads=1)
    names = {str(expression): name for name, expression in WRITTEN.items()}
    assert not {names[str(expression)]: what for expression, what in wrong.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", [TARGET, "opencl"], ids=["cpu", "opencl"])
def test_random_expressions(target: object, dtype: str) -> None:
    batch = random_expressions.draw(10, seed=0)
    assert not random_expressions.differences(batch, [target], dtype=dtype, cpu_threads=1)


@pytest.mark.full
@pytest.mark.parametrize("target", [TARGET, "opencl"], ids=["cpu", "opencl"])
@pytest.mark.parametrize("seed", range(20))
def test_more_random_expressions(target: object, seed: int) -> None:
    batch = random_expressions.draw(100, seed=1000 + seed)
    dtype = "bfloat16" if seed % 4 == 0 else "float32"
    assert not random_expressions.differences(batch, [target], dtype=dtype, cpu_threads=1)


@pytest.mark.parametrize("target", [TARGET, "opencl"], ids=["cpu", "opencl"])
def test_a_polynomial_of_what_bfloat16_rounds(target: object) -> None:
    """TVM forgets casts in the value of a `Let`, of which an exponential is made."""
    x = relax.Var("x", relax.TensorType((600,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            short = builder.emit(relax.op.astype(x, "bfloat16"))
            wide = builder.emit(relax.op.astype(short, "float32"))
            gated = builder.emit(relax.op.multiply(wide, relax.op.sigmoid(wide)))
            result = builder.emit_output(gated)
        builder.emit_func_output(result)
    values = np.linspace(-9, 9, 600, dtype="float32")
    values[:3] = [math.nan, math.inf, np.uint32(0x7FFFFFFF).view("float32")]
    rounded = values.astype(ml_dtypes.bfloat16).astype("float32")
    answer = ts.compile(builder.get(), [target], cpu_threads=1)(values)
    np.testing.assert_allclose(answer, rounded / (1 + np.exp(-rounded)), rtol=2e-6, atol=1e-7)


def test_a_wrong_answer_is_found_and_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    right = random_expressions._ARITHMETIC["Mul"]
    monkeypatch.setitem(random_expressions._ARITHMETIC, "Mul", lambda a, b: right(a, b) + a)
    expression = _op("Abs", _sum(_op("Mul", X, Y), Y))
    assert random_expressions.differences([expression], [TARGET], cpu_threads=1)
    smallest = random_expressions.smallest(expression, [TARGET], cpu_threads=1)
    assert str(smallest) == "Mul(x, y)"


x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
zero, three = (tirx.FloatImm("float32", value) for value in (0.0, 3.0))
FLOATS: dict[str, Expr] = {
    "x + 3 - 3": tirx.Sub(tirx.Add(x, three), three),
    "x - x": tirx.Sub(x, x),
    "x == x": tirx.EQ(x, x),
    "x != x": tirx.NE(x, x),
    "not x < y": tirx.Not(tirx.LT(x, y)),
    "x < y or x >= y": tirx.Or(tirx.LT(x, y), tirx.GE(x, y)),
    "x * 0": tirx.Mul(x, zero),
    "0 / x": tirx.Div(zero, x),
    "x / 0": tirx.Div(x, zero),
    "x * -0.0": tirx.Mul(x, tirx.FloatImm("float32", -0.0)),
}


def _simplified(value: Expr) -> Expr:
    kernel = tirx.PrimFunc([x, y, i], tirx.Evaluate(value))
    passes = simplify_integers(tirx.transform.StmtSimplify())
    return passes(tvm.IRModule({"kernel": kernel}))["kernel"].body.value


i = tirx.Var("i", "int32")


@pytest.mark.parametrize("text", FLOATS)
def test_the_simplifier_leaves_floats(text: str) -> None:
    value = FLOATS[text]
    assert tvm_ffi.structural_equal(_simplified(value), value)
    if "0.0" in text:
        assert np.signbit(_simplified(value).b.value)


def test_the_simplifier_knows_integers() -> None:
    assert str(_simplified(tirx.Sub(tirx.Add(i, tirx.const(3)), tirx.const(3)))) == "i"


@pytest.mark.parametrize("target", [TARGET, "opencl"], ids=["cpu", "opencl"])
def test_nan_differs_from_itself(target: object) -> None:
    """As torch writes `isnan`, counted as `nanmean` does."""

    def body(x: relax.Expr) -> relax.Expr:
        is_number = relax.op.logical_not(relax.op.not_equal(x, x))
        return relax.op.sum(relax.op.astype(is_number, "float32"), axis=[0])

    x = np.array([[1, math.nan], [math.inf, 2], [math.nan, math.nan]], dtype="float32")
    model = ts.compile(module(body, (3, 2)), [target], cpu_threads=1)
    assert model(x).tolist() == [2, 1]
