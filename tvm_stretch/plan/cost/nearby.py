"""What the errors of few measured kernels say of kernels like them.

    error of a kernel ~ Gaussian process over its features, as powers of two

A model of another device, corrected by ratios of its phases, errs alike for kernels of like sizes:
narrow ones, or those of small images. From 30 to 100 samples trees would learn noise; the mean of
this process is near 0 where nothing was measured, and never exceeds what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.files import is_finite

Array = np.ndarray[Any, Any]

_SPREAD, _NOISE = 0.15, 0.1
"""Standard deviations of errors: of all kernels from 0, and of one kernel from those like it."""

_REACH = 5.0
"""The distance, in factors of two over all features, at which errors are hardly related."""

_MOST = 0.5
"""Larger errors, as logarithms, count like this one."""

_LARGEST = 1e12


@dataclass(frozen=True)
class Nearby:
    """See the module docstring."""

    points: Array  # features of the measured kernels, one a row
    pulls: Array  # what each adds to the errors of kernels equal to it

    @staticmethod
    def fit(points: Array, errors: Array) -> Nearby:
        """From the errors of measured kernels, as logarithms."""
        covariance = _related(points, points) + _NOISE**2 * np.eye(len(points))
        return Nearby(points, np.linalg.solve(covariance, np.clip(errors, -_MOST, _MOST)))

    def errors(self, points: Array) -> Array:
        """The expected errors of kernels, as logarithms."""
        return np.clip(_related(points, self.points) @ self.pulls, -_MOST, _MOST)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {"points": self.points.tolist(), "pulls": self.pulls.tolist()}

    @staticmethod
    def from_json(data: Any, width: int) -> Nearby:
        """Read what `to_json` wrote, with ``width`` features."""
        points, pulls = data["points"], data["pulls"]
        values = [*pulls, *(value for row in points for value in row)]
        is_one = len(points) == len(pulls) > 0 and all(len(row) == width for row in points)
        if not is_one or not all(is_finite(v) and abs(v) <= _LARGEST for v in values):
            raise CostModelError(
                f"expected rows of {width} features and a number for each, for what nearby kernels "
                f"say in the cost model, got {str(data)[:60]}; train again"
            )
        return Nearby(np.asarray(points, np.float64), np.asarray(pulls, np.float64))


def _related(some: Array, others: Array) -> Array:
    """The covariance of errors of kernels with these features."""
    lengths = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
    squares = np.maximum(lengths - 2 * some @ others.T, 0.0)
    return np.asarray(_SPREAD**2 * np.exp(-0.5 * squares / _REACH**2))
