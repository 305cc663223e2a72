"""StackedProducts: Before / Expected modules, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.relax_helpers import assert_rewrites, assert_unchanged, module, random_const
from tvm import relax

from tvm_stretch.passes.simplify_operators import SimplifyOperators
from tvm_stretch.passes.stacked_products import StackedProducts

op = relax.op
Body = Callable[..., relax.Expr]
SHAPE = (1, 4, 5, 5)
FOUR = np.random.default_rng(3).standard_normal((4, 5, 3), "float32")
MATRIX = FOUR[0]


def stack(x: relax.Expr, *shape: int) -> relax.Expr:
    return op.reshape(x, relax.ShapeExpr(shape))


REWRITES: dict[str, tuple[Body, Body]] = {
    "reshapes around a product": (
        lambda x: stack(op.matmul(stack(x, 4, 5, 5), stack(x, 4, 5, 5)), *SHAPE),
        lambda x: op.matmul(x, x),
    ),
    "one operand was reshaped": (
        lambda x: stack(op.matmul(stack(x, 4, 5, 5), random_const(4, 5, 3)), 2, 2, 5, 3),
        lambda x: op.matmul(
            stack(x, 2, 2, 5, 5),
            relax.const(random_const(4, 5, 3).value.numpy().reshape(2, 2, 5, 3)),
        ),
    ),
    "equal matrices": (
        lambda x: op.matmul(x, relax.const(np.broadcast_to(MATRIX, (1, 4, 5, 3)))),
        lambda x: op.matmul(x, relax.const(MATRIX)),
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    before, expected = REWRITES[name]
    mod = SimplifyOperators()(StackedProducts()(module(before, SHAPE)))
    assert_rewrites(SimplifyOperators(), mod, module(expected, SHAPE))
    assert_rewrites(relax.transform.CanonicalizeBindings(), mod, module(expected, SHAPE))


KEPT: dict[str, Body] = {
    "other matrices": lambda x: op.matmul(x, random_const(1, 4, 5, 3)),
    "zeros of two signs": lambda x: op.matmul(
        x, relax.const(np.zeros((1, 4, 5, 3), "f") * np.array([1, 1, -1, 1], "f")[:, None, None])
    ),
    "products that repeat x": lambda x: op.matmul(
        stack(x, 20, 5), relax.const(np.ones((2, 5, 3), "f"))
    ),
    "a reshape that cuts matrices": lambda x: stack(
        op.matmul(stack(x, 4, 5, 5), random_const(4, 5, 6)), 4, 6, 5
    ),
    "operands that are no reshapes": lambda x: stack(op.matmul(x, x), 4, 5, 5),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    assert_unchanged(StackedProducts(), module(KEPT[name], SHAPE))
