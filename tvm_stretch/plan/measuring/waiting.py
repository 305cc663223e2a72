"""Times of kernels on a GPU as if the device never waited for the host.

    traced on an H100:   conv 100 us | relu 3.8 | relu 3.8 | relu 5.5 | relu 5.5
                                       launched meanwhile  |  launched too late

A traced run launches slowly (13 us a kernel on an H100), so that the device waits before short
kernels, and a kernel takes 0.8 to 2.3 us longer after that. A plain run waits before other kernels,
and `plan/cost/launching.py` has the time of its launches, so kernels are learned without what
waiting adds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

_GAPS, _ADDED = (2400, 3200, 5000, 7500), (800, 1400, 1800, 2300)
"""Nanoseconds between two kernels, and those that the wait adds to the second one, on an H200.

1,200 lie between two that do not wait; up to twice that adds nothing.
"""


def busy_times(trace: Mapping[str, Any], count: int) -> list[int]:
    """Nanoseconds of each of ``count`` nodes without what waiting adds to their launches.

    At least a half of a launch is its own.
    """
    every = itertools.chain.from_iterable(trace["regions"])
    spans = sorted((s for s in every if s["kind"] == "kernel"), key=lambda s: s["start"])
    times, end = [0] * count, -_GAPS[-1]  # the first one waited
    for span in spans:
        gap, end, own = span["start"] - end, span["end"], span["end"] - span["start"]
        added = round(float(np.interp(gap, _GAPS, _ADDED))) if gap >= _GAPS[0] else 0
        times[span["id"]] += max(own // 2, own - added)
    return times
