"""Transpositions in registers give the numbers of plain loops, at borders and after slices too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import tvm
from helpers.cpu_targets import built
from tvm import te, tirx
from tvm.ir import Expr

from tvm_stretch.make.assemble import with_strides
from tvm_stretch.targets.kernels.generic import schedule_generic
from tvm_stretch.targets.kernels.machine import VectorMachine

MACHINE = VectorMachine(lanes=8, registers=16, broadcast_operand=False, l2_bytes=2**19, threads=1)

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable]] = {
    "whole squares": ((32, 48), (48, 32), lambda x, i, j: x[j, i]),
    "borders": ((19, 35), (35, 19), lambda x, i, j: x[j, i]),
    "one square": ((16, 17), (17, 16), lambda x, i, j: x[j, i]),
    "stacks": ((3, 21, 16), (3, 16, 21), lambda x, b, i, j: x[b, j, i]),
    "merged axes": ((2, 5, 7, 20), (2, 20, 5, 7), lambda x, n, c, h, w: x[n, h, w, c]),
    "axes beside": ((2, 20, 3, 18), (3, 18, 2, 20), lambda x, k, i, b, j: x[b, j, k, i]),
    "a slice": ((40, 50), (17, 19), lambda x, i, j: x[j + 3, i + 5]),
    "an epilogue": ((33, 18), (18, 33), lambda x, i, j: tirx.max(x[j, i], 0) * 2 + 1),
}


def moved(name: str, dtype: str = "float32") -> tirx.PrimFunc:
    """The kernel of a case, not yet scheduled."""
    given, shape, value = CASES[name]
    x = te.placeholder(given, dtype, name="x")
    out = te.compute(shape, lambda *at: value(x, *at).astype(dtype), name="out")
    return te.create_prim_func([x, out], "int64")


def numbers(func: tirx.PrimFunc, seed: int = 0) -> list[np.ndarray]:
    """Results of the kernel for some operands."""
    rng = np.random.default_rng(seed)
    shapes = [[int(d) for d in param.shape] for param in func.params]
    arrays = [rng.integers(-99, 99, s).astype(str(func.params[0].dtype)) for s in shapes]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    built(func.with_attr("tirx.noalias", True))["kernel"](*tensors)
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.variants(3)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name: str, lanes: int, dtype: str) -> None:
    func = moved(name, dtype)
    scheduled = schedule_generic(func, replace(MACHINE, lanes=lanes))
    assert "T.Shuffle" in scheduled.script()
    np.testing.assert_array_equal(numbers(scheduled)[-1], numbers(func)[-1])


def test_other_operands_are_read_where_the_result_is_stored() -> None:
    shapes = (3, 21, 16), (3, 16, 21), (16, 1), ()
    x, y, b, scalar = (te.placeholder(shape, "float32") for shape in shapes)

    def value(n: Expr, i: Expr, j: Expr) -> Expr:
        return x[n, j, i] * y[n, i, j] + b[i, 0] - scalar[()]

    func = te.create_prim_func([x, y, b, scalar, te.compute((3, 16, 21), value)], "int64")
    scheduled = schedule_generic(func, MACHINE)
    assert "T.Shuffle" in scheduled.script()
    np.testing.assert_array_equal(numbers(scheduled)[-1], numbers(func)[-1])


def test_cores_share_large_transpositions_only() -> None:
    assert (
        "T.parallel" not in schedule_generic(moved("borders"), replace(MACHINE, threads=3)).script()
    )
    x = te.placeholder((300, 200), "float32")
    func = te.create_prim_func([x, te.compute((200, 300), lambda i, j: x[j, i])], "int64")
    shared = schedule_generic(func, replace(MACHINE, threads=3))
    assert "T.parallel" in shared.script()
    np.testing.assert_array_equal(numbers(shared)[-1], numbers(func)[-1])


def _twice() -> tirx.PrimFunc:
    """Two operands that jump."""
    x, y = (te.placeholder((32, 48), "float32") for _ in range(2))
    return te.create_prim_func(
        [x, y, te.compute((48, 32), lambda i, j: x[j, i] + y[j, i])], "int64"
    )


def _padded() -> tirx.PrimFunc:
    """Reads only some numbers."""
    x = te.placeholder((32, 48), "float32")

    def value(i: Expr, j: Expr) -> Expr:
        return tirx.if_then_else(j < 32, x[j, i], tirx.const(0, "float32"))

    return te.create_prim_func([x, te.compute((48, 36), value)], "int64")


LEFT_ALONE = {
    "two operands": _twice,
    "conditions": _padded,
    "bytes": lambda: moved("whole squares", "int8"),
    "64 bits": lambda: moved("whole squares", "float64"),
    "gaps": lambda: with_strides(moved("whole squares"), [(48, 1), (99, 1)]),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone(name: str) -> None:
    assert "T.Shuffle" not in schedule_generic(LEFT_ALONE[name](), MACHINE).script()


def test_short_rows_are_left_alone() -> None:
    wide = replace(MACHINE, lanes=16)
    assert "T.Shuffle" in schedule_generic(moved("one square"), wide).script()
    x = te.placeholder((15, 48), "float32")
    func = te.create_prim_func([x, te.compute((48, 15), lambda i, j: x[j, i])], "int64")
    assert "T.Shuffle" not in schedule_generic(func, wide).script()
