"""SimplifyOperators: Before / Expected modules, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers.relax_helpers import assert_rewrites, assert_unchanged, module, op_names, random_const
from tvm import relax

from tvm_stretch.passes.simplify_operators import SimplifyOperators

op, nn = relax.op, relax.op.nn
Body = Callable[..., relax.Expr]
SHAPE = (1, 4, 5, 5)
BIAS, WEIGHT = random_const(1, 4, 1, 1), random_const(6, 4, 3, 3)


def scalar(value: float) -> relax.Expr:
    """A float32 constant of rank 0."""
    return relax.const(np.float32(value))


def clip(x: relax.Expr, low: float, high: float) -> relax.Expr:
    """`relax.op.clip` with float bounds."""
    return op.clip(x, relax.prim_value(float(low)), relax.prim_value(float(high)))


def shaped(const: relax.Expr, *shape: int) -> relax.Expr:
    """A constant with another shape."""
    return relax.const(const.value.numpy().reshape(shape))


REWRITES: dict[str, tuple[Body, Body]] = {
    "constant right": (lambda x: op.add(BIAS, x), lambda x: op.add(x, BIAS)),
    "divide": (lambda x: op.divide(x, scalar(4)), lambda x: op.multiply(x, scalar(0.25))),
    "half, rounded": (
        lambda x: op.floor(op.divide(x, scalar(2))),
        lambda x: op.floor(op.multiply(x, scalar(0.5))),
    ),
    "subtract": (lambda x: op.subtract(x, BIAS), lambda x: op.add(x, _negative(BIAS))),
    "constant rank": (lambda x: op.add(x, shaped(BIAS, 4, 1, 1)), lambda x: op.add(x, BIAS)),
    "one element": (
        lambda x: op.multiply(x, shaped(scalar(3), 1, 1, 1, 1)),
        lambda x: op.multiply(x, scalar(3)),
    ),
    "plus -0.0": (lambda x: nn.silu(op.add(x, scalar(-0.0))), lambda x: nn.silu(x)),
    "silu": (lambda x: op.multiply(x, op.sigmoid(x)), lambda x: nn.silu(x)),
    "silu, other order": (lambda x: op.multiply(op.sigmoid(x), x), lambda x: nn.silu(x)),
    "third power": (
        lambda x: op.power(x, scalar(3)),
        lambda x: op.multiply(op.multiply(x, x), x),
    ),
    "relu from clip": (lambda x: clip(x, 0, np.inf), lambda x: nn.relu(x)),
    "relu from maximum": (lambda x: op.maximum(x, scalar(0)), lambda x: nn.relu(x)),
    "clip chain": (lambda x: clip(clip(x, 0, np.inf), -np.inf, 6), lambda x: clip(x, 0, 6)),
    "relu then minimum": (lambda x: op.minimum(nn.relu(x), scalar(1)), lambda x: clip(x, 0, 1)),
    "relu6": (lambda x: nn.relu6(x), lambda x: clip(x, 0, 6)),
    "clips that do not meet": (lambda x: clip(clip(x, 2, 3), 0, 1), lambda x: clip(x, 1, 1)),
    "reshape chain": (
        lambda x: op.flatten(op.squeeze(op.expand_dims(x, 0), [0])),
        lambda x: op.reshape(x, relax.ShapeExpr([100])),
    ),
    "transposes": (
        lambda x: op.permute_dims(op.permute_dims(x, [0, 2, 3, 1]), [0, 3, 2, 1]),
        lambda x: op.permute_dims(x, [0, 1, 3, 2]),
    ),
    "transpose of an axis of one": (
        lambda x: op.permute_dims(x, [1, 0, 2, 3]),
        lambda x: op.reshape(x, relax.ShapeExpr([4, 1, 5, 5])),
    ),
    "adaptive pool": (
        lambda x: nn.adaptive_avg_pool2d(x, (1, 1)),
        lambda x: op.mean(x, [2, 3], keepdims=True),
    ),
    "pool over the whole map": (
        lambda x: nn.avg_pool2d(x, (5, 5)),
        lambda x: op.mean(x, [2, 3], keepdims=True),
    ),
    "mean from the back": (
        lambda x: op.mean(x, [-1, -2], keepdims=True),
        lambda x: op.mean(x, [2, 3], keepdims=True),
    ),
    "mean without keepdims": (
        lambda x: op.mean(x, [2, 3]),
        lambda x: op.reshape(op.mean(x, [2, 3], keepdims=True), relax.ShapeExpr([1, 4])),
    ),
    "square": (lambda x: op.power(x, scalar(2)), lambda x: op.multiply(x, x)),
    "padding": (
        lambda x: nn.conv2d(nn.pad(x, [0, 0, 0, 0, 0, 1, 1, 2]), WEIGHT, padding=1),
        lambda x: nn.conv2d(x, WEIGHT, padding=(1, 2, 2, 3)),
    ),
    "cast to itself": (lambda x: nn.silu(op.astype(x, "float32")), lambda x: nn.silu(x)),
    "slice of everything": (
        lambda x: nn.silu(op.strided_slice(x, [2], [0], [5])),
        lambda x: nn.silu(x),
    ),
}


def _negative(const: relax.Expr) -> relax.Expr:
    return relax.const(-const.value.numpy())


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    before, expected = REWRITES[name]
    assert_rewrites(SimplifyOperators(), module(before, SHAPE), module(expected, SHAPE))


KEPT: dict[str, Body] = {
    "nothing to do": lambda x: nn.relu(op.add(nn.conv2d(x, WEIGHT), random_const(1, 6, 1, 1))),
    "division by a tiny number": lambda x: op.divide(x, scalar(1e-45)),
    "division by no power of two": lambda x: op.divide(x, scalar(6)),
    "division by the smallest number, whose reciprocal is infinite": lambda x: op.divide(
        x, scalar(-1e-45)
    ),
    "plus 0.0, which makes 0.0 of -0.0": lambda x: op.add(x, scalar(0)),
    "times 0.0, which keeps NaN": lambda x: op.multiply(x, scalar(0)),
    "power of a half": lambda x: op.power(x, scalar(2.5)),
    "division by infinity": lambda x: op.divide(x, scalar(np.inf)),
    "product with another sigmoid": lambda x: op.multiply(x, op.sigmoid(nn.relu(x))),
    "maximum with NaN": lambda x: op.maximum(x, scalar(np.nan)),
    "maximum that broadcasts": lambda x: op.maximum(x, relax.const(np.zeros((2, 1, 1, 1), "f"))),
    "pool over a part": lambda x: nn.avg_pool2d(x, (4, 4)),
    "padding with ones": lambda x: nn.conv2d(
        nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=1.0), WEIGHT
    ),
    "padding that shifts": lambda x: nn.relu(nn.pad(x, [0, 0, 0, 0, 1, -1, 0, 0])),
    "padding of channels": lambda x: nn.conv2d(
        nn.pad(x, [0, 0, 1, 1, 0, 0, 0, 0]), random_const(2, 6, 3, 3)
    ),
    "padding by reflection": lambda x: nn.conv2d(
        nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1], pad_mode="reflect"), WEIGHT
    ),
    "slice that turns around": lambda x: op.strided_slice(x, [2], [4], [-6], [-1]),
    "addition that broadcasts": lambda x: op.add(x, relax.const(np.zeros((2, 1, 1, 1), "f"))),
}


@pytest.mark.parametrize("name", KEPT)
def test_leaves_alone(name: str) -> None:
    assert_unchanged(SimplifyOperators(), module(KEPT[name], SHAPE))


def test_integers_keep_their_division() -> None:
    mod = module(lambda x: op.divide(x, relax.const(3, "int32")), (4,), dtype="int32")
    assert_unchanged(SimplifyOperators(), mod)


def test_constants_are_reshaped_and_transposed_here() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        weight = op.permute_dims(random_const(3, 25))
        return op.matmul(x, op.reshape(weight, relax.ShapeExpr([25, 3])))

    assert op_names(SimplifyOperators()(module(body, (2, 25)))) == ["relax.matmul"]
