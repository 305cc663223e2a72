"""The greatest of a long row in two steps."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.gpu_checks import described_gpu, needs_device
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.passes.split_extremes import SplitExtremes


def extremes(shape: tuple[int, ...], axis: int | None, keepdims: bool) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    with bb.function("main", [x := relax.Var("x", relax.TensorType(shape, "float32"))]):
        with bb.dataflow():
            most, least = (
                bb.emit(function(x, axis, keepdims)) for function in (relax.op.max, relax.op.min)
            )
            both = bb.emit_output(bb.emit(relax.op.subtract(most, least)))
        bb.emit_func_output(both)
    return bb.get()


def count(mod: tvm.IRModule) -> int:
    return mod.script().count("R.max(")


@pytest.mark.parametrize(
    ("shape", "axis", "steps"),
    [
        ((2, 49152), -1, 2),
        ((2, 2047), 1, 1),
        ((2, 2053), 1, 1),
        ((2048, 2), 0, 1),
        ((300, 4096), 1, 1),
        ((1, 3, 4096), 2, 2),
        ((3, 0), 1, 1),
    ],
    ids=["long", "short", "a prime number", "columns", "many rows", "three axes", "no columns"],
)
def test_long_rows_alone_are_split(shape: tuple[int, ...], axis: int, steps: int) -> None:
    assert count(SplitExtremes()(extremes(shape, axis, keepdims=True))) == steps


def test_a_number_has_no_row() -> None:
    assert count(SplitExtremes()(extremes((), None, keepdims=False))) == 1


@needs_device
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_gpu_finds_the_same(keepdims: bool) -> None:
    x = np.random.default_rng(0).standard_normal((3, 6000), dtype="float32")
    x[1, 77], x[2, 5999] = np.inf, np.nan
    answer = ts.compile(extremes(x.shape, -1, keepdims), [described_gpu()])(x)
    expected = x.max(-1, keepdims=keepdims) - x.min(-1, keepdims=keepdims)
    np.testing.assert_array_equal(answer, expected)
