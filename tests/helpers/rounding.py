"""How far apart two float32 computations of one network may be, from its arithmetic alone.

Kernels add in any order, fuse products into sums or not, and may use Winograd's transforms, so the
last digits of an answer depend on the machine. This is the one place that says how many digits
those are. The model of rounding is the usual statistical one (Higham and Mary, 2019): every
operation is off by an independent relative error of at most U.

    value = sum of n products      error^2 = n * U^2 * (sum of squared products)
    value = f(x), slope at most 1  error^2 = error^2 of x

The second column grows along the network as the squares themselves do, so one evaluation of the
network on squared operands gives ``squares``, and

    |computed - exact| <= SIGMAS * U * sqrt(roundings * squares)

where ``roundings`` adds up n over all operators, and a 3x3 convolution counts as the larger of
direct sums and Winograd's F(4x4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
from helpers.relax_numpy import evaluate
from tvm import relax

from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.kernels.winograd_sums import INPUT, OUTPUT, WEIGHT

U = 2.0**-24
"""Half the distance from 1 to the next float32: one rounding."""

SIGMAS = 8.0
"""Standard deviations: one number in 10^15 is further away."""

_TRANSFORMS = 12.0
"""Additions of Winograd's transforms, of pixels, weights and sums, beside those over channels."""

_WITHOUT_SIGNS = {
    "subtract": lambda _, x, y: x + y,
    "negative": lambda _, x: x,
    "sigmoid": lambda _, x: x + 1,
}
"""Squares only add up; a sigmoid is at most 1, and its slope at most 1."""

_SUMS = {"nn.avg_pool2d", "mean"}
_OTHERS = {"nn.relu", "add", "subtract", "negative", "multiply", "nn.max_pool2d"}
_OTHERS |= {"concat", "split", "flatten", "reshape", "strided_slice"}
_OTHERS |= {"sigmoid", "permute_dims"}


def winograd_gain(tile: int) -> float:
    """How much larger squared errors get in F(tile x tile, 3x3) than in direct sums.

    Products of transformed weights and pixels are larger than the sums that are left of them. The
    squares of both matrices' entries say by how much, for operands of one size; a transform in
    two dimensions is two of one.
    """
    into, weight, outof = (np.square(m[tile]) for m in (INPUT, WEIGHT, OUTPUT))
    products = into.sum(1) * weight.sum(1)
    return float((outof @ products).max() / 3) ** 2


def allowed(mod: tvm.IRModule, *inputs: np.ndarray) -> list[np.ndarray]:
    """How far two answers of a network may be apart, for each number of each output."""
    roundings = sum(map(_roundings, _calls(mod)))
    given = map(np.square, inputs)
    squares = evaluate(mod, *given, constant=np.square, instead=_WITHOUT_SIGNS)
    if not isinstance(squares, list):
        squares = [squares]
    # two computations are compared, and each is off
    return [SIGMAS * U * np.sqrt(2 * roundings * square) for square in squares]


def assert_rounded(
    mod: tvm.IRModule,
    inputs: Sequence[np.ndarray],
    got: Sequence[np.ndarray] | np.ndarray,
    want: Sequence[np.ndarray] | np.ndarray,
) -> None:
    """Both answers are the network's but for rounding."""
    gots, wants = ([a] if isinstance(a, np.ndarray) else list(a) for a in (got, want))
    for have, expected, most in zip(gots, wants, allowed(mod, *inputs), strict=True):
        assert have.shape == expected.shape and have.dtype == expected.dtype
        apart = np.abs(have.astype("float64") - expected)
        assert (apart <= most).all(), (
            f"{np.argwhere(apart > most)[:3].tolist()} differ by {apart.max():.2e}; rounding "
            f"explains {most.ravel()[apart.argmax()]:.2e}"
        )


def _calls(mod: tvm.IRModule) -> list[relax.Call]:
    blocks = mod["main"].body.blocks
    values = [binding.value for block in blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, relax.Call)]


def _roundings(call: relax.Call) -> float:
    kind = kind_of(call)
    if kind == "nn.conv2d":
        _, inputs, height, width = (int(dim) for dim in call.args[1].ty.shape.values)
        direct = float(inputs * height * width)
        if (height, width) != (3, 3):
            return direct
        return max(direct, (inputs + _TRANSFORMS) * winograd_gain(4))
    if kind in _SUMS:
        return float(np.prod([int(dim) for dim in call.args[0].ty.shape.values[2:]]))
    if kind in _OTHERS:
        return 1.0
    raise ValueError(f"expected an operator that rounding.py knows, got {kind}")
