"""Weights of operators that are emitted again with other channels (`scale_operators.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.network.expressions import constant, shape_of

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
        found = weight[rows][:, columns] / times(columns, weight.shape[1]).reshape(axes)
        found[:, columns < 0] = 0
        found[rows < 0] = self.random((int((rows < 0).sum()), *shape[1:]))
        if self.noise:
            found += self.noise * found.std() * self.rng.standard_normal(found.shape)
        return np.ascontiguousarray(found.astype(weight.dtype))

    def random(self, shape: tuple[int, ...]) -> Array:
        """Random weights after He, which keep the variance of activations."""
        spread = np.sqrt(2.0 / max(1, int(np.prod(shape[1:]))))
        return (self.rng.standard_normal(shape) * spread).astype("float32")

    def per_channel(self, values: Array, origin: Origin, default: float) -> Array:
        """Numbers of a normalisation; those of new channels are ``default``."""
        known = (origin >= 0) if self.warm else np.zeros(len(origin), bool)
        return np.where(known, values[origin], default).astype(values.dtype)


def cut(arg: GenericConst, origin: Origin, rank: int) -> relax.Expr:
    """A constant operand beside a tensor of ``rank``, cut if it varies along the channels."""
    shape = shape_of(arg)
    axis = len(shape) - rank + 1
    if axis < 0 or shape[axis] == 1:
        return arg
    values = arg.value.numpy()
    known = origin >= 0
    cut = np.take(values, np.where(known, origin, 0), axis)
    mask = known.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return constant(np.where(mask, cut, 0).astype(values.dtype))


def times(origin: Origin, channels: int) -> Array:
    """For each channel, how often its original channel is read."""
    times = np.bincount(origin[origin >= 0], minlength=channels).astype("float32")
    return np.maximum(times, 1)[origin]
