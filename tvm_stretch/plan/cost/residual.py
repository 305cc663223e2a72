"""What the errors of measured kernels say of kernels like them: trees that XGBoost learns.

    log(measured / weighted phases) of a kernel  ~  trees(time, shares of phases, features)

Their answers are limited to the errors that were seen. Kernels of a few folds of origins, each
predicted by trees that have not seen its origin, tell how wide intervals are.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_stretch.base.errors import CostModelError
from tvm_stretch.base.progress import step
from tvm_stretch.plan.cost.trees import load_trees, text_of, the_xgboost, trees_of

if TYPE_CHECKING:
    import xgboost as xgb  # imported when errors are learned or asked for: that takes a second

Array = np.ndarray[Any, Any]

_FOLDS, _FEWEST = 3, 8
"""Folds of origins, and the least other kernels from which a fold's errors are learned."""

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


@dataclass(frozen=True)
class Residual:
    """See the module docstring."""

    width: int  # the number of inputs
    limits: tuple[float, float]  # the range of errors that were seen
    trees: str  # as `text_of` writes them

    @staticmethod
    def fit(inputs: Array, errors: Array, origins: Sequence[Hashable]) -> tuple[Residual, Array]:
        """The trees, and the errors that are left of kernels if their origin is held out."""
        names = list(dict.fromkeys(origins))
        order = np.random.default_rng(1).permutation(len(names)) % _FOLDS
        fold_of = dict(zip(names, order, strict=True))
        folds, left = np.asarray([fold_of[origin] for origin in origins]), errors.copy()
        for fold in range(_FOLDS):
            held, kept = folds == fold, folds != fold
            if held.any() and kept.sum() >= _FEWEST:
                booster, limits = _learned(inputs[kept], errors[kept])
                left[held] -= np.clip(booster.inplace_predict(inputs[held]), *limits)
        booster, limits = _learned(inputs, errors)
        return Residual(inputs.shape[1], limits, text_of(booster)), left

    def errors(self, inputs: Array) -> Array:
        """The expected errors of kernels, as logarithms."""
        return np.clip(self._booster.inplace_predict(inputs), *self.limits)

    def is_valid(self, width: int) -> bool:
        """Whether it was learned for this number of inputs, and holds trees of them."""
        try:
            return self.width == width and bool(trees_of(self.trees, width))
        except (CostModelError, ValueError):  # ValueError: of base64, or of another size
            return False

    @cached_property
    def _booster(self) -> xgb.Booster:
        return load_trees(trees_of(self.trees, self.width), self.width)


def _learned(inputs: Array, errors: Array) -> tuple[xgb.Booster, tuple[float, float]]:
    """Trees, and the range that limits what they say."""
    step()
    xgb = the_xgboost()
    booster = xgb.train(_SETTINGS, xgb.DMatrix(inputs, label=errors), num_boost_round=_TREES)
    low, high = map(float, np.quantile(errors, (0.003, 0.997)))
    return booster, (low, high)
