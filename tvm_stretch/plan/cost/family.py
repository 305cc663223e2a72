"""A learned model of one family of kernels.

    latency = (weights . phases) * exp(trees(shares of phases, tiles, sizes)) ± conformal width

The phases (`targets/kernels/features.py`) are what a kernel does: multiplications, tiles, bytes
from each memory. Their weights come from non-negative least squares on relative errors, so the sum
extrapolates far beyond the measurements. Trees learn the remaining errors near the measurements,
and their correction is limited to the errors that were seen.

A family can correct a model of another device with the same loop nests (`over`). Then its phases
are nanoseconds there, its weights come from `correction.py`, and few errors from `nearby.py`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.files import is_finite
from tvm_stretch.base.progress import step
from tvm_stretch.plan.cost.generic_features import RunFeatures, TransferFeatures, families
from tvm_stretch.plan.cost.nearby import Nearby
from tvm_stretch.plan.cost.trees import load_trees, the_xgboost
from tvm_stretch.targets.kernels.features import Features

if TYPE_CHECKING:
    import xgboost as xgb  # imported when a model is read or learned: that takes a second

Array = np.ndarray[Any, Any]

FEWEST_ROWS = 8
"""Families with fewer different kernels use the analytic model."""

_FEWEST_FOR_TREES, _FEWEST_FOR_TREES_OVER = 40, 300
"""Least different kernels for trees; over another model there is little to learn but noise."""

_FOLDS = 3
LAUNCH, LAUNCH_NS = "launch", 1000.0
"""The phase of an additional launch, which comes first in families over another model."""

Parts = tuple[str, dict[str, float]]
"""A kernel's family, and its predicted nanoseconds by phase."""

_LINES = {RunFeatures.family: 0.25, TransferFeatures.family: 0.5}
"""Families that are fitted as lines without trees, with the quantile that they follow. Runs differ
from the sum of their kernels by noise that only makes them longer."""

_CONFIDENCE = 0.9
_FEWEST_PER_BIN = 40
_SLACK = 0.15  # in powers of two: how far outside of the measured range counts as inside
_TREES = 200
_SETTINGS = {
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.15,
    "max_depth": 5,
    "eta": 0.06,
    "subsample": 0.7,
    "colsample_bytree": 0.6,
    "min_child_weight": 2.0,
    "lambda": 1.0,
    "base_score": 0.0,
    "tree_method": "hist",
    "max_bin": 128,
    "nthread": 1,
    "seed": 1,
}
_FAINT = 0.3
"""Share of a kernel's time at which a phase's own data count as much as the guessed weight."""
_REWEIGHTINGS = 6
_STARTS = ("start", "cold_start")
"""Phases that do not grow with a kernel."""


@dataclass(frozen=True)
class Over:
    """What a model below says of measured kernels of a family."""

    parts: Sequence[Parts]  # of each kernel
    weights: dict[str, float]  # what corrects them

    def taken(self, places: Iterable[int]) -> Over:
        """Some of the kernels."""
        return Over([self.parts[i] for i in places], self.weights)


@dataclass(frozen=True)
class FamilyModel:
    """One family's weights, trees, intervals and range."""

    family: str
    weights: dict[str, float]  # of the phases, by name
    booster: xgb.Booster | None  # corrects the weighted sum; None if too few kernels were measured
    # of the correction, as logarithm: the range of errors that were seen
    limits: tuple[float, float]
    edges: tuple[float, ...]  # logarithms of nanoseconds that separate the bins of ``widths``
    widths: tuple[float, ...]  # half width of the interval, as logarithm, for each bin
    lowest: tuple[float, ...]  # smallest measured value of each feature, as power of two
    highest: tuple[float, ...]  # largest measured value
    nearby: Nearby | None = None  # corrects the sum instead of trees, over another model

    @property
    def is_over(self) -> bool:
        """Whether it corrects another model."""
        return next(iter(self.weights)) == LAUNCH

    @property
    def phases(self) -> list[str]:
        """The phases of `parts`."""
        return [name for name in self.weights if name != LAUNCH]

    def without_trees(self) -> FamilyModel:
        """The weighted sum alone."""
        return replace(self, booster=None, nearby=None)

    def predict(self, kernels: Sequence[Features], over: Sequence[Parts] | None) -> Array:
        """Latencies in nanoseconds; ``over`` are parts by the model below, if it has one."""
        return np.maximum(self._by_phase(kernels, over).sum(axis=1), 1.0)

    def parts(self, kernels: Sequence[Features], over: Sequence[Parts] | None) -> list[Parts]:
        """The latencies by phase; an additional launch counts as a part of the start."""
        found = []
        for row in self._by_phase(kernels, over):
            by_phase = dict(zip(self.weights, map(float, row), strict=True))
            if self.is_over:
                by_phase["start"] += by_phase.pop(LAUNCH)
            found.append((self.family, by_phase))
        return found

    def _by_phase(self, kernels: Sequence[Features], over: Sequence[Parts] | None) -> Array:
        amounts = _amounts(kernels, over) * np.asarray(list(self.weights.values()))
        if self.nearby is not None:
            return np.asarray(amounts * np.exp(self.nearby.errors(matrix(kernels)))[:, None])
        if self.booster is None:
            return amounts
        shift = self.booster.inplace_predict(_vectors(kernels, amounts))
        return np.asarray(amounts * np.exp(np.clip(shift, *self.limits))[:, None])

    def half_widths(self, nanoseconds: Array, outside: Sequence[tuple[str, ...]]) -> Array:
        """Half of each interval, as logarithm; doubled out of range."""
        bins = np.searchsorted(np.asarray(self.edges), np.log(nanoseconds))
        widths = np.asarray(self.widths)[bins]
        return np.where([bool(reasons) for reasons in outside], 2.0 * widths, widths)

    def outside(self, kernels: Sequence[Features]) -> list[tuple[str, ...]]:
        """For each kernel, the features beyond the measured range."""
        names = families()[self.family].names()
        rows = matrix(kernels)
        low, high = np.asarray(self.lowest) - _SLACK, np.asarray(self.highest) + _SLACK
        return [
            tuple(
                f"{names[i]} beyond what was measured"
                for i in np.flatnonzero((row < low) | (row > high))
            )
            for row in rows
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        raw = None if self.booster is None else json.loads(bytes(self.booster.save_raw("json")))
        return {
            "version": families()[self.family].version,
            "features": list(families()[self.family].names()),
            "weights": self.weights,
            "limits": list(self.limits),
            "edges": list(self.edges),
            "widths": list(self.widths),
            "lowest": list(self.lowest),
            "highest": list(self.highest),
            "booster": raw,
            "nearby": None if self.nearby is None else self.nearby.to_json(),
        }

    @staticmethod
    def from_json(family: str, data: dict[str, Any]) -> FamilyModel | None:
        """Read what `to_json` wrote; None for families, or versions of them, of other packages."""
        kind = families().get(family)
        if kind is None or data.get("version") != kind.version:
            return None
        names = kind.names()
        _require(data.get("features") == list(names), "features", list(names), data.get("features"))
        try:
            weights = {str(name): _number(value) for name, value in data["weights"].items()}
            known = list(_any_kernel(family).phases())
            _require(list(weights) in (known, [LAUNCH, *known]), "weights", known, list(weights))
            width = 1 + len(weights) + len(names) + len(_any_kernel(family).hints())
            booster = None if data["booster"] is None else load_trees(data["booster"], width)
            edges, widths = _numbers(data["edges"]), _numbers(data["widths"])
            _require(len(widths) == len(edges) + 1, "widths", len(edges) + 1, len(widths))
            _require(all(width >= 0 for width in widths), "widths", "none below 0", min(widths))
            lowest, highest = _numbers(data["lowest"]), _numbers(data["highest"])
            for found in (lowest, highest):
                _require(len(found) in (0, len(names)), "what was measured", len(names), len(found))
            low, high = _numbers(data["limits"])
            near = data["nearby"]
            nearby = None if near is None else Nearby.from_json(near, len(names))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, CostModelError):
                raise
            raise CostModelError(
                f"expected weights, trees and intervals for family {family!r}, got {error!r}; "
                "train again"
            ) from error
        seen = (low, high), edges, widths, lowest, highest
        return FamilyModel(family, weights, booster, *seen, nearby)


_LARGEST = 1e12
"""Largest weight or logarithm in a file, so that sums and products stay finite."""


def _any_kernel(family: str) -> Features:
    """A kernel of a family, from which properties of the whole family are read."""
    kind = families()[family]
    return kind(**{name: 1 for name in kind.names()})


def _number(value: Any) -> float:
    _require(is_finite(value) and abs(value) <= _LARGEST, "a number", "a finite one", value)
    return float(value)


def _numbers(values: Any) -> tuple[float, ...]:
    _require(isinstance(values, list), "numbers", "a list", values)
    return tuple(map(_number, values))


def _require(holds: bool, what: str, expected: object, got: object) -> None:
    if not holds:
        raise CostModelError(
            f"expected {expected} for {what} of the cost model, got {str(got)[:60]}; train again"
        )


def fit_family(
    kernels: Sequence[Features],  # the measured kernels
    measured_ns: Sequence[float],  # their latencies
    # what each was measured with (a network, a batch of samples). Intervals come from kernels of
    # origins that the model has not seen.
    origins: Sequence[Hashable],
    over: Over | None = None,  # the model that this one corrects
    # whether to estimate intervals, which takes four times as long; without, they are empty
    intervals: bool = True,
) -> FamilyModel | None:
    """Learn one family; None if there are too few different kernels."""
    rows = _distinct(kernels, measured_ns)
    if len(rows) < (FEWEST_ROWS if over is None else FEWEST_ROWS // 2):
        return None
    kernels = [kernels[i] for i, _ in rows]
    target = np.asarray([ns for _, ns in rows])
    if isinstance(kernels[0], RunFeatures):  # differences of two measurements, some negative
        launches = np.asarray([float(k.launches) for k in kernels if isinstance(k, RunFeatures)])
        target = np.maximum(target, launches * np.quantile(target / launches, 0.25) / 3)
    if over is not None:
        over = over.taken([i for i, _ in rows])
    whole = _learn(kernels, target, over)
    fold_of = _folds([origins[i] for i, _ in rows])
    residuals = np.zeros(len(target))
    for fold in range(_FOLDS if intervals else 0):
        held, kept = np.flatnonzero(fold_of == fold), np.flatnonzero(fold_of != fold)
        if not len(held) or len(kept) < FEWEST_ROWS:
            continue
        some = None if over is None else over.taken(kept)
        others = None if over is None else over.taken(held).parts
        part = _learn([kernels[i] for i in kept], target[kept], some)
        guess = part.predict([kernels[i] for i in held], others)
        residuals[held] = np.log(target[held] / guess)
    edges, widths = intervals_of(np.log(target), np.abs(residuals))
    points = matrix(kernels)
    return replace(
        whole,
        edges=edges,
        widths=widths,
        lowest=tuple(map(float, points.min(axis=0))),
        highest=tuple(map(float, points.max(axis=0))),
    )


def matrix(kernels: Sequence[Features]) -> Array:
    """Features as powers of two, one kernel a row."""
    return np.asarray([kernel.vector() for kernel in kernels], dtype=np.float64)


def _learn(kernels: Sequence[Features], target: Array, over: Over | None) -> FamilyModel:
    """Weights, then trees; no intervals yet."""
    step()
    amounts = _amounts(kernels, None if over is None else over.parts)
    name, booster, limits = kernels[0].family, None, (0.0, 0.0)
    if over is not None:
        found = over.weights
    else:
        faint = 0.0 if name in _LINES else _FAINT
        weights = _weights(amounts, target, _LINES.get(name, 0.5), faint=faint)
        names = list(kernels[0].phases())
        _weigh_unseen(weights, amounts, names)
        found = dict(zip(names, map(float, weights), strict=True))
    fewest = _FEWEST_FOR_TREES if over is None else _FEWEST_FOR_TREES_OVER
    scaled = amounts * np.asarray(list(found.values()))
    miss = np.log(target / np.maximum(scaled.sum(axis=1), 1.0))
    few = over is not None and len(target) < fewest
    nearby = Nearby.fit(matrix(kernels), miss) if few and name not in _LINES else None
    if name not in _LINES and len(target) >= fewest:
        low, high = np.quantile(miss, (0.003, 0.997))
        limits = (float(low), float(high))
        xgb = the_xgboost()
        data = xgb.DMatrix(_vectors(kernels, scaled), label=miss)
        booster = xgb.train(_SETTINGS, data, num_boost_round=_TREES)
    return FamilyModel(name, found, booster, limits, (), (0.0,), (), (), nearby)


def _amounts(kernels: Sequence[Features], over: Sequence[Parts] | None) -> Array:
    """The quantities that weights multiply: phases of the kernels, or of the model below."""
    if over is None:
        rows = [list(kernel.phases().values()) for kernel in kernels]
    else:
        rows = [[LAUNCH_NS, *parts.values()] for _, parts in over]
    return np.asarray(rows, dtype=np.float64)


def _weights(amounts: Array, target: Array, quantile: float = 0.5, faint: float = 0.0) -> Array:
    """Non-negative weights with the least absolute relative error, by iterative reweighting.

    Args:
        amounts: the weighted quantities, one kernel a row.
        target: what the sums should be.
        quantile: share of the targets that should lie below their sums.
        faint: quantities below this share of the target say little of their weight, which is
            then drawn to the weight that would fit all sums.
    """
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


def _vectors(kernels: Sequence[Features], scaled: Array) -> Array:
    """Inputs of the trees: shares of the phases, features, ratios."""
    total = np.maximum(scaled.sum(axis=1), 1.0)
    rows = matrix(kernels)
    extra = np.asarray([kernel.hints() for kernel in kernels])
    return np.column_stack([np.log2(total), scaled / total[:, None], rows, extra])


def _distinct(kernels: Sequence[Features], measured_ns: Sequence[float]) -> list[tuple[int, float]]:
    """Index and time of every different kernel; the median of several measurements."""
    places: dict[Features, list[int]] = {}
    for index, kernel in enumerate(kernels):
        places.setdefault(kernel, []).append(index)
    return [
        (found[0], max(1.0, float(np.median([measured_ns[i] for i in found]))))
        for found in places.values()
    ]


def _folds(origins: Sequence[Hashable]) -> Array:
    """A fold for each origin, so that kernels measured together stay together."""
    names = list(dict.fromkeys(origins))
    order = np.random.default_rng(1).permutation(len(names)) % _FOLDS
    fold = dict(zip(names, order, strict=True))
    return np.asarray([fold[origin] for origin in origins])


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
