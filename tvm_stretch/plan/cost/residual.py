"""What the errors of measured kernels say of kernels like them: a Gaussian process.

    log(measured / weighted phases) of a kernel  ~  Gaussian process over its features and phases

Its mean is near 0 where nothing was measured. The errors of kernels of one origin, if it had not
seen them, need no second fit: they solve

    inverse covariance among them . errors = their pulls

They tell how much noise there is, and how wide intervals are.
"""

from __future__ import annotations

import base64
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_NOISES = (0.1, 0.3, 1.0, 3.0)
"""Variances of an error relative to that of the process, of which the best is taken."""

_POINTS = 1500
"""The most kernels that it remembers: learning takes time in proportion to their cube."""

_LEAST, _REACH = 0.05, 0.6
"""The least spread of an input that is thought to matter, and the distance at which errors are
hardly related, in spreads of all inputs."""

_MOST = 0.5
"""Larger errors, as logarithms, count like this one."""


@dataclass(frozen=True)
class Residual:
    """See the module docstring."""

    center: tuple[float, ...]  # of the inputs
    scale: tuple[float, ...]  # of each input: a distance of 1 relates kernels by a half
    pulls: tuple[float, ...]  # what each measured kernel adds to the errors of kernels equal to it
    points: str  # scaled inputs of the measured kernels, as `_packed`

    @staticmethod
    def fit(inputs: Array, errors: Array, origins: Sequence[Hashable]) -> tuple[Residual, Array]:
        """The process, and the errors that it leaves of kernels if their origin is held out."""
        clipped = np.clip(errors, -_MOST, _MOST)
        some = np.random.default_rng(1).permutation(len(inputs))[:_POINTS]
        center = inputs.mean(axis=0)
        scale = np.maximum(inputs.std(axis=0), _LEAST) * _REACH * np.sqrt(inputs.shape[1])
        points = ((inputs[some] - center) / scale).astype(np.float32)
        covariance, together = _related(points, points), dict[Hashable, list[int]]()
        for place, index in enumerate(some):
            together.setdefault(origins[index], []).append(place)
        pulls = left = clipped[some]
        for noise in _NOISES:
            inverse = np.linalg.inv(covariance + noise * np.eye(len(some)))
            tried, held = inverse @ clipped[some], np.zeros(len(some))
            for own in together.values():
                held[own] = np.linalg.solve(inverse[np.ix_(own, own)], tried[own])
            if noise == _NOISES[0] or np.abs(held).mean() < np.abs(left).mean():
                pulls, left = tried, held
        lists = _listed(center), _listed(scale), _listed(pulls)
        found = Residual(*lists, _packed(points))
        every = errors - found.errors(inputs)
        every[some] = left + (errors - clipped)[some]
        return found, every

    def errors(self, inputs: Array) -> Array:
        """The expected errors of kernels, as logarithms."""
        points = (inputs - np.asarray(self.center)) / np.asarray(self.scale)
        return np.clip(_related(points, self._points) @ np.asarray(self.pulls), -_MOST, _MOST)

    def is_valid(self, width: int) -> bool:
        """Whether it was fitted for this number of inputs, and its points are of usual size."""
        try:
            return len(self.center) == len(self.scale) == width and bool(
                (np.abs(self._points) < 1e12).all()
            )
        except ValueError:  # of base64, or of another size
            return False

    @cached_property
    def _points(self) -> Array:
        values = np.frombuffer(base64.b64decode(self.points, validate=True), "<f4")
        return values.reshape(len(self.pulls), len(self.center)).astype(np.float64)


def _listed(values: Array) -> tuple[float, ...]:
    return tuple(map(float, values))


def _packed(values: Array) -> str:
    """Numbers as base64 of float32."""
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _related(some: Array, others: Array) -> Array:
    """The covariance of errors of kernels, a Matérn function of their distance."""
    lengths = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
    distance = np.sqrt(3 * np.maximum(lengths - 2 * some @ others.T, 0.0))
    return np.asarray((1 + distance) * np.exp(-distance))
