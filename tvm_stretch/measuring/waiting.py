"""Times of kernels on a GPU as if the device never waited for the host.

    traced on an H100:   conv 100 us | relu 3.8 | relu 3.8 | relu 5.5 | relu 5.5
                                       launched meanwhile  |  launched too late

A traced run launches slowly (13 us a kernel on an H100), so that the device waits before short
kernels, and a kernel takes 1.7 us longer after that. A plain run waits before other kernels, and
`cost/launching.py` has the time of its launches, so kernels are learned without what waiting adds.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tvm_stretch.measuring.samples import Sample

PROBE = (
    Sample("conv", 1024, (28, 28), 1024),
    *[Sample("conv", 64, (28, 28), 64, epilogue="relu")] * 9,
)
"""A long kernel, during which some launches of the short ones come, while others come too late."""

_WAITED = 2400
"""Nanoseconds between two kernels from which on the device waited for the launch: 1,200 lie between
two that do not wait on an H200, and up to twice that changes nothing."""


class _Start(NamedTuple):
    """How a launch began."""

    node: int
    nanoseconds: int
    waited: bool


def _starts(trace: Mapping[str, Any]) -> list[_Start]:
    """All launches in the order in which they ran; the first one waited."""
    every = itertools.chain.from_iterable(trace["regions"])
    spans = sorted((s for s in every if s["kind"] == "kernel"), key=lambda s: s["start"])
    ends = [-_WAITED, *(span["end"] for span in spans)]
    return [
        _Start(span["id"], span["end"] - span["start"], span["start"] - end >= _WAITED)
        for span, end in zip(spans, ends, strict=False)
    ]


def waiting_in(traces: Iterable[Mapping[str, Any]], kernels: Sequence[str]) -> int:
    """What a kernel takes longer if the device waited for it: 0 if none ran both ways.

    Args:
        traces: traced runs of one model.
        kernels: the kernel of each node.
    """
    found: dict[tuple[str, bool], list[int]] = {}
    for trace in traces:
        for start in _starts(trace):
            found.setdefault((kernels[start.node], start.waited), []).append(start.nanoseconds)
    longer = [
        statistics.median(times) - statistics.median(found[name, False])
        for (name, waited), times in found.items()
        if waited and (name, False) in found
    ]
    return max(0, round(statistics.median(longer))) if longer else 0


def busy_times(trace: Mapping[str, Any], count: int, waiting: int) -> list[int]:
    """Nanoseconds of each of ``count`` nodes, each launch without what waiting adds to it."""
    times = [0] * count
    for start in _starts(trace):
        own = start.nanoseconds
        times[start.node] += max(own // 2, own - waiting) if start.waited else own
    return times
