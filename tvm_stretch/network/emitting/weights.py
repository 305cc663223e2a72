"""Weights of layers that are emitted again: in two bytes, or scaled.

    R.matmul(x, w: float32)  ->  R.call_tir(pack, (w: float16,)), once
                                 R.call_tir(dense, (x, packed: float16))    # few rows
                                 R.call_tir(dense, (x, packed: float32))    # many rows
    R.nn.conv2d(x, w)        ->  the same with windows of one pixel: many rows
    R.take(w, tokens)        ->  R.astype(R.take(w: float16, tokens), float32)

Weights that float16 or bfloat16 holds exactly have two bytes, also in artifacts. Networks of
float16 have such weights, and are computed in float32 where no processor has float16
arithmetic; so do float32 networks that were trained in bfloat16. Kernels widen weights with the
instruction that loads them, or with a shift.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.kernels.halves import narrowed
from tvm_stretch.targets.kernels.machine import VectorMachine


def store_halves(machines: Iterable[VectorMachine]) -> bool:
    """Whether weights are stored so: all processors of a model read the same bytes."""
    return all(machine.widens_half for machine in machines)


def half_weight(call: relax.Expr) -> GenericConst | None:
    """The weights of a layer, or rows to take, in two bytes: if this is exact for float32."""
    weight = _weight(call)
    if weight is None or str(weight.ty.dtype) != "float32":
        return None
    half = narrowed(weight.value.numpy())
    return None if half is None else constant(half)


def _weight(call: relax.Expr) -> GenericConst | None:
    """The constant of a dense layer, a convolution of single pixels, or a table of rows."""
    kind = kind_of(call)
    if kind not in ("matmul", "nn.conv2d", "take"):
        return None
    weight = call.args[0 if kind == "take" else 1]
    if not isinstance(weight, GenericConst):
        return None
    shape = shape_of(weight)
    if kind == "nn.conv2d":
        fits = tuple(shape[2:]) == (1, 1) and int(call.attrs.groups) == 1
        return weight if fits and call.attrs.kernel_layout == "OIHW" else None
    rows = kind == "matmul" or call.attrs.axis in (None, 0)
    return weight if len(shape) == 2 and rows else None


def half_weights(network: tvm.IRModule) -> dict[GenericConst, GenericConst]:
    """The weights of `half_weight` in ``main``, by those in float32."""
    narrowed: dict[GenericConst, GenericConst] = {}

    def visit(expr: relax.Expr) -> None:
        weight, half = _weight(expr), half_weight(expr)
        if weight is not None and half is not None:
            narrowed[weight] = half

    relax.analysis.post_order_visit(network["main"].body, visit)
    return narrowed


Origin: TypeAlias = NDArray[np.int64]
"""For each channel, the channel of the original tensor that it comes from; -1 for a new one."""
Array: TypeAlias = NDArray[Any]


@dataclass
class Weights:
    """Selects weights of the original network, or makes random ones."""

    warm: bool  # whether weights start from the original ones
    rng: np.random.Generator  # generates new weights and noise
    # on copied weights, relative to their deviation; it may change between operators
    noise: float = 0.0

    def selected(self, weight: Array, rows: Origin, columns: Origin) -> Array:
        """Rows and columns of a weight (outputs first); columns that are read twice are halved."""
        shape = (len(rows), len(columns), *weight.shape[2:])
        if not self.warm:
            return self.random(shape)
        axes = (1, -1, *(1,) * (weight.ndim - 2))
        selected = weight[rows][:, columns] / times(columns, weight.shape[1]).reshape(axes)
        selected[:, columns < 0] = 0
        selected[rows < 0] = self.random((int((rows < 0).sum()), *shape[1:]))
        if self.noise:
            selected += self.noise * selected.std() * self.rng.standard_normal(selected.shape)
        return np.ascontiguousarray(selected.astype(weight.dtype))

    def random(self, shape: tuple[int, ...]) -> Array:
        """Random weights after He, which keep the variance of activations."""
        spread = np.sqrt(2.0 / max(1, int(np.prod(shape[1:]))))
        return (self.rng.standard_normal(shape) * spread).astype("float32")

    def per_channel(self, values: Array, origin: Origin, default: float) -> Array:
        """Numbers of a normalisation; those of new channels are ``default``."""
        is_old = (origin >= 0) if self.warm else np.zeros(len(origin), bool)
        return np.where(is_old, values[origin], default).astype(values.dtype)


def cut(arg: GenericConst, origin: Origin, rank: int) -> relax.Expr:
    """A constant operand beside a tensor of ``rank``, cut if it varies along the channels."""
    shape = shape_of(arg)
    axis = len(shape) - rank + 1
    if axis < 0 or shape[axis] == 1:
        return arg
    values = arg.value.numpy()
    is_old = origin >= 0
    cut = np.take(values, np.where(is_old, origin, 0), axis)
    mask = is_old.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return constant(np.where(mask, cut, 0).astype(values.dtype))


def times(origin: Origin, channels: int) -> Array:
    """For each channel, how often its original channel is read."""
    times = np.bincount(origin[origin >= 0], minlength=channels).astype("float32")
    return np.maximum(times, 1)[origin]
