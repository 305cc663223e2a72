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

from tvm_stretch.passes.fold_constants import FoldConstants


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
