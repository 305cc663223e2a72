"""BroadcastLate and MixAxes: operands stay small, and axes stay where they lie."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from helpers.relax_helpers import assert_same_numerics, assert_unchanged, module, op_names
from tvm import relax

from tvm_stretch.passes.broadcast_late import BroadcastLate, groups_of
from tvm_stretch.passes.mix_axes import MixAxes

op = relax.op
SHAPE = (2, 24, 5, 7)


def shape(*sizes: int) -> relax.Expr:
    return relax.ShapeExpr(sizes)


def statistics(x: relax.Expr, full: tuple[int, ...], source: tuple[int, ...]) -> relax.Expr:
    """Means of x in the shape of ``source``, broadcast to ``full`` and given the shape of x."""
    mean = op.mean(op.reshape(x, shape(*full)), keepdims=True, axis=_ones(source, full))
    return op.reshape(
        op.broadcast_to(op.reshape(mean, shape(*source)), shape(*full)), shape(*SHAPE)
    )


def _ones(source: tuple[int, ...], full: tuple[int, ...]) -> list[int]:
    own = [1] * (len(full) - len(source)) + [*source]
    return [axis for axis, (a, b) in enumerate(zip(own, full, strict=True)) if a != b]


SMALLER = {
    "groups": ((2, 4, 6, 5, 7), (2, 4, 1, 1, 1), 2 * 24),
    "groups, interleaved": ((2, 4, 6, 5, 7), (2, 1, 6, 1, 1), 2 * 24),
    "images": (SHAPE, (24, 1, 1), 24),
    "rows": (SHAPE, (2, 24, 5, 1), 2 * 24 * 5),
    "rows and columns as one": ((2, 24, 35), (2, 24, 1), 2 * 24),
    "one number": ((2 * 24 * 35,), (1,), 1),
}


@pytest.mark.parametrize("name", SMALLER)
@pytest.mark.parametrize("function", [op.divide, op.subtract, op.maximum])
def test_operands_stay_small(name: str, function: Callable[..., relax.Expr]) -> None:
    full, source, most = SMALLER[name]

    def body(x: relax.Expr) -> relax.Expr:
        return function(x, op.add(x, x)) + function(statistics(x, full, source), x)

    mod = module(body, SHAPE)
    after = relax.transform.DeadCodeElimination()(BroadcastLate()(mod))
    assert_same_numerics(mod, after)
    assert largest_broadcast(after) <= most < largest_broadcast(mod)


def largest_broadcast(mod: tvm.IRModule) -> int:
    """Most numbers that an operator broadcasts to."""
    sizes = [0]
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and value.op.name == "relax.broadcast_to":
                sizes.append(int(np.prod([int(d) for d in value.ty.shape.values])))
    return max(sizes)


def test_both_operands_broadcast() -> None:
    """The result takes its shape from one of them, which stays."""

    def body(x: relax.Expr) -> relax.Expr:
        row = op.broadcast_to(op.mean(x, [2, 3], keepdims=True), shape(*SHAPE))
        column = op.broadcast_to(op.mean(x, [1], keepdims=True), shape(*SHAPE))
        return op.multiply(row, column)

    mod = module(body, SHAPE)
    after = BroadcastLate()(mod)
    assert_same_numerics(mod, after)
    result = after["main"].body.blocks[-1].bindings[-1].var
    assert [int(d) for d in result.ty.shape.values] == [*SHAPE]


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((4, 6), (6, 4), [([0, 1], [0, 1])]),
        ((1, 5), (5, 1), [([0], []), ([1], [0]), ([], [1])]),
        ((2, 0), (0, 5), [([0, 1], [0, 1])]),
    ],
)
def test_groups_of_axes(
    before: tuple[int, ...], after: tuple[int, ...], wanted: list[tuple[list[int], list[int]]]
) -> None:
    groups = [*groups_of(before, after)]
    assert groups == wanted
    for own, other in groups:
        assert np.prod([before[i] for i in own]) == np.prod([after[i] for i in other])


def mixed(
    heads: int = 24, others: int = 8, bias: bool = True, back: tuple[int, ...] = (0, 3, 1, 2)
) -> tvm.IRModule:
    """Talking heads: a dense layer along the second axis."""
    dice = np.random.default_rng(1)
    weight = relax.const(dice.standard_normal((heads, others), "float32"))

    def body(x: relax.Expr) -> relax.Expr:
        y = op.matmul(op.permute_dims(x, [0, 2, 3, 1]), weight)
        if bias:
            y = op.add(y, relax.const(dice.standard_normal(others, "float32")))
        return op.permute_dims(y, [*back])

    return module(body, (2, heads, 5, 7))


@pytest.mark.parametrize("bias", [False, True])
def test_axes_are_mixed_where_they_lie(bias: bool) -> None:
    mod = mixed(bias=bias)
    after = relax.transform.DeadCodeElimination()(MixAxes()(mod))
    assert "relax.permute_dims" not in op_names(after)
    assert_same_numerics(mod, after)


def test_reshapes_in_between() -> None:
    weight = relax.const(np.random.default_rng(1).standard_normal((24, 8), "float32"))

    def body(x: relax.Expr) -> relax.Expr:
        rows = op.reshape(op.permute_dims(x, [0, 2, 3, 1]), shape(10, 7, 24))
        y = op.reshape(op.matmul(rows, weight), shape(2, 5, 7, 8))
        return op.permute_dims(y, [0, 3, 1, 2])

    mod = module(body, SHAPE)
    after = relax.transform.DeadCodeElimination()(MixAxes()(mod))
    assert "relax.permute_dims" not in op_names(after)
    assert_same_numerics(mod, after)


@pytest.mark.parametrize(
    "mod", [mixed(heads=40), mixed(others=40), mixed(back=(0, 3, 2, 1)), mixed(back=(3, 0, 1, 2))]
)
def test_what_is_not_mixed(mod: tvm.IRModule) -> None:
    assert_unchanged(MixAxes(), mod)
