"""Robust times of kernels on a machine that other processes use, too.

A reference kernel runs before and after every traced run, twice, so that the second time finds its
data in the caches. A run is dropped if the reference kernel beside it was slower than its best, and
measuring goes on until enough undisturbed runs are there. The remaining runs may still contain
interrupted kernels, so a kernel's time is the lower quartile of its runs.

Runs of a GPU are compared with the fastest of them instead: the reference kernel, which is short
beside its launch, takes 20 µs in one run and 23 in the next on an idle H200. The host's core
decides what a launch takes, because virtual machines share cores: a network of 30 kernels took
180 µs from six of 16 cores and up to 254 from the others, whichever of its models was loaded.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tvm_stretch.base.progress import step

_TOLERANCE = 1.10  # the reference kernel's own jitter
_WARM_UP = 2
_TRIES = 3  # runs from each core
_RECENT = 5.0  # seconds


@dataclass(frozen=True)
class Timing:
    """The time of one node, or of a whole run."""

    nanoseconds: int  # lower quartile
    spread: float  # distance of the quartiles relative to it
    runs: int  # the number of runs that it is taken from
    quiet: bool  # False if too few runs were undisturbed, so disturbed ones are included
    # the reference kernel's time beside them, which measures the machine's speed
    reference_ns: int


class _Seen(NamedTuple):
    """A run."""

    reference_ns: int  # the time of the reference kernel beside it
    times: list[int]


class Stopwatch:
    """Times runs beside a reference kernel.

    Args:
        reference: runs the reference kernel and returns its nanoseconds.
    """

    def __init__(self, reference: Callable[[], int]) -> None:
        self._run_reference = reference
        self.fastest_ns = min(self._reference() for _ in range(20))

    def _reference(self) -> int:
        self._run_reference()
        return self._run_reference()

    @property
    def slowdown(self) -> float:
        """The reference kernel's time now relative to its best; heat or other load raises it."""
        return min(self._reference() for _ in range(3)) / max(1, self.fastest_ns)

    def watch(
        self,
        # runs once and returns nanoseconds, for example of every node
        run: Callable[[], list[int]],
        runs: int = 15,  # undisturbed runs to wait for
        seconds: float = 4.0,  # give up after that time and take the least disturbed runs
        prepare: Callable[[], None] = lambda: None,  # called before each run
    ) -> list[Timing]:
        """Run until ``runs`` undisturbed ones are there, at most ``seconds``."""
        for _ in range(_WARM_UP):
            step()
            run()
        seen: list[_Seen] = []
        end = time.monotonic() + seconds
        before = self._reference()
        while True:
            step()
            prepare()
            times = run()
            after = self._reference()
            seen.append(_Seen(max(before, after), times))
            self.fastest_ns = min(self.fastest_ns, before, after)
            before = after
            limit = self._best(seen) * _TOLERANCE
            calm = [item for item in seen if self._sign(item) <= limit]
            if len(calm) >= runs:
                return _timings(calm, True)
            if time.monotonic() > end and len(seen) >= 5:
                break
        seen.sort(key=self._sign)
        return _timings(seen[: max(5, len(calm))], len(calm) >= runs // 2)

    def _sign(self, seen: _Seen) -> int:
        """A time that exceeds `_best` if the run was disturbed."""
        return seen.reference_ns

    def _best(self, seen: Sequence[_Seen]) -> int:
        return self.fastest_ns


class GpuStopwatch(Stopwatch):
    """Times runs of a GPU, each beside the others; see the module docstring."""

    def _sign(self, seen: _Seen) -> int:
        return sum(seen.times)

    def _best(self, seen: Sequence[_Seen]) -> int:
        return min(map(self._sign, seen))


class QuickestCore:
    """Finds the core from which a run takes least, which other virtual machines change."""

    def __init__(self) -> None:
        self._core, self._until = -1, -math.inf

    @contextlib.contextmanager
    def held(self, run: Callable[[], int], anew: bool = True) -> Iterator[None]:
        """Context in which this thread stays on the core; unless ``anew``, on a recent one."""
        allowed = os.sched_getaffinity(0)
        run()

        def least(core: int) -> int:
            step()
            os.sched_setaffinity(0, {core})
            return min(run() for _ in range(_TRIES))

        try:
            if anew or time.monotonic() > self._until or self._core not in allowed:
                self._core = min(sorted(allowed), key=least)
                self._until = time.monotonic() + _RECENT
            os.sched_setaffinity(0, {self._core})
            yield
        finally:
            os.sched_setaffinity(0, allowed)


class PacketCounter:
    """A `Stopwatch` for packet counts, which are exact after one run."""

    fastest_ns = 0
    slowdown = 1.0

    def watch(
        self,
        run: Callable[[], list[int]],
        runs: int = 1,
        seconds: float = 0.0,
        prepare: Callable[[], None] = lambda: None,
    ) -> list[Timing]:
        """The counts of one run; other arguments of `Stopwatch.watch` are ignored."""
        step()
        return [Timing(max(1, nanoseconds), 0.0, 1, True, 0) for nanoseconds in run()]


_CACHES = np.zeros(12_000_000, np.float32)


def empty_caches() -> None:
    """Read more than the caches of a small machine hold."""
    _CACHES.max()


def _timings(seen: Sequence[_Seen], quiet: bool) -> list[Timing]:
    """A timing for each value of a run."""
    reference = round(statistics.median(item.reference_ns for item in seen))
    columns = zip(*(item.times for item in seen), strict=True)
    return [Timing(*quartile(column), len(seen), quiet, reference) for column in columns]


def quartile(samples: Sequence[int]) -> tuple[int, float]:
    """The lower quartile of times, and the distance of the quartiles relative to it."""
    if len(samples) < 2:
        return samples[0], 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return max(1, round(low)), (high - low) / max(low, 1.0)


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
