"""The rules by which NN-Stretch (section 4) prunes new architectures.

latency     equation 4   a meeting point costs at most α of its segment
            equation 5   no branch takes longer than β times the fastest processor for the segment
            equation 6   multiply-adds of the branches in proportion to the processors' speeds
            shape        who loses more by narrow layers than others gets no slimmer branch
accuracy    structure    ends of stages are meeting points, or at least n points remain
            capacity     a segment keeps its multiply-adds and parameters
            bounds       no branch is less than a share of the depth, or of the width

The paper's own designs contradict some rules (α, and the tolerance of equation 6), so users may set
all numbers, and α has a number of its own for ends of stages: by default none is too expensive.
The shapes that processors prefer (width for GPUs and DSPs, depth for CPUs) are measured: by the
cost models, for each segment (`tables.gain_of_width`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from math import comb, inf, log10

import numpy as np
from numpy.typing import NDArray

from tvm_stretch.base.errors import InputError
from tvm_stretch.lab.stretching.tables import Array
from tvm_stretch.network.properties.meeting_points import DEFAULT_ALPHA

Mask = NDArray[np.bool_]

_RATIOS = 10
"""The number of ratios in table 2, 0.1 to 1.0."""


@dataclass(frozen=True)
class Rules:
    """The numbers of the rules.

    Attributes:
        alpha: the most that a meeting within a stage may cost, as a share of its segment's time.
        beta: the factor of equation 5.
        tolerance: how far a branch's share of the multiply-adds may be from its processor's share
            of the speed.
        capacity: least multiply-adds and parameters of a stretched segment, as a share of the
            original's.
        least_ratio: least depth and width of a branch, as a share of the original's.
        stage_alpha: the most that a meeting at the end of a stage may cost; stages that are too
            short for it get no branches.
        shape: how much more than another processor one may lose by narrow layers, as a share of
            its time, before its branch has to be the wider of the two for its depth.
        meetings: the fewest meeting points of a design, so that segments may join stages; by
            default the ends of all stages are meeting points. `Stretching.least_meetings` tells
            how few a target of accuracy allows.

    Examples:
        >>> rules = ts.stretching.Rules(capacity=0.8)
        >>> len(ts.stretch("resnet18.onnx", device="snapdragon-855", rules=rules).candidates) > 0
        True
    """

    alpha: float = DEFAULT_ALPHA
    beta: float = 1.1
    tolerance: float = 0.15
    capacity: float = 0.9
    least_ratio: float = 0.3
    stage_alpha: float = inf
    shape: float = 0.05
    meetings: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "meetings":
                continue
            most = 1.0 if field.name in ("least_ratio", "tolerance") else float("inf")
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not 0 <= value <= most
            ):
                raise InputError(
                    f"expected a number from 0 to {most:g} for {field.name}, got {value!r}; "
                    "ts.stretching.Rules() has the numbers of the paper"
                )
        if self.alpha == 0:
            raise InputError("expected a positive number for alpha, got 0; the paper uses 0.1")
        if self.meetings is not None and (type(self.meetings) is not int or self.meetings < 1):
            raise InputError(
                f"expected a whole number from 1 for meetings, got {self.meetings!r}; leave it out "
                "to keep the ends of stages"
            )


@dataclass(frozen=True)
class Judged:
    """Which combinations of branches of one segment each rule keeps."""

    keeps: dict[str, Mask]  # a mask of combinations, by the rule's name

    @property
    def kept(self) -> Mask:
        """The combinations that all rules keep."""
        every = list(self.keeps.values())
        return np.logical_and.reduce(every)

    def left(self) -> dict[str, int]:
        """The number of combinations that are left after each rule, applied in order."""
        masks = accumulate(self.keeps.values(), np.logical_and)
        return {name: int(mask.sum()) for name, mask in zip(self.keeps, masks, strict=True)}


def judge(
    branches: Sequence[Sequence[Array]],
    originals: Sequence[Array],
    rules: Rules,
    meeting: float,
    shapes: Sequence[tuple[float, Array]] = (),
) -> Judged:
    """Apply the rules to combinations of branches.

    Args:
        branches: for each processor nanoseconds, multiply-adds and parameters, as arrays that
            broadcast against each other.
        originals: the same three numbers of the whole segment, on each processor.
        meeting: nanoseconds of the meeting at its end.
        shapes: for each processor `tables.gain_of_width`, and depth by width of its branches, as
            shares of the segment's.
    """
    ns, work, size = zip(*branches, strict=True)
    alone = min(float(original[0]) for original in originals)
    speeds = [float(original[1] / original[0]) for original in originals]
    total_work, total_size = sum(work), sum(size)
    straggling = np.logical_and.reduce([t <= rules.beta * alone for t in np.broadcast_arrays(*ns)])
    aligned = [
        np.abs(own / total_work - speed / sum(speeds)) <= rules.tolerance
        if any(speeds)
        else np.full(total_work.shape, fill_value=True)  # a segment that multiplies nothing
        for own, speed in zip(work, speeds, strict=True)
    ]
    enough = rules.capacity * originals[0]
    capacity = (total_work >= enough[1]) & (total_size >= enough[2])
    ending = {}
    if rules.stage_alpha < inf:
        told = f"equation 4 (a meeting costs at most {rules.stage_alpha:g} of its stage)"
        ending[told] = np.full(total_work.shape, meeting <= rules.stage_alpha * alone)
    return Judged(
        ending
        | {
            f"equation 5 (no branch takes longer than {rules.beta:g} of the segment)": straggling,
            f"equation 6 (work as processors are fast, ±{rules.tolerance:g})": (
                np.logical_and.reduce(np.broadcast_arrays(*aligned))
            ),
            f"capacity (at least {rules.capacity:.0%} of the segment)": capacity,
        }
        | _shaped(shapes, rules, total_work.shape)
    )


def _shaped(
    shapes: Sequence[tuple[float, Array]], rules: Rules, size: tuple[int, ...]
) -> dict[str, Mask]:
    """Where no processor that needs width more than another one has the slimmer branch."""
    pairs = [
        slim <= other
        for gain, slim in shapes
        for least, other in shapes
        if gain > least * (1 + rules.shape)
    ]
    if not pairs:
        return {}
    told = f"shape (the branch is wide where width gains {rules.shape:.0%} more)"
    return {told: np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*pairs)), size)}


def space_of_table_2(blocks: int, processors: int) -> float:
    """The decimal logarithm of the number of designs, before any rule.

    Every block may end a segment. A segment has between one branch and a branch for each processor,
    and each branch one of ten depths and ten widths (NN-Stretch, table 2).
    """
    choices = sum(_RATIOS ** (2 * branches) for branches in range(1, processors + 1))
    return log10(sum(comb(blocks - 1, m - 1) * choices**m for m in range(1, blocks + 1)))
