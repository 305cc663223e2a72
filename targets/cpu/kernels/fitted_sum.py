"""Compute sums of two 8-bit numbers in integers so that they equal float32's, bit by bit.

    round(float(a) * 0.37 + (float(b) * 0.0131 - 9.25))   ->   a * w + b * v + o >> bits

Factors of 21 bits have errors of up to 255 * 2**-22 in a product, so one sum in ten thousand is
rounded wrongly, while float32 with its own roundings fails once in a million. But there are only
65,536 pairs of numbers, and few sums come near to a half: among the integers next to `factor *
2**bits` those are chosen for which every pair gives the result of float32. If the sums themselves
are halves (factors of one), float32 rounds them to even, and no such integers exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

_BESIDE = 4
"""Number of integers that are tried on each side of a factor."""


def fitted_sum(
    numbers: Sequence[np.ndarray],  # all values of each operand
    factors: Sequence[float],  # of the operands
    # the sum in float32, of arrays for both operands
    value: Callable[[Iterator[np.ndarray]], np.ndarray],
    limits: tuple[int, int],  # the least and the greatest result
    bits: int,  # of the fraction
) -> tuple[list[int], int] | None:
    """The integer factors and the offset for which all sums equal float32's; None without any."""
    a, b = (grid.ravel() for grid in np.meshgrid(*numbers, indexing="ij"))
    low, high = limits
    results = np.rint(np.clip(value(iter((a, b))), low, high)).astype("int64")
    nearest = [round(factor * 2**bits) for factor in factors]
    # the offset must lift each sum to its result, but not to the next one
    least = (results << bits) - a * nearest[0] - b * nearest[1]
    most = least + (1 << bits) - 1
    up, down = results > low, results < high
    # other sums are too far from a half for any of the steps below
    room = 2 * _BESIDE * int(abs(a).max() + abs(b).max())
    up &= least > least[up].max(initial=-(2**62)) - room
    down &= most < most[down].min(initial=2**62) + room
    steps = range(-_BESIDE, _BESIDE + 1)
    for step in sorted(itertools.product(steps, steps), key=lambda s: max(map(abs, s))):
        moved = a * step[0] + b * step[1]
        first = int((least - moved)[up].max(initial=-(2**62)))
        last = int((most - moved)[down].min(initial=2**62))
        if first <= last:
            wholes = [n + s for n, s in zip(nearest, step, strict=True)]
            return wholes, (max(first, -(2**30)) + min(last, 2**30)) // 2
    return None
