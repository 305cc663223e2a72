"""The least time of any plan, by which a plan can be judged.

conv    cpu 4 ms, gpu 2 ms    least: both processors always busy, nothing handed over,
add     cpu 1 ms, gpu 2 ms    each kernel shared in any parts: 1.67 ms

A plan takes at least the load of each processor, and so at least any weighted mean of the loads.
The mean is least if each kernel runs where its weighted time is least: that sum is a bound for all
weights of sum 1, and the best weights give the linear relaxation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_STEPS = 400  # towards better weights; any weights give a bound
_PACE = 0.5


def least_ns(times: Sequence[Sequence[int | None]]) -> int:
    """A bound of the time of all kernels.

    Args:
        times: nanoseconds of each kernel on each processor, None where it is not supported.
    """
    if not times:
        return 0
    costs = np.array([[np.inf if ns is None else float(ns) for ns in row] for row in times])
    weights = np.full(costs.shape[1], 1 / costs.shape[1])
    best = 0.0
    for step in range(_STEPS):
        weighted = costs * weights
        places = weighted.argmin(axis=1)
        kernels = np.arange(len(costs))
        best = max(best, float(weighted[kernels, places].sum()))
        loads = np.bincount(places, costs[kernels, places], len(weights))
        if not loads.any():
            break
        weights = weights * np.exp(_PACE / (1 + step) ** 0.5 * loads / loads.max())
        weights /= weights.sum()
    return int(best)
