"""Conditions within vectors: those of whole vectors are asked once, others for each lane."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module
from tvm import relax, s_tir, te, tirx
from tvm.ir import Expr

import tvm_stretch as ts
from tvm_stretch.targets.cpu.code.vector_conditions import (
    same_for_all_lanes,
    whole_vectors_first,
)


def _conditions(limit: int, lanes: int) -> str:
    """The kernel of two joined tensors, in vectors."""
    x, y = te.placeholder((64,), name="x"), te.placeholder((64,), name="y")

    def value(i: Expr) -> Expr:
        return tirx.if_then_else(i < limit, x[i], y[i])

    sch = s_tir.Schedule(te.create_prim_func([x, y, te.compute((64,), value, name="joined")]))
    _, lane = sch.split(sch.get_loops(sch.get_sblock("joined"))[0], [None, lanes])
    sch.vectorize(lane)
    mod = s_tir.transform.LowerOpaqueBlock()(s_tir.transform.ConvertBlocksToOpaque()(sch.mod))
    return same_for_all_lanes(mod)["main"].script()


@pytest.mark.parametrize(
    ("limit", "lanes", "is_same"), [(32, 16, True), (48, 8, True), (40, 16, False), (33, 8, False)]
)
def test_multiples_of_the_lanes(limit: int, lanes: int, is_same: bool) -> None:
    script = _conditions(limit, lanes)
    condition = script.split("T.if_then_else(")[1].split(",")[0]
    assert ("i_1" in condition) != is_same, condition


def test_the_end_of_a_loop_is_no_vector() -> None:
    x = te.placeholder((40,), name="x")
    doubled = te.compute((40,), lambda i: x[i] + x[i], name="doubled")
    sch = s_tir.Schedule(te.create_prim_func([x, doubled]))
    _, lane = sch.split(sch.get_loops(sch.get_sblock("doubled"))[0], [None, 16])
    sch.vectorize(lane)
    mod = s_tir.transform.LowerOpaqueBlock()(s_tir.transform.ConvertBlocksToOpaque()(sch.mod))
    script = whole_vectors_first(mod)["main"].script()
    assert "if " not in script and "range(2)" in script and "range(8)" in script


@pytest.mark.parametrize("shape", [(3, 7, 7), (2, 5, 13), (1, 1, 31)])
def test_products_and_sums_of_odd_sizes(shape: tuple[int, ...]) -> None:
    """Products are rounded before the sum, which is the same for vectors and for their end."""
    x = np.random.default_rng(0).standard_normal(shape, "float32")
    mask = np.random.default_rng(1).standard_normal(shape[1:], "float32")

    def scaled(x: relax.Expr) -> relax.Expr:
        return relax.op.add(relax.op.multiply(x, relax.const(0.3, "float32")), relax.const(mask))

    got = ts.compile(module(scaled, shape), targets=[TARGET], cpu_threads=1)(x)
    np.testing.assert_array_equal(
        got[0] if isinstance(got, tuple) else got, x * np.float32(0.3) + mask
    )


def test_the_same_numbers() -> None:
    """Rotary positions: halves change places, and products are rounded before the sum."""
    shape = (3, 5, 32)

    def rotated(x: relax.Expr) -> relax.Expr:
        low, high = (relax.op.strided_slice(x, [2], [begin], [begin + 16]) for begin in (0, 16))
        turned = relax.op.concat([relax.op.negative(high), low], 2)
        factor = relax.const(np.linspace(0.3, 0.9, 32, dtype="float32"))
        return relax.op.add(relax.op.multiply(x, factor), relax.op.multiply(turned, factor))

    x = np.random.default_rng(0).standard_normal(shape, "float32")
    factor = np.linspace(0.3, 0.9, 32, dtype="float32")
    want = x * factor + np.concatenate([-x[..., 16:], x[..., :16]], 2) * factor
    got = ts.compile(module(rotated, shape), targets=[TARGET], cpu_threads=1)(x)
    np.testing.assert_array_equal(got[0] if isinstance(got, tuple) else got, want)
