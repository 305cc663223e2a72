"""NumPy forward functions, for the small random sample that a network under construction carries.

Padding wraps around instead of adding zeros: the sample is much smaller than the real input, and
zeros would take a larger part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Array = NDArray[Any]
Pads = Sequence[int]


def sigmoid(x: Array) -> Array:
    """Logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def hard_sigmoid(x: Array) -> Array:
    """``clip(x / 6 + 1/2, 0, 1)``."""
    return np.clip(x / 6.0 + 0.5, 0.0, 1.0)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "leaky": lambda x: np.where(x > 0.0, x, 0.1 * x),
    "sigmoid": sigmoid,
    "hard_sigmoid": hard_sigmoid,
    "swish": lambda x: x * sigmoid(x),
    "hard_swish": lambda x: x * hard_sigmoid(x),
    "tanh": np.tanh,
}


def windows(x: Array, kernel: tuple[int, int], stride: tuple[int, int], pads: Pads) -> Array:
    """``[n, c, h, w]`` to the sliding windows ``[n, c, rows, columns, kh, kw]``."""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), mode="wrap")
    return sliding_window_view(padded, kernel, axis=(2, 3))[:, :, :: stride[0], :: stride[1]]


def conv(x: Array, weight: Array, stride: tuple[int, int], pads: Pads) -> Array:
    """Convolution; the weight's shape says into how many groups."""
    filters, per_group, *kernel = weight.shape
    batch, channels = x.shape[:2]
    groups = channels // per_group
    view = windows(x, (kernel[0], kernel[1]), stride, pads)
    rows, columns = view.shape[2:4]
    if per_group == 1 and filters == channels:
        return np.asarray(np.einsum("nchwij,cij->nchw", view, weight[:, 0]))
    # [groups, per_group * kh * kw, batch * rows * columns]: one matrix product per group.
    matrix = view.transpose(1, 4, 5, 0, 2, 3).reshape(groups, weight[0].size, -1)
    products: Array = weight.reshape(groups, filters // groups, -1) @ matrix
    return np.moveaxis(products.reshape(filters, batch, rows, columns), 1, 0)


def power(x: Array) -> float:
    """Mean square, rounded to an eighth of a power of two.

    The rounding hides what differs in the last bits between BLAS libraries and thread counts, so
    that a network does not depend on them.
    """
    return float(2.0 ** (np.round(8.0 * np.log2(np.mean(np.square(x)))) / 8.0))
