"""The rules of NN-Stretch (section 4.2) that drop options which cannot win.

equation 4    cost-amortized meeting points     a meeting costs at most α of the work before it
equation 5    no straggler branches             no branch takes longer than β of the whole segment
equation 6    FLOPs alignment                   branches as large as their processors are fast

The paper's branches are new layers, which are trained. Ours compute the same numbers as before, so
the paper's rules for accuracy (structure, capacity) do not apply.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm_stretch.network.properties.meeting_points import DEFAULT_ALPHA

ALPHAS = (0.5, DEFAULT_ALPHA)
"""Half, beyond which a meeting costs more than two processors can save; and the paper's α, with
which branches are longer and meet less often."""

BETA = 1.0
"""The paper's 1.1 leaves room for what training may change; our branches must not lose."""


def amortised(communication_ns: float, computation_ns: float, alpha: float = ALPHAS[0]) -> bool:
    """Whether the work before a meeting is worth it (equation 4, cost-amortized)."""
    return communication_ns <= alpha * computation_ns


def straggles(slowest_ns: float, alone_ns: float, beta: float = BETA) -> bool:
    """Whether a branch takes longer than the fastest processor for the segment (equation 5)."""
    return slowest_ns > beta * alone_ns


def apportion(total: int, speeds: Mapping[int, float]) -> dict[int, int]:
    """Whole numbers of at least 1 in proportion to the processors' speeds (equation 6).

    The total must be at least the number of processors.

    >>> apportion(16, {0: 1.0, 1: 3.0})
    {0: 4, 1: 12}
    """
    whole = sum(speeds.values())
    exact = {place: total * speed / whole for place, speed in speeds.items()}
    found = {place: max(1, int(share)) for place, share in exact.items()}
    missing = total - sum(found.values())
    for _ in range(abs(missing)):
        by_gap = {place: exact[place] - found[place] for place in found}
        if missing > 0:
            found[max(by_gap, key=by_gap.__getitem__)] += 1
        else:
            shrinkable = [place for place in found if found[place] > 1]
            found[min(shrinkable, key=by_gap.__getitem__)] -= 1
    return found
