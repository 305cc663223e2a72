"""Apply the shares and splits of a plan, and record which processor computes each part.

plan                                    operators that are parts      processor
shares {"conv2d": (40, 24)}             conv2d.p0, relu.p0            0
                                        conv2d.p1, relu.p1            1
splits [RowSplit("x", "y", (3, 0, 2))]  conv2d1.r0, add.r0            0
                                        conv2d1.r1, add.r1            2

Operators that join parts (concat, sums) belong to no part: the plan says where they run. The table
`PARTS` of ``main`` also records the origin of each new operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import tvm

from tvm_stretch.base.errors import InputError, PlanError
from tvm_stretch.network.attributes import PARTS
from tvm_stretch.network.emitting.branches import Replacement
from tvm_stretch.network.provenance import Provenance, table_of, with_table
from tvm_stretch.passes.branch_segments import branch_segments
from tvm_stretch.passes.split_outputs import split_outputs
from tvm_stretch.plan.splits import Split, taking_part


@dataclass(frozen=True)
class Branching:
    """A network with its parts."""

    mod: tvm.IRModule  # canonical Relax after the passes
    # for every new operator, its original operator, part and owner
    parts: Mapping[str, Provenance]

    @cached_property
    def owners(self) -> dict[str, int]:
        """The index of the processor of every operator that is a part."""
        return {n: part.owner for n, part in self.parts.items() if part.owner is not None}


def branch(
    mod: tvm.IRModule,  # the canonical module
    shares: Mapping[str, Sequence[int]],  # as in a plan, one number for each of ``processors``
    splits: Sequence[Split],  # as in a plan, one ratio for each of ``processors``
) -> Branching:
    """Apply the passes for shares and splits.

    Raises:
        PlanError: an operator or a segment is unknown, or the numbers do not fit it.
        UnsupportedError: a segment cannot be split that way.
    """
    if not shares and not splits:
        return Branching(mod, {})
    reduced = [taking_part(split) for split in splits]
    try:
        mod, segments = branch_segments(mod, [split for split, _ in reduced])
        inside = {name for segment in segments for name in segment.removed}.intersection(shares)
        if inside:
            raise PlanError(
                f"expected shares of operators outside of the plan's splits, got {sorted(inside)}; "
                "remove the shares or the splits"
            )
        mod = split_outputs(mod, shares)
    except InputError as error:
        raise PlanError(str(error)) from error
    inner: dict[str, Provenance] = {}
    for segment, (_, places) in zip(segments, reduced, strict=True):
        inner.update(_parts_of(segment, places))
    parts = table_of(mod["main"], PARTS) | inner
    parts = {name: replace(part, operators=_origin(part, parts)) for name, part in parts.items()}
    mod = mod.clone()
    mod["main"] = with_table(mod["main"], PARTS, parts)
    return Branching(mod, parts)


def _parts_of(segment: Replacement, places: Sequence[int]) -> dict[str, Provenance]:
    """The origin of each new operator of a split segment."""
    parts = {name: Provenance((origin,)) for name, origin in segment.origins.items()}
    for part, (names, owner) in enumerate(zip(segment.branches, places, strict=True)):
        for name in names:
            parts[name] = Provenance((segment.origins[name],), part=part, owner=owner)
    return parts


def _origin(part: Provenance, parts: Mapping[str, Provenance]) -> tuple[str, ...]:
    """The canonical operator of a part, which may itself be a part of a part."""
    while part.operators[0] in parts:
        part = parts[part.operators[0]]
    return part.operators
