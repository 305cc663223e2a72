"""Exponentials written out: accuracy, special values, and that they vectorize."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm_stretch.targets.kernels.fused import ANNOTATION, split_fused
from tvm_stretch.targets.kernels.generic import schedule_generic
from tvm_stretch.targets.kernels.machine import VectorMachine
from tvm_stretch.targets.kernels.vector_math import vectorize_math
from tvm_stretch.targets.kernels.window import WindowConfig, window_compute, write_window

MACHINE = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)


def elementwise(operation, size):
    x = te.placeholder((size,), name="x")
    return schedule_generic(te.create_prim_func([x, operation(x)]), MACHINE)


def run(func, *arrays, shape):
    out = tvm.runtime.tensor(np.zeros(shape, "float32"))
    func = func.with_attrs({"global_symbol": "main", "tirx.noalias": True})
    tvm.tirx.build(func, target="llvm")["main"](*map(tvm.runtime.tensor, arrays), out)
    return out.numpy()


def test_exponential_is_good_to_two_units_in_the_last_place():
    x = np.linspace(-87, 88.7, 2**16).astype("float32")
    y = run(vectorize_math(elementwise(topi.exp, x.size)), x, shape=x.shape)
    exact = np.exp(x.astype("float64"))
    assert (np.abs(y - exact) / np.spacing(exact.astype("float32"))).max() <= 2


def test_exponential_underflows_gradually():
    x = np.linspace(-105, -87, 4096).astype("float32")
    y = run(vectorize_math(elementwise(topi.exp, x.size)), x, shape=x.shape)
    np.testing.assert_allclose(y, np.exp(x.astype("float64")), rtol=1e-6, atol=3e-45)


@pytest.mark.parametrize("operation", [topi.exp, topi.sigmoid])
def test_special_values_are_those_of_the_library(operation):
    x = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 89, 1e30, -1e30], "float32")
    func = elementwise(operation, x.size)
    np.testing.assert_array_equal(
        run(vectorize_math(func), x, shape=x.shape), run(func, x, shape=x.shape)
    )


def test_sigmoid():
    x = np.linspace(-90, 90, 4096).astype("float32")
    y = run(vectorize_math(elementwise(topi.sigmoid, x.size)), x, shape=x.shape)
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype("float64"))), rtol=1e-6, atol=1e-38)


def test_no_library_call_remains():
    func = vectorize_math(elementwise(topi.sigmoid, 64)).with_attr("global_symbol", "main")
    assert "expf" not in tvm.tirx.build(func, target="llvm").inspect_source("asm")


def test_swish_behind_a_depthwise_convolution():
    config = WindowConfig(
        kind="depthwise", batch=1, channels=8, in_size=(9, 11), kernel=(3, 3), stride=(1, 1),
        padding=(1, 1, 1, 1), dilation=(1, 1), lanes=8,
    )  # fmt: skip
    data = te.placeholder((1, 1, 9, 11, 8), name="data")
    weight = te.placeholder((1, 3, 3, 8), name="weight")
    conv = window_compute(config, data, weight, {ANNOTATION: "x"})
    meaning = te.create_prim_func([data, weight, topi.multiply(conv, topi.sigmoid(conv))])
    fused = split_fused(meaning)
    body = write_window(config, MACHINE, fused.operands, fused.epilogue)
    kernel = vectorize_math(tirx.PrimFunc(meaning.params, body).with_attr("s_tir", True))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s, dtype="float32") for s in [(1, 1, 9, 11, 8), (1, 3, 3, 8)]]
    expected, actual = (run(f, *arrays, shape=(1, 1, 9, 11, 8)) for f in (meaning, kernel))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_nothing_to_do_changes_nothing():
    func = elementwise(topi.nn.relu, 64)
    assert vectorize_math(func).same_as(func)
