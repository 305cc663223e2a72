"""KeepNan: Before / Expected kernels, and what they compute from NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.relax_helpers import module, run
from tvm import relax
from tvm.ir import IRModule, assert_structural_equal
from tvm.script import tirx as T

from tvm_stretch.passes.keep_nan import KeepNan

op = relax.op
X = np.float32([[np.nan, 1, -np.inf, 9], [-np.inf, -np.inf, -np.inf, -np.inf]])


@T.prim_func(private=True, s_tir=True)
def clip(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    """The bounds second."""
    for i in range(8):
        with T.sblock("y"):
            j = T.axis.spatial(8, i)
            y[j] = T.max(T.min(x[j], T.float32(6)), T.float32(0))


@T.prim_func(private=True, s_tir=True)
def clip_expected(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    """The bounds first."""
    for i in range(8):
        with T.sblock("y"):
            j = T.axis.spatial(8, i)
            y[j] = T.max(T.float32(0), T.min(T.float32(6), x[j]))


@T.prim_func(private=True, s_tir=True)
def running(x: T.Buffer((8,), "float32"), y: T.Buffer((1,), "float32")):
    """A maximum that starts from the lowest number."""
    for i in range(8):
        with T.sblock("y"):
            k = T.axis.reduce(8, i)
            with T.init():
                y[0] = T.float32(-3.4028234663852886e38)
            y[0] = T.max(y[0], x[k])


@T.prim_func(private=True, s_tir=True)
def running_expected(x: T.Buffer((8,), "float32"), y: T.Buffer((1,), "float32")):
    """A maximum that starts from minus infinity and skips NaN."""
    for i in range(8):
        with T.sblock("y"):
            k = T.axis.reduce(8, i)
            with T.init():
                y[0] = T.float32("-inf")
            y[0] = T.max(x[k], y[0])


@pytest.mark.parametrize(
    ("before", "expected"), [(clip, clip_expected), (running, running_expected)]
)
def test_rewrites(before, expected) -> None:
    assert_structural_equal(
        KeepNan()(IRModule({"f": before})), IRModule({"f": expected}), map_free_vars=True
    )


@pytest.mark.parametrize("kernel", [clip_expected, running_expected])
def test_no_op(kernel) -> None:
    mod = IRModule({"f": kernel})
    assert_structural_equal(KeepNan()(mod), mod)


def test_integers_stay() -> None:
    mod = module(lambda x: op.maximum(x, relax.const(3, "int32")), (4,), dtype="int32")
    mod = relax.transform.LegalizeOps()(mod)
    assert_structural_equal(KeepNan()(mod), mod)


CASES = {
    "relu": (lambda x: op.nn.relu(x), np.maximum(X, 0)),
    "clip": (
        lambda x: op.clip(x, relax.prim_value(0.0), relax.prim_value(6.0)),
        np.clip(X, 0, 6),
    ),
    "max": (lambda x: op.max(x, [1]), np.fmax.reduce(X, 1)),
    "min": (lambda x: op.min(x, [1]), np.fmin.reduce(X, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    body, want = CASES[name]
    mod = KeepNan()(relax.transform.LegalizeOps()(module(body, (2, 4))))
    np.testing.assert_array_equal(run(mod, X)[0], want)
