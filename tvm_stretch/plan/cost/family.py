"""A learned model of one family of kernels.

    latency = (weights . phases) * exp(trees(shares of phases, tiles, sizes)) ± conformal width

The phases (`targets/kernels/features.py`) are what a kernel does: multiplications, tiles, bytes
from each memory. Their weights come from non-negative least squares on relative errors, so the sum
extrapolates far beyond the measurements. Trees (`residual.py`) learn the remaining errors near the
measurements.

A family can correct a model of another device with the same loop nests. Then its phases are
nanoseconds there, and its weights come from `correction.py`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_stretch.base.formats import Format
from tvm_stretch.base.progress import step
from tvm_stretch.plan.cost.generic_features import RunFeatures, TransferFeatures, families
from tvm_stretch.plan.cost.residual import Array, Residual
from tvm_stretch.targets.kernels.features import Features

FEWEST_ROWS = 8
"""Families with fewer different kernels use the analytic model."""

_FEWEST_FOR_TREES, _FEWEST_TO_CORRECT = 40, 300
"""Least different kernels for trees; in a correction there is little to learn but noise."""

LAUNCH, LAUNCH_NS = "launch", 1000.0
"""The phase of an additional launch, which comes first in families that correct another model."""

Parts = tuple[str, dict[str, float]]
"""A kernel's family, and its predicted nanoseconds by phase."""

_LINES = {RunFeatures.family: 0.25, TransferFeatures.family: 0.5}
"""Families that are fitted as lines without a residual, with the quantile that they follow. Runs
differ from the sum of their kernels by noise that only makes them longer."""

_CONFIDENCE = 0.9
_FEWEST_PER_BIN = 40
_SLACK = 0.15  # in powers of two: how far outside of the measured range counts as inside
_FAINT = 0.3
"""Share of a kernel's time at which a phase's own data count as much as the guessed weight."""
_REWEIGHTINGS = 6
_STARTS = ("start", "cold_start")
"""Phases that do not grow with a kernel."""


@dataclass(frozen=True)
class FamilyModel:
    """One family's weights, residual, intervals and range; files hold these fields."""

    family: str
    version: int  # of its features
    weights: dict[str, float]  # of the phases, by name
    residual: Residual | None  # None in lines, for few kernels, and where it was removed
    edges: tuple[float, ...]  # logarithms of nanoseconds that separate the bins of ``widths``
    widths: tuple[float, ...]  # half width of the interval, as logarithm, for each bin
    lowest: dict[str, float]  # smallest measured value of each feature, as power of two
    highest: dict[str, float]  # largest measured value

    @property
    def is_correction(self) -> bool:
        """Whether it corrects another model."""
        return LAUNCH in self.weights

    @property
    def phases(self) -> list[str]:
        """The phases of `parts`."""
        return [name for name in self.weights if name != LAUNCH]

    def predict(self, kernels: Sequence[Features], below: Sequence[Parts] | None) -> Array:
        """Latencies in nanoseconds; ``below`` are parts by the model that it corrects, if any."""
        return np.maximum(self._by_phase(kernels, below).sum(axis=1), 1.0)

    def parts(self, kernels: Sequence[Features], below: Sequence[Parts] | None) -> list[Parts]:
        """The latencies by phase; an additional launch counts as a part of the start."""
        parts = []
        for row in self._by_phase(kernels, below):
            by_phase = dict(zip(self.weights, map(float, row), strict=True))
            if self.is_correction:
                by_phase["start"] += by_phase.pop(LAUNCH)
            parts.append((self.family, by_phase))
        return parts

    def _by_phase(self, kernels: Sequence[Features], below: Sequence[Parts] | None) -> Array:
        amounts = _amounts(kernels, below) * np.asarray(list(self.weights.values()))
        if self.residual is None:
            return amounts
        errors = self.residual.errors(_inputs(kernels, amounts))
        return np.asarray(amounts * np.exp(errors)[:, None])

    def half_widths(self, nanoseconds: Array, outside: Sequence[tuple[str, ...]]) -> Array:
        """Half of each interval, as logarithm; doubled out of range."""
        bins = np.searchsorted(np.asarray(self.edges), np.log(nanoseconds))
        widths = np.asarray(self.widths)[bins]
        return np.where([bool(reasons) for reasons in outside], 2.0 * widths, widths)

    def outside(self, kernels: Sequence[Features]) -> list[tuple[str, ...]]:
        """For each kernel, the features beyond the measured range."""
        low, high = (np.asarray(list(one.values())) for one in (self.lowest, self.highest))
        names = list(self.lowest)
        return [
            tuple(
                f"{names[i]} beyond what was measured"
                for i in np.flatnonzero((row < low - _SLACK) | (row > high + _SLACK))
            )
            for row in _matrix(kernels)
        ]

    def check(self, file: Format, where: str) -> None:
        """Refuse what the types of fields do not say; the versions are equal."""
        kind = families()[self.family]
        kernel = kind(**{name: 1 for name in kind.names()})
        names, phases = list(kind.names()), list(kernel.phases())
        width = 1 + len(self.weights) + len(names) + len(kernel.hints())
        file.within(self, where, -1e12, 1e12, widths=(0.0, 1e12))
        if self.residual is not None:
            file.within(self.residual, where, limits=(-20.0, 20.0))
        if (
            list(self.weights) not in (phases, [LAUNCH, *phases])
            or len(self.widths) != len(self.edges) + 1
            or not list(self.lowest) == list(self.highest) == names
            or not (self.residual is None or self.residual.is_valid(width))
        ):
            raise file.error(
                f"expected the weights, widths, ranges and residual of this family's phases and "
                f"features for {where}, got others; {file.again}"
            )


def fit_family(
    kernels: Sequence[Features],  # the measured kernels
    measured_ns: Sequence[float],  # their latencies
    # what each was measured with (a network, a batch of samples). Intervals come from kernels of
    # origins that the model has not seen.
    origins: Sequence[Hashable],
    # the parts of kernels by the model that this one corrects, and the weights that do so
    below: tuple[Sequence[Parts], dict[str, float]] | None = None,
) -> FamilyModel | None:
    """Learn one family; None if there are too few different kernels."""
    rows = _distinct(kernels, measured_ns)
    if len(rows) < (FEWEST_ROWS if below is None else FEWEST_ROWS // 2):
        return None
    step()
    own, target = [kernels[i] for i, _ in rows], np.asarray([ns for _, ns in rows])
    if isinstance(own[0], RunFeatures):  # differences of two measurements, some negative
        launches = np.asarray([float(k.launches) for k in own if isinstance(k, RunFeatures)])
        target = np.maximum(target, launches * np.quantile(target / launches, 0.25) / 3)
    name, names = own[0].family, list(own[0].phases())
    amounts = _amounts(own, None if below is None else [below[0][i] for i, _ in rows])
    if below is None:
        found = _weights(amounts, target, _LINES.get(name, 0.5), 0.0 if name in _LINES else _FAINT)
        _weigh_unseen(found, amounts, names)
        weights = dict(zip(names, map(float, found), strict=True))
    else:
        weights = below[1]
    scaled = amounts * np.asarray(list(weights.values()))
    residual, left = None, np.log(target / np.maximum(scaled.sum(axis=1), 1.0))
    fewest = _FEWEST_FOR_TREES if below is None else _FEWEST_TO_CORRECT
    if name not in _LINES and len(rows) >= fewest:
        inputs = _inputs(own, scaled)
        residual, left = Residual.fit(inputs, left, [origins[i] for i, _ in rows])
    fitted = sum(weight > 0 for weight in weights.values())  # which fit what they were told
    left = np.abs(left) / (1.0 - min(0.5, fitted / len(rows)))
    points, features = _matrix(own), own[0].names()
    low, high = (
        dict(zip(features, map(float, ends), strict=True))
        for ends in (points.min(axis=0), points.max(axis=0))
    )
    bins = intervals_of(np.log(target), left)
    return FamilyModel(name, own[0].version, weights, residual, *bins, low, high)


def _matrix(kernels: Sequence[Features]) -> Array:
    """Features as powers of two, one kernel a row."""
    return np.asarray([kernel.vector() for kernel in kernels], dtype=np.float64)


def _amounts(kernels: Sequence[Features], below: Sequence[Parts] | None) -> Array:
    """The quantities that weights multiply: phases of the kernels, or of the model below."""
    if below is None:
        rows = [list(kernel.phases().values()) for kernel in kernels]
    else:
        rows = [[LAUNCH_NS, *parts.values()] for _, parts in below]
    return np.asarray(rows, dtype=np.float64)


def _weights(
    amounts: Array,  # the weighted quantities, one kernel a row
    target: Array,  # what the sums should be
    quantile: float = 0.5,  # share of the targets that should lie below their sums
    # quantities below this share of the target say little of their weight, which is then drawn to
    # the weight that would fit all sums
    faint: float = 0.0,
) -> Array:
    """Non-negative weights with the least absolute relative error, by iterative reweighting."""
    from scipy.optimize import nnls

    relative, goal = amounts / target[:, None], np.ones(len(target))
    if faint:
        usual = float(np.median(goal / relative.sum(axis=1)))
        relative = np.vstack([relative, faint * np.eye(relative.shape[1])])
        goal = np.append(goal, np.full(relative.shape[1], faint * usual))
    scale = np.ones(len(goal))
    for _ in range(_REWEIGHTINGS):
        weights, _ = nnls(relative * scale[:, None], goal * scale)
        miss = relative @ weights - goal
        side = np.where(miss < 0, quantile, 1.0 - quantile)
        scale = np.sqrt(side / np.maximum(np.abs(miss), 0.05))
    return np.asarray(weights)


def _weigh_unseen(weights: Array, amounts: Array, names: Sequence[str]) -> None:
    """Phases that no measured kernel had weigh at most what the other work does.

    Their guess follows the whole time of kernels. On a GPU most of that is the launch, so that 1.5
    million gathers, which take 6 µs with all else, were predicted to take 540.
    """
    seen = amounts.any(axis=0)
    is_work = np.asarray([name not in _STARTS for name in names])
    if (seen & is_work).any():
        weights[~seen] = np.minimum(weights[~seen], weights[seen & is_work].mean())


def _inputs(kernels: Sequence[Features], scaled: Array) -> Array:
    """Inputs of the residual: time, shares of the phases, features, ratios."""
    total = np.maximum(scaled.sum(axis=1), 1.0)
    hints = np.asarray([kernel.hints() for kernel in kernels])
    shares = scaled / total[:, None]
    return np.column_stack([np.log2(total), shares, _matrix(kernels), hints])


def _distinct(kernels: Sequence[Features], measured_ns: Sequence[float]) -> list[tuple[int, float]]:
    """Index and time of every different kernel; the median of several measurements."""
    places: dict[Features, list[int]] = {}
    for index, kernel in enumerate(kernels):
        places.setdefault(kernel, []).append(index)
    return [
        (rows[0], max(1.0, float(np.median([measured_ns[i] for i in rows]))))
        for rows in places.values()
    ]


def intervals_of(size: Array, residuals: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Conformal half widths: the residual of 90 % of held-out kernels, by size of kernel."""
    count = max(1, min(6, len(size) // _FEWEST_PER_BIN))
    edges = np.quantile(size, np.arange(1, count) / count)
    bins = np.searchsorted(edges, size)
    widths = []
    for index in range(count):
        own = np.sort(residuals[bins == index])
        rank = math.ceil((len(own) + 1) * _CONFIDENCE) - 1
        widths.append(float(own[min(rank, len(own) - 1)]) if len(own) else float(residuals.max()))
    return tuple(map(float, edges)), tuple(widths)
