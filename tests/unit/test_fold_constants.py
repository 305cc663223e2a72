"""FoldConstants: what depends on constants only becomes one."""

from __future__ import annotations

import numpy as np
import pytest
from relax_helpers import assert_same_numerics, assert_unchanged, module, op_names, random_const
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
