"""The time of a run on a GPU, from the times that its kernels take alone.

    run = start + max(launches, kernels alone - launches * hidden)

The host launches kernels while the device computes, so the slower of the two decides. A launch
takes longer if the kernel has weights, that is more arguments. A traced kernel takes longer than
one of a plain run by the hidden time. The times of traced kernels are learned: they are the
same in samples and in networks, while a kernel's share of a plain run depends on the others.
Whatever else the host does only delays runs, so the values are those of the quicker runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_stretch.plan.cost.generic_features import LaunchedRunFeatures
from tvm_stretch.plan.cost.residual import Array
from tvm_stretch.targets.kernels.features import Features

_FEWEST = 4
"""Runs that tell what launches take."""

_QUICK = 0.1
"""The share of runs whose time by launches is that of launches alone."""

_STARTS, _LAUNCHES = np.linspace(0, 2, 5), np.linspace(0.7, 1.2, 21)
_WEIGHTS, _HIDDEN = np.linspace(0, 0.4, 9), np.linspace(0, 0.6, 13)
"""Values that are tried, in units of the quick runs' time by launches. A run starts with a launch
and ends with an answer, so its start is about two of them; runs of like lengths leave that open."""

_DELAYED = 0.75
"""The share of runs that may take longer than predicted."""

_DISTURBED = 0.15
"""Larger errors count like this one: other virtual machines delay the host in some runs."""


@dataclass(frozen=True)
class Launching:
    """See the module docstring; all in nanoseconds."""

    start_ns: float
    launch_ns: float
    weights_ns: float  # what a launch takes longer if weights are among its arguments
    hidden_ns: float

    def run_ns(self, kernels: Sequence[Features], alone_ns: float) -> float:
        """The time of a run of kernels that take ``alone_ns`` if each is alone."""
        found = LaunchedRunFeatures.of(kernels, round(alone_ns))
        return float(self._runs(*_columns([found]))[0])

    def added_ns(self, kernel: Features, alone_ns: float) -> float:
        """What a kernel adds to a run, if its neighbours are like it."""
        return self.run_ns([kernel], alone_ns) - self.start_ns

    def _runs(self, launches: Array, weighted: Array, alone: Array) -> Array:
        by_host = launches * self.launch_ns + weighted * self.weights_ns
        return self.start_ns + np.maximum(by_host, alone - launches * self.hidden_ns)


def _columns(runs: Sequence[LaunchedRunFeatures]) -> Array:
    return np.asarray([(r.launches, r.weight_launches, r.kernel_ns) for r in runs], float).T


def _fit(runs: Sequence[LaunchedRunFeatures], measured_ns: Sequence[float]) -> Launching:
    """The values with the least relative error of the runs."""
    columns, measured = _columns(runs), np.asarray(measured_ns, dtype=np.float64)
    unit = float(np.quantile(measured / columns[0], _QUICK))

    def error(found: Launching) -> float:
        off = np.clip(found._runs(*columns) / measured - 1.0, -_DISTURBED, _DISTURBED)
        return float(np.where(off > 0, _DELAYED * off, (_DELAYED - 1) * off).mean())

    tried = itertools.product(_STARTS, _LAUNCHES, _WEIGHTS, _HIDDEN)
    return min((Launching(*(unit * float(v) for v in values)) for values in tried), key=error)


def launching_of(kernels: Sequence[Features], measured_ns: Sequence[float]) -> Launching | None:
    """The launches of the measured runs; None if they are too few."""
    pairs = zip(kernels, measured_ns, strict=True)
    runs = [(kernel, ns) for kernel, ns in pairs if isinstance(kernel, LaunchedRunFeatures)]
    return _fit(*zip(*runs, strict=True)) if len(runs) >= _FEWEST else None
