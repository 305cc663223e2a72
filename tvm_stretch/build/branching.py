"""Carry out the branching choices of a plan, and remember which processor each part belongs to.

plan                                    operators that are parts      processor
shares {"conv2d": (40, 24)}             conv2d.p0, relu.p0            0
                                        conv2d.p1, relu.p1            1
splits [RowSplit("x", "y", (3, 0, 2))]  conv2d1.r0, add.r0            0
                                        conv2d1.r1, add.r1            2

What puts parts together (concat, sums) is nobody's part: the plan says where it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm

from tvm_stretch.errors import InputError, PlanError
from tvm_stretch.ir.calls import Calls
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.passes.share_winograd import share_winograd
from tvm_stretch.passes.split_outputs import split_outputs
from tvm_stretch.plan.splits import Split, taking_part
from tvm_stretch.targets.processor import Processor

_PART = re.compile(r"\.p(\d+)$")


@dataclass(frozen=True)
class Branching:
    """A network with its parts.

    Attributes:
        mod: canonical Relax after the passes.
        owners: the processor, by its place, of every operator that is a part.
    """

    mod: tvm.IRModule
    owners: Mapping[str, int]


def branch(
    mod: tvm.IRModule,
    shares: Mapping[str, Sequence[int]],
    splits: Sequence[Split],
    processors: Sequence[Processor],
) -> Branching:
    """Apply the passes that the choices name.

    Args:
        mod: the canonical module.
        shares: as in a plan, one number for each of ``processors``.
        splits: as in a plan, one ratio for each of ``processors``.
        processors: all of the model's, the CPU first.

    Raises:
        PlanError: an operator or a segment is unknown, or the numbers do not fit it.
        UnsupportedError: a segment that cannot be split that way.
    """
    if not shares and not splits:
        return Branching(mod, {})
    known = set(Calls(mod["main"]).calls)
    reduced = [taking_part(split) for split in splits]
    try:
        mod, segments = branch_segments(mod, [split for split, _ in reduced])
        inside = {name for segment in segments for name in segment.removed}.intersection(shares)
        if inside:
            raise PlanError(
                f"expected shares of operators outside of the plan's splits, got {sorted(inside)}; "
                "remove the shares or the splits"
            )
        mod = share_winograd(split_outputs(mod, shares), [p.machine for p in processors])
    except InputError as error:
        raise PlanError(str(error)) from error
    owners = {
        name: owner
        for segment, (_, places) in zip(segments, reduced, strict=True)
        for names, owner in zip(segment.branches, places, strict=True)
        for name in names
    }
    for name in Calls(mod["main"]).calls:
        part = None if name in known else _PART.search(name)
        if part is not None:
            owners[name] = int(part.group(1))
    return Branching(mod, owners)
