"""A learned correction of the analytic model for one family of kernels.

    log(measured / analytic)  =  trees(features)  ±  what residuals of held-out kernels say

Trees cannot extrapolate, the analytic model can: outside the measured range the correction stays
that of the nearest measured kernels, and the prediction says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost as xgb

from tvm_stretch.cost.features import FAMILIES, Features
from tvm_stretch.errors import CostModelError

Array = np.ndarray[Any, Any]

FEWEST_ROWS = 12
"""Families with fewer different kernels are left to the analytic model."""

_FOLDS = 3
_CONFIDENCE = 0.9
_FEWEST_PER_BIN = 25
_SLACK = 0.15  # in powers of two: how far outside the measured range still counts as inside
_TREES = 150
_SETTINGS = {
    "objective": "reg:pseudohubererror",
    "huber_slope": 0.2,
    "max_depth": 5,
    "eta": 0.12,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 2.0,
    "lambda": 1.0,
    "base_score": 0.0,
    "tree_method": "hist",
    "max_bin": 128,
    "nthread": 1,
    "seed": 1,
}


@dataclass(frozen=True)
class FamilyModel:
    """One family's trees, intervals and range.

    Attributes:
        booster: predicts the logarithm of measured over analytic, less ``centre``.
        centre: median of that logarithm.
        limits: of that logarithm less ``centre``: no machine is beyond what was seen.
        edges: analytic logarithms of nanoseconds that part the bins of ``widths``.
        widths: half width of the interval, as logarithm, for each bin.
        points: feature vectors that were measured.
        reach: how far from the nearest of them a kernel still is inside.
    """

    family: str
    booster: xgb.Booster
    centre: float
    limits: tuple[float, float]
    edges: tuple[float, ...]
    widths: tuple[float, ...]
    points: Array
    reach: float

    def correct(
        self, vectors: Array, analytic: Array
    ) -> tuple[Array, Array, list[tuple[str, ...]]]:
        """Latencies, half widths as logarithms, and reasons for being out of range."""
        shift = np.clip(self.booster.predict(xgb.DMatrix(vectors)), *self.limits) + self.centre
        bins = np.searchsorted(np.asarray(self.edges), np.log(analytic))
        widths = np.asarray(self.widths)[bins]
        outside = self._outside(vectors)
        widths = np.where([bool(reasons) for reasons in outside], 2.0 * widths, widths)
        return analytic * np.exp(shift), widths, outside

    def _outside(self, vectors: Array) -> list[tuple[str, ...]]:
        names = FAMILIES[self.family].names()
        low, high = self.points.min(axis=0) - _SLACK, self.points.max(axis=0) + _SLACK
        far = nearest(vectors, self.points) > self.reach
        found = []
        for row, is_far in zip(vectors, far, strict=True):
            beyond = np.flatnonzero((row < low) | (row > high))
            reasons = [f"{names[i]} beyond what was measured" for i in beyond]
            if is_far and not reasons:
                reasons.append("far from every measured kernel")
            found.append(tuple(reasons))
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads."""
        return {
            "features": list(FAMILIES[self.family].names()),
            "centre": self.centre,
            "limits": list(self.limits),
            "edges": list(self.edges),
            "widths": list(self.widths),
            "points": np.round(self.points, 4).tolist(),
            "reach": self.reach,
            "booster": json.loads(bytes(self.booster.save_raw("json"))),
        }

    @staticmethod
    def from_json(family: str, data: dict[str, Any]) -> FamilyModel:
        """Read what `to_json` wrote.

        Raises:
            CostModelError: the family or its features are not this version's, or data is missing.
        """
        if family not in FAMILIES or data.get("features") != list(FAMILIES[family].names()):
            raise CostModelError(
                f"expected the features of this version for family {family!r}, got "
                f"{data.get('features')}; train again"
            )
        try:
            booster = xgb.Booster()
            booster.load_model(bytearray(json.dumps(data["booster"]).encode()))
            return FamilyModel(
                family=family,
                booster=booster,
                centre=float(data["centre"]),
                limits=(float(data["limits"][0]), float(data["limits"][1])),
                edges=tuple(map(float, data["edges"])),
                widths=tuple(map(float, data["widths"])),
                points=np.asarray(data["points"], dtype=np.float64),
                reach=float(data["reach"]),
            )
        except (KeyError, IndexError, TypeError, ValueError, xgb.core.XGBoostError) as error:
            raise CostModelError(
                f"expected trees and intervals for family {family!r}, got {error!r}; train again"
            ) from error


def fit_family(
    kernels: Sequence[Features], measured_ns: Sequence[float], analytic_ns: Sequence[float]
) -> FamilyModel | None:
    """Learn one family; None if there are too few different kernels."""
    every = np.log(np.asarray(measured_ns, dtype=np.float64)) - np.log(np.asarray(analytic_ns))
    vectors, first, group = np.unique(
        matrix(kernels), axis=0, return_index=True, return_inverse=True
    )
    if len(vectors) < FEWEST_ROWS:
        return None
    # A kernel that was measured many times counts once, with its median.
    target = np.asarray([np.median(every[group.ravel() == i]) for i in range(len(vectors))])
    analytic = np.asarray(analytic_ns, dtype=np.float64)[first]
    centre = float(np.median(target))
    low, high = np.quantile(target - centre, (0.005, 0.995))
    limits = (float(low), float(high))
    residuals = np.empty_like(target)
    fold_of = np.random.default_rng(1).permutation(len(vectors)) % _FOLDS
    for fold in range(_FOLDS):
        held = fold_of == fold
        booster = _train(vectors[~held], target[~held] - centre)
        guess = np.clip(booster.predict(xgb.DMatrix(vectors[held])), *limits)
        residuals[held] = target[held] - centre - guess
    edges, widths = _intervals(np.log(analytic), np.abs(residuals))
    return FamilyModel(
        family=kernels[0].family,
        booster=_train(vectors, target - centre),
        centre=centre,
        limits=limits,
        edges=edges,
        widths=widths,
        points=vectors,
        reach=_reach(vectors),
    )


def matrix(kernels: Sequence[Features]) -> Array:
    """Feature vectors, one a row."""
    return np.asarray([kernel.vector() for kernel in kernels], dtype=np.float64)


def _train(vectors: Array, target: Array) -> xgb.Booster:
    return xgb.train(_SETTINGS, xgb.DMatrix(vectors, label=target), num_boost_round=_TREES)


def _intervals(size: Array, residuals: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Conformal: the residual that 90 % of held-out kernels stay below, by size of kernel."""
    count = max(1, min(4, len(size) // _FEWEST_PER_BIN))
    edges = np.quantile(size, np.arange(1, count) / count)
    bins = np.searchsorted(edges, size)
    widths = []
    for index in range(count):
        own = np.sort(residuals[bins == index])
        rank = math.ceil((len(own) + 1) * _CONFIDENCE) - 1
        widths.append(float(own[min(rank, len(own) - 1)]))
    return tuple(map(float, edges)), tuple(widths)


def _reach(points: Array) -> float:
    """The distance to the nearest neighbour that 99 % of measured kernels have."""
    return float(np.quantile(nearest(points, points, itself=True), 0.99)) + _SLACK


def nearest(rows: Array, points: Array, itself: bool = False) -> Array:
    """Distance of each row to the nearest point; with ``itself`` to the nearest other one."""
    found = np.empty(len(rows))
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        distance = np.sqrt(((part[:, None, :] - points[None, :, :]) ** 2).sum(axis=2))
        if itself:
            index = np.arange(len(part))
            distance[index, index + start] = np.inf
        found[start : start + 64] = distance.min(axis=1)
    return found
