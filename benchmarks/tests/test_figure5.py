"""Figure 5: what counts as a dropped picture, and that the app draws what it should."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.papers.busy import busy, share_of_core
from benchmarks.papers.drawing_app import TICK_S, Window, calibrated, check, drawn, pixels_of
from benchmarks.papers.figure5 import SHARES, WAYS


class Clock:
    """A clock that pictures and pauses move on."""

    def __init__(self, pictures: Iterator[float]) -> None:
        self.now, self.pictures = 100.0, pictures
        self.begun: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def draw(self, tick: int) -> float:
        self.begun.append(tick)
        taken = next(self.pictures) / 1e3
        self.now += taken
        return taken


@pytest.mark.parametrize(
    ("pictures", "dropped", "begun"),
    [
        ([5.0] * 6, 0, [0, 1, 2, 3, 4, 5]),
        ([20.0] * 3, 3, [0, 2, 4]),  # every picture misses one tick
        ([5.0, 40.0, 5.0, 5.0], 2, [0, 1, 4, 5]),  # one picture misses two
        ([5.0] * 5 + [20.0], 1, [0, 1, 2, 3, 4, 5]),  # the last is late
        ([200.0], 6, [0]),
    ],
)
def test_ticks_without_a_new_picture_are_dropped(
    pictures: list[float], dropped: int, begun: list[int]
) -> None:
    clock = Clock(iter(pictures))
    found = drawn(clock.draw, 6, lambda: clock.now, clock.sleep)
    assert (found.ticks, found.dropped, clock.begun) == (6, dropped, begun)
    assert found.largest_ms == pytest.approx(max(pictures))
    assert found.percent == pytest.approx(100 * dropped / 6)


def test_a_picture_that_is_complete_within_its_tick_waits_for_the_next() -> None:
    clock = Clock(iter([16.0] * 60))
    assert drawn(clock.draw, 60, lambda: clock.now, clock.sleep).dropped == 0
    assert clock.now == pytest.approx(100 + 59 * TICK_S + 0.016)


def test_the_kernel_draws_what_numpy_computes() -> None:
    try:
        window = Window()
    except OSError as error:
        pytest.skip(str(error))
    window.draw(7, 5)
    np.testing.assert_array_equal(
        window.picture, pixels_of(np.arange(len(window.picture), dtype=np.uint32), 7, 5)
    )
    seventh = window.sampled()
    window.draw(8, 5)
    check({7: seventh, 8: window.sampled()}, 5)
    seventh[0] += 1
    with pytest.raises(AssertionError, match="picture 7 is wrong"):
        check({8: window.sampled(), 7: seventh}, 5)
    assert 1 <= calibrated(window, 1e-6) < calibrated(window, 1e6)


def test_ways_have_names_of_their_own() -> None:
    names = [way.name for way in WAYS]
    assert len({*names}) == len(names) == 1 + 2 * (len(SHARES) + 1)
    assert "opencl alone, at most 0.25 of OpenCL" in names and "both, low priority" in names


def test_a_core_is_busy_while_a_loop_runs_on_it() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        with busy(share_of_core) as found:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                pass
    finally:
        os.sched_setaffinity(0, cores)
    assert found[0] > 80
