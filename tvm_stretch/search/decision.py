"""The decision for a network: its plan, why, and what the search found out about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm

from tvm_stretch.build.branching import Branching
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan
from tvm_stretch.runtime.model import Model
from tvm_stretch.search.realise import Candidate
from tvm_stretch.search.site import Site

Build = Callable[[tvm.IRModule, Candidate], Model]
"""Makes a model of a network and a plan for it, to be measured."""


@dataclass(frozen=True)
class Decision:
    """The plan of a network.

    Attributes:
        site: what the model is for.
        plan: None for the first processor that supports everything.
        reason: for people.
        considered: the candidates among which the plan was; None for those of the plan.
        branched: the network with the plan's parts, if it is known.
        lowered: the same as kernel-level Relax, if it is known.
        trial: the plan's model that was measured, if one was.
        plans: all plans of a model that can switch between several, by name, this one first.
    """

    site: Site
    plan: Plan | None = None
    reason: str = ""
    considered: Sequence[Considered] | None = None
    branched: Branching | None = None
    lowered: tvm.IRModule | None = None
    trial: Model | None = None
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def noted(self, *notes: str) -> Decision:
        """The same, for more reasons."""
        return replace(self, reason="; ".join(filter(None, (self.reason, *notes))))


def decided(
    site: Site,
    candidate: Candidate,
    reason: str,
    considered: Sequence[Considered],
    trial: Model | None = None,
) -> Decision:
    """The decision for a candidate of the search."""
    table = tuple(considered)
    plan = candidate.plan if trial is None else trial.plan
    plan = replace(plan, reason=reason, considered=table)
    lowered = None if candidate.level is None else candidate.level.mod
    return Decision(site, plan, reason, table, candidate.branched, lowered, trial)
