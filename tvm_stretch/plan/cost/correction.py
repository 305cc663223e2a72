"""A model of one device, corrected for another one by a few measured kernels.

    latency = start + sum over phases of (ratio of the phase * its nanoseconds on the other device)

A ratio is near those of other families for phases of its name, near those of its own family, and
near the ratio of the devices. That is a Gaussian before anything is measured, so that 30 kernels
correct all families, and 3,000 give each phase a ratio of its own.

The same Gaussian says which kernels to measure: those after which the latencies of all layers
would be known best (`telling_first`). The choice needs no results, so kernels can be compiled
before others are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tvm_stretch.plan.cost.family import LAUNCH, LAUNCH_NS, Parts
from tvm_stretch.plan.cost.residual import Array

_DEVICE, _NAME, _FAMILY, _OWN = 0.7, 0.25, 0.2, 0.1
"""Standard deviations of ratios: of the device, and of a phase's name, family and own from it."""

_START = 0.5
"""Standard deviation of what a launch takes longer than there, in microseconds."""

NOISE = 0.06
"""Relative error of a kernel's latency if all ratios are right."""


_REWEIGHTINGS = 6


class Ratios:
    """Ratios of phases, before and after kernels were measured.

    Args:
        phases: the phases of each family on the other device.
    """

    def __init__(self, phases: Mapping[str, Sequence[str]]) -> None:
        self._phases = phases
        pairs = [(family, phase) for family, names in phases.items() for phase in names]
        self._columns = {pair: i for i, pair in enumerate(pairs)}
        same_family, same_name = (
            np.asarray([[one[i] == other[i] for other in pairs] for one in pairs]) for i in (0, 1)
        )
        self._covariance = np.zeros((len(pairs) + 1, len(pairs) + 1))
        self._covariance[:-1, :-1] = _DEVICE**2 + _OWN**2 * np.eye(len(pairs))
        self._covariance[:-1, :-1] += _NAME**2 * same_name + _FAMILY**2 * same_family
        self._covariance[-1, -1] = _START**2
        self._weights = np.append(np.ones(len(pairs)), 0.0)

    def fit(self, kernels: Sequence[Parts], measured_ns: Array) -> Array:
        """Find the most likely ratios, none of them negative; returns logarithms of errors.

        Errors beyond the noise count in proportion and not as squares.
        """
        from scipy.optimize import nnls

        root = np.linalg.cholesky(np.linalg.inv(self._covariance)).T
        relative, expected = self._matrix(kernels) / measured_ns[:, None], root @ self._weights
        scale = np.full(len(kernels), 1 / NOISE)
        for _ in range(_REWEIGHTINGS):
            rows = np.vstack([relative * scale[:, None], root])
            self._weights, _ = nnls(rows, np.append(scale, expected), maxiter=20 * rows.shape[1])
            miss = relative @ self._weights - 1.0
            scale = 1 / np.sqrt(NOISE * np.maximum(np.abs(miss), NOISE))
        return -np.log(relative @ self._weights)

    def of_family(self, family: str) -> dict[str, float]:
        """Weights of an additional launch and of each phase."""
        weights = [self._weights[self._columns[family, name]] for name in self._phases[family]]
        names = (LAUNCH, *self._phases[family])
        return dict(zip(names, map(float, (self._weights[-1], *weights)), strict=True))

    def telling_first(
        self, candidates: Sequence[Parts], population: Sequence[Parts], count: int
    ) -> list[int]:
        """Positions of candidates in the order in which they should be measured.

        Each is the one after which the variance of the population's latencies is least. Relative
        errors count, in proportion to the latencies.
        """
        every, wanted = self._matrix(candidates), self._matrix(population)
        every /= every[:, :-1].sum(axis=1, keepdims=True)
        wanted /= np.sqrt(wanted[:, :-1].sum(axis=1, keepdims=True))
        importance, covariance = wanted.T @ wanted, self._covariance
        left, order = np.ones(len(every), bool), []
        for _ in range(min(count, len(every))):
            shared = covariance @ every.T
            variance = (every * shared.T).sum(axis=1) + NOISE**2
            gain = (shared * (importance @ shared)).sum(axis=0) / variance
            best = int(np.where(left, gain, -1.0).argmax())
            left[best] = False
            order.append(best)
            covariance = covariance - np.outer(shared[:, best], shared[:, best]) / variance[best]
        return order

    def _matrix(self, kernels: Sequence[Parts]) -> Array:
        matrix = np.zeros((len(kernels), len(self._columns) + 1))
        for row, (family, parts) in zip(matrix, kernels, strict=True):
            for phase, nanoseconds in parts.items():
                row[self._columns[family, phase]] = nanoseconds
        matrix[:, -1] = LAUNCH_NS
        return matrix
