"""The rules of NN-Stretch (section 4) for new architectures, and how many designs each leaves.

latency     equation 4   a meeting point within a stage is worth what a meeting costs (α)
            equation 5   no branch takes longer than β times the fastest processor for the segment
            equation 6   multiply-adds of the branches in proportion to the processors' speeds
accuracy    structure    ends of stages are meeting points
            capacity     a segment keeps its multiply-adds and parameters
            bounds       no branch is less than a share of the depth, or of the width

The paper's own designs contradict some of them (α, and the tolerance of equation 6), so that all
numbers are the user's. Preferences, depth for wide processors, only decide between equals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from math import comb, log10

import numpy as np
from numpy.typing import NDArray

from tvm_stretch.errors import InputError
from tvm_stretch.passes.detect_meeting_points import DEFAULT_ALPHA
from tvm_stretch.stretching.tables import Array

Mask = NDArray[np.bool_]

_RATIOS = 10
"""0.1 to 1.0 (table 2)."""

PREFERENCE = 0.01
"""How much of its time a branch may lose for the shape that its processor prefers."""


@dataclass(frozen=True)
class Rules:
    """The numbers of the rules.

    Attributes:
        alpha: what a meeting within a stage may cost, per computation of its segment.
        beta: see equation 5.
        tolerance: how far a branch's share of the multiply-adds may be from its processor's share
            of the speed.
        capacity: least multiply-adds and parameters of a stretched segment, of the original's.
        least_ratio: least depth and width of a branch, of the original's.
    """

    alpha: float = DEFAULT_ALPHA
    beta: float = 1.1
    tolerance: float = 0.15
    capacity: float = 0.9
    least_ratio: float = 0.3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            most = 1.0 if field.name in ("least_ratio", "tolerance") else float("inf")
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value <= most
            ):
                raise InputError(
                    f"expected a number from 0 to {most:g} for {field.name}, got {value!r}; see "
                    "tvm_stretch/stretching/rules.py"
                )
        if self.alpha == 0:
            raise InputError("expected a positive number for alpha, got 0; the paper uses 0.1")


@dataclass(frozen=True)
class Judged:
    """Combinations of branches of one segment: which of them each rule leaves.

    Attributes:
        keeps: by name of the rule.
    """

    keeps: dict[str, Mask]

    @property
    def kept(self) -> Mask:
        """What all of them leave."""
        every = list(self.keeps.values())
        return np.logical_and.reduce(every)

    def left(self) -> dict[str, int]:
        """How many combinations are left after each rule, one after the other."""
        masks = accumulate(self.keeps.values(), np.logical_and)
        return {name: int(mask.sum()) for name, mask in zip(self.keeps, masks, strict=True)}


def judge(branches: Sequence[Sequence[Array]], originals: Sequence[Array], rules: Rules) -> Judged:
    """Apply the rules to combinations of branches.

    Args:
        branches: of each processor: nanoseconds, multiply-adds and parameters, in arrays that
            broadcast against each other.
        originals: the same of the whole segment, on each processor.
        rules: their numbers.
    """
    ns, work, size = zip(*branches, strict=True)
    alone = min(float(original[0]) for original in originals)
    speeds = [float(original[1] / original[0]) for original in originals]
    total_work, total_size = sum(work), sum(size)
    straggling = np.logical_and.reduce([t <= rules.beta * alone for t in np.broadcast_arrays(*ns)])
    aligned = [
        np.abs(own / total_work - speed / sum(speeds)) <= rules.tolerance
        for own, speed in zip(work, speeds, strict=True)
    ]
    enough = rules.capacity * originals[0]
    capacity = (total_work >= enough[1]) & (total_size >= enough[2])
    return Judged(
        {
            f"equation 5 (no branch takes longer than {rules.beta:g} of the segment)": straggling,
            f"equation 6 (work as processors are fast, ±{rules.tolerance:g})": (
                np.logical_and.reduce(np.broadcast_arrays(*aligned))
            ),
            f"capacity (at least {rules.capacity:.0%} of the segment)": capacity,
        }
    )


def space_of_table_2(blocks: int, processors: int) -> float:
    """The decimal logarithm of the number of designs, before any rule.

    Every block may end a segment, every segment has one to as many branches as there are
    processors, each with one of ten depths and of ten widths (NN-Stretch, table 2).
    """
    each = sum(_RATIOS ** (2 * branches) for branches in range(1, processors + 1))
    return log10(sum(comb(blocks - 1, m - 1) * each**m for m in range(1, blocks + 1)))
