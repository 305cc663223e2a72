"""ExpandVariance: Before / Expected modules, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers.relax_helpers import assert_rewrites, assert_unchanged, module
from tvm import relax

from tvm_stretch.passes.expand_variance import ExpandVariance

op = relax.op
Body = Callable[..., relax.Expr]
SHAPE = (1, 4, 5, 5)


def _means(
    x: relax.Expr, rows: tuple[int, ...], axes: list[int], shape: tuple[int, ...]
) -> relax.Expr:
    """The variance of rows as means."""
    if rows != SHAPE:
        x = op.reshape(x, relax.ShapeExpr(rows))
    centred = op.subtract(x, op.mean(x, axes, keepdims=True))
    mean = op.mean(op.multiply(centred, centred), axes, keepdims=True)
    return op.reshape(mean, relax.ShapeExpr(shape))


REWRITES: dict[str, tuple[Body, Body]] = {
    "images": (
        lambda x: op.variance(x, [2, -1]),
        lambda x: _means(x, (1, 4, 5, 5), [2, 3], (1, 4)),
    ),
    "rows of several axes": (
        lambda x: op.variance(x, [-1, 2, 1], keepdims=True),
        lambda x: _means(x, (1, 100), [1], (1, 1, 1, 1)),
    ),
    "an outer axis": (
        lambda x: op.variance(x, [1], keepdims=True),
        lambda x: _means(x, (1, 4, 5, 5), [1], (1, 1, 5, 5)),
    ),
    "all axes": (lambda x: op.variance(x), lambda x: _means(x, (100,), [0], ())),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    before, expected = REWRITES[name]
    assert_rewrites(ExpandVariance(), module(before, SHAPE), module(expected, SHAPE))


def test_types_of_two_bytes_stay() -> None:
    mod = module(lambda x: op.variance(op.astype(x, "float16"), [1]), SHAPE)
    assert_unchanged(ExpandVariance(), mod)
