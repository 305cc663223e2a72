"""Replaces convolutions by two or three of low rank that need fewer multiply-adds.

    conv 3x3 (64 -> 64)
        ->
    outputs   conv 3x3 (64 -> r), conv 1x1 (r -> 64)                      SVD of (out, in * 9)
    space     conv 3x1 (64 -> r), conv 1x3 (r -> 64)                      SVD of (in * 3, out * 3)
    tucker    conv 1x1 (64 -> r), conv 3x3 (r -> s), conv 1x1 (s -> 64)   higher-order SVD

The ranks are as large as the wanted share of multiply-adds allows, and the way with the smallest
error of the weights is taken. The last factor keeps the name of the convolution, the others have
its name with a suffix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.emitting.scale_operators import Scaler, Value, emitted_again
from tvm_stretch.network.emitting.weights import Array
from tvm_stretch.network.expressions import constant
from tvm_stretch.network.operators import Operator
from tvm_stretch.plan.design import Source

_LEAST_CHANNELS = 8


@dataclass(frozen=True)
class _Factor:
    """One convolution of a decomposition."""

    weight: Array
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


Shape: TypeAlias = tuple[int, ...]


def low_rank(mod: tvm.IRModule, share: float) -> tuple[tvm.IRModule, dict[str, Source]]:
    """The network whose convolutions have at most a share of their multiply-adds.

    Args:
        mod: with batch normalisations, as `frontend.load_trainable` returns it.
        share: of the multiply-adds of each convolution with at least 8 channels on both sides.

    Returns:
        The network, and which of its tensors stand for those of ``mod``.

    Raises:
        UnsupportedError: no convolution can be decomposed.
    """
    changed: set[str] = set()

    def emit(scaler: Scaler, operator: Operator, values: Mapping[str, Value]) -> Value:
        factors = _factors(operator, share)
        if not factors:
            return scaler.again(operator, values, operator.name)
        changed.add(operator.name)
        var = values[operator.inputs[0]].var
        for number, factor in enumerate(factors, start=1):
            name = operator.name if number == len(factors) else f"{operator.name}.f{number}"
            weight = constant(np.ascontiguousarray(factor.weight, "float32"))
            conv = relax.op.nn.conv2d(var, weight, factor.strides, factor.padding)
            var = scaler.emitter.emit(name, conv)
        origin = np.arange(operator.shape[1])
        scaler.sources[operator.name] = Source(operator.name, origin)
        return Value(var, origin)

    rewritten, sources = emitted_again(mod, emit)
    if not changed:
        raise UnsupportedError(
            "expected a network with convolutions that can be decomposed, got none; low_rank suits "
            "convolutions of 8 channels or more that are not grouped"
        )
    # the teacher's layer has another kernel, so that a fit must not start from it
    new = {name: replace(sources[name], is_new=True) for name in changed}
    return rewritten, {**sources, **new}


@tvm.transform.module_pass(opt_level=0, name="LowRank")
class LowRank:
    """`low_rank` as a pass, for a network that can be trained."""

    def __init__(self, share: float) -> None:
        self.share = share

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return low_rank(mod, self.share)[0]


def _factors(conv: Operator, share: float) -> tuple[_Factor, ...]:
    """The factors of a convolution with the smallest error; none if it stays."""
    if conv.kind != "nn.conv2d" or not isinstance(conv.call.args[1], GenericConst):
        return ()
    weight, attrs = conv.call.args[1].value.numpy(), conv.call.attrs
    pads, dilation = [int(p) for p in attrs.padding], [int(d) for d in attrs.dilation]
    is_plain = conv.groups == 1 and str(attrs.data_layout) == "NCHW" and dilation == [1, 1]
    if min(weight.shape[:2]) < _LEAST_CHANNELS or not is_plain or pads[:2] != pads[2:]:
        return ()
    strides = (int(attrs.strides[0]), int(attrs.strides[1]))
    candidates = []
    for way, price in ((_by_outputs, _outputs), (_by_space, _space), (_tucker, _tuckers)):
        ranks = [rank for rank in _ranks(weight) if price(weight.shape, rank, strides) <= share]
        if ranks:
            factors, stands_for = way(weight, max(ranks), strides, (pads[0], pads[1]))
            candidates.append((float(np.square(weight - stands_for).sum()), factors))
    return min(candidates, key=lambda pair: pair[0], default=(0.0, ()))[1]


def _ranks(weight: Array) -> Iterator[int]:
    """Ranks to try; from 4 on multiples of 4, which vectors like."""
    most = min(weight.shape[0], weight.shape[1]) * max(weight.shape[2:])
    yield from (rank for rank in range(1, most) if rank < 4 or rank % 4 == 0)


# Multiply-adds of the factors for each pixel of the result, relative to those of the convolution.


def _outputs(shape: Shape, rank: int, _: tuple[int, int]) -> float:
    outputs, inputs, height, width = shape
    window = inputs * height * width
    return rank * (window + outputs) / (window * outputs) if rank < outputs else math.inf


def _space(shape: Shape, rank: int, strides: tuple[int, int]) -> float:
    outputs, inputs, height, width = shape
    if min(height, width) == 1 or rank >= min(inputs * height, outputs * width):
        return math.inf
    work = rank * (inputs * height * strides[1] + outputs * width)
    return work / (inputs * height * width * outputs)


def _tuckers(shape: Shape, rank: int, strides: tuple[int, int]) -> float:
    outputs, inputs, height, width = shape
    other = _other(shape, rank)
    if height * width == 1 or rank >= inputs or other >= outputs:
        return math.inf
    before = inputs * rank * strides[0] * strides[1]
    work = before + rank * other * height * width + other * outputs
    return work / (inputs * height * width * outputs)


def _other(shape: Shape, rank: int) -> int:
    """The second rank of `_tucker`, in proportion to the first one."""
    return max(1, rank * shape[0] // shape[1])


def _by_outputs(
    weight: Array, rank: int, strides: tuple[int, int], pads: tuple[int, int]
) -> tuple[tuple[_Factor, ...], Array]:
    """The whole window to r channels, then 1x1."""
    second, first = _halves(weight.reshape(len(weight), -1), rank)
    whole = _Factor(first.reshape(rank, *weight.shape[1:]), strides, pads)
    factors = (whole, _Factor(second[:, :, None, None]))
    return factors, (second @ first).reshape(weight.shape)


def _by_space(
    weight: Array, rank: int, strides: tuple[int, int], pads: tuple[int, int]
) -> tuple[tuple[_Factor, ...], Array]:
    """The columns of the window to r channels, then its rows."""
    outputs, inputs, height, width = weight.shape
    matrix = weight.transpose(1, 2, 0, 3).reshape(inputs * height, outputs * width)
    first, second = _halves(matrix, rank)
    tall = first.reshape(inputs, height, rank).transpose(2, 0, 1)[..., None]
    wide = second.reshape(rank, outputs, width).transpose(1, 0, 2)[:, :, None]
    factors = (
        _Factor(tall, (strides[0], 1), (pads[0], 0)),
        _Factor(wide, (1, strides[1]), (0, pads[1])),
    )
    product = (first @ second).reshape(inputs, height, outputs, width)
    return factors, product.transpose(2, 0, 1, 3)


def _tucker(
    weight: Array, rank: int, strides: tuple[int, int], pads: tuple[int, int]
) -> tuple[tuple[_Factor, ...], Array]:
    """1x1 to fewer channels, the window among these, and 1x1 back."""
    outputs, inputs = weight.shape[:2]
    after = _main_directions(weight.reshape(outputs, -1), _other(weight.shape, rank))
    before = _main_directions(weight.transpose(1, 0, 2, 3).reshape(inputs, -1), rank)
    core = np.einsum("oihw,os,ir->srhw", weight, after, before, optimize=True)
    factors = (
        _Factor(before.T[:, :, None, None]),
        _Factor(core, strides, pads),
        _Factor(after[:, :, None, None]),
    )
    return factors, np.einsum("srhw,os,ir->oihw", core, after, before, optimize=True)


def _halves(matrix: Array, rank: int) -> tuple[Array, Array]:
    """Two matrices of a rank whose product is nearest to the given one.

    Eigenvectors of the smaller Gram matrix, in float64, take a tenth to a half of the time of a
    singular value decomposition.
    """
    if matrix.shape[0] > matrix.shape[1]:
        right, left = _halves(matrix.T, rank)
        return left.T, right.T
    wide = matrix.astype("float64")
    squares, directions = np.linalg.eigh(wide @ wide.T)
    limits = np.finfo("float64")
    root = np.maximum(squares[::-1][:rank], limits.eps * squares[-1] + limits.tiny) ** 0.25
    left = directions[:, ::-1][:, :rank]
    return left * root, left.T @ wide / root[:, None]


def _main_directions(rows: Array, count: int) -> Array:
    """Directions in which the rows' columns are largest, as columns."""
    return np.linalg.eigh(rows @ rows.T)[1][:, ::-1][:, :count]
