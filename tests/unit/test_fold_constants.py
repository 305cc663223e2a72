"""FoldConstants: what depends on constants only becomes one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import (
    assert_same_numerics,
    assert_unchanged,
    module,
    op_names,
    random_const,
)
from tvm import relax

from tvm_stretch.passes.fold_constants import FoldConstants, by_numpy, by_tvm


def test_what_depends_on_constants_only_is_computed() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        weight = relax.op.multiply(random_const(2, 3), random_const(2, 3, seed=1))
        shifted = relax.op.add(weight, relax.op.full((2, 3), relax.const(1.0), "float32"))
        return relax.op.add(x, relax.op.nn.relu(shifted))

    before = module(body, (2, 1))
    after = relax.transform.CanonicalizeBindings()(FoldConstants()(before))
    after = relax.transform.DeadCodeElimination()(after)
    assert op_names(after) == ["relax.add"]
    assert_same_numerics(before, after)


@pytest.mark.parametrize("name", ["divide", "floor_divide", "mod", "floor_mod"])
@pytest.mark.parametrize("upper", [0.0, -3.0])
def test_numbers_are_divided_by_zero_as_ieee_754_says(name: str, upper: float) -> None:
    """TVM refuses to divide one number by zero, and sees one only when it has folded the sum."""

    def body(x: relax.Expr) -> relax.Expr:
        zero = relax.op.sum(relax.op.zeros((2,), "float32"))
        quotient = getattr(relax.op, name)(relax.const(upper, "float32"), zero)
        return relax.op.add(x, quotient)

    after = FoldConstants()(module(body, (2,)))
    numpy = {"divide": np.divide, "floor_divide": np.floor_divide}.get(name, np.fmod)
    with np.errstate(all="ignore"):
        expected = numpy(np.float32(upper), np.float32(0))
    constants = [
        b.value.value.numpy()
        for b in after["main"].body.blocks[0].bindings
        if isinstance(b.value, tvm.ir.GenericConst)
    ]
    np.testing.assert_array_equal(constants[-1], expected)


def test_parts_of_constants_are_constants() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        halves = relax.op.split(random_const(4, 3), 2)
        return relax.op.add(x, relax.op.multiply(halves[0], relax.op.exp(halves[1])))

    before = module(body, (2, 3))
    after = FoldConstants()(before)
    after = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(after))
    assert op_names(after) == ["relax.add"]
    assert_same_numerics(before, after)


def test_what_depends_on_inputs_is_left_alone() -> None:
    assert_unchanged(FoldConstants(), module(lambda x: relax.op.add(x, random_const(3)), (2, 3)))


def test_tvm_folds_only_what_is_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a kernel of every operator that it sees, which takes long in large networks."""
    seen = []
    real = relax.transform.FoldConstant
    monkeypatch.setattr(
        relax.transform,
        "FoldConstant",
        lambda: lambda mod: (seen.extend(op_names(mod)), real()(mod))[1],
    )

    def body(x: relax.Expr) -> relax.Expr:
        return relax.op.add(relax.op.nn.relu(x), relax.op.exp(relax.const(np.ones(3, "f"))))

    FoldConstants()(module(body, (2, 3)))
    assert seen == ["relax.exp"]


op = relax.op
CUBE = random_const(4, 3, 6)
SPECIAL = relax.const(np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38, -7.5], "f"))
BACKWARDS = relax.const(SPECIAL.value.numpy()[::-1].copy())
NUMBERS = relax.const(np.array([-7, -3, 0, 2, 7], "int64"), "int64")
THREE = relax.const(np.array(3, "int64"), "int64")
PLACES = relax.const(np.array([[1, 2], [3, 0]], "int64"), "int64")
PAIRS = [
    *(op.add, op.subtract, op.multiply, op.divide, op.equal, op.less),
    *(op.less_equal, op.greater, op.greater_equal),
]
COMPUTED = [
    *(pair(SPECIAL, BACKWARDS) for pair in PAIRS),
    *(pair(NUMBERS, THREE) for pair in (*PAIRS[:3], op.mod, op.floor_mod, op.maximum, op.minimum)),
    *(op.negative(SPECIAL), op.negative(NUMBERS), op.isinf(SPECIAL), op.bitwise_not(NUMBERS)),
    *(op.astype(NUMBERS, dtype) for dtype in ("float32", "int8", "bool")),
    *(op.astype(SPECIAL, "bool"), op.astype(SPECIAL, "float64")),
    *(op.broadcast_to(NUMBERS, (2, 5)), op.concat([CUBE, CUBE], 1), op.expand_dims(CUBE, [0, 2])),
    *(op.flip(CUBE, 1), op.full((2, 3), relax.const(2.5, "float32")), op.gather_nd(CUBE, PLACES)),
    *(op.permute_dims(CUBE, [2, 0, 1]), op.permute_dims(CUBE), op.reshape(CUBE, (6, 12))),
    *(op.squeeze(random_const(1, 3, 1)), op.tile(CUBE, (2, 1, 3)), op.tile(CUBE, 2)),
    op.slice_scatter(CUBE, random_const(4, 3, 2, seed=2), 1, 5, 2, axis=2),
    op.strided_slice(CUBE, [0, 2], [1, -5], [4, 6], [2, 3]),
    op.strided_slice(CUBE, [2], [-9], [100]),
    *(op.take(CUBE, PLACES, 0), op.take(NUMBERS, PLACES)),
    op.where(relax.const(np.arange(8) % 3 == 0), SPECIAL, BACKWARDS),
]


@pytest.mark.parametrize("call", COMPUTED, ids=lambda call: str(call.op.name))
def test_numpy_computes_what_tvm_does_to_the_bit(call: relax.Call) -> None:
    call = relax.BlockBuilder().normalize(call)
    result = by_numpy(call, {}).value.numpy()
    expected = by_tvm([relax.VarBinding(relax.Var("x", call.ty), call)]).value.numpy()
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(result, expected, equal_nan=result.dtype.kind == "f")
    signs = (np.signbit(x[x == x] * 1.0) for x in (result, expected))  # that of NaN is left open
    np.testing.assert_array_equal(*signs)


def test_nan_is_kept_and_differs_from_itself() -> None:
    """TVM's kernels of constants say that it does not, and that its sign is zero."""
    x = SPECIAL.value.numpy()
    for call in (op.sign(SPECIAL), op.nn.relu(SPECIAL), op.clip(SPECIAL, 0, 1)):
        result = by_numpy(relax.BlockBuilder().normalize(call), {}).value.numpy()
        np.testing.assert_array_equal(np.isnan(result), np.isnan(x))
    for call in (op.not_equal(SPECIAL, SPECIAL), op.isnan(SPECIAL)):
        result = by_numpy(relax.BlockBuilder().normalize(call), {}).value.numpy()
        np.testing.assert_array_equal(result, np.isnan(x))


@pytest.mark.parametrize(
    "call",
    [
        *(op.maximum(SPECIAL, BACKWARDS), op.astype(SPECIAL, "int32"), op.exp(SPECIAL)),
        *(op.mod(THREE, NUMBERS), op.take(NUMBERS, relax.const(np.array([5], "int64")), 0)),
        op.strided_slice(CUBE, [0], [3], [0], [-1]),
    ],
    ids=lambda call: str(call.op.name),
)
def test_numpy_leaves_the_others_to_tvm(call: relax.Call) -> None:
    assert by_numpy(relax.BlockBuilder().normalize(call), {}) is None
