"""The decision for a network: its plan, the reason, and results of the search about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm

from tvm_stretch.base.progress import say
from tvm_stretch.make.branching import Branching
from tvm_stretch.make.pipeline import Observer, build_parts
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search.contest import Usual, usual_runs
from tvm_stretch.plan.search.realise import Candidate
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.model import Model

Build = Callable[[tvm.IRModule, Candidate], Model]
"""Makes a model of a network and a plan for it, to be measured."""


@dataclass(frozen=True)
class Decision:
    """The plan of a network."""

    site: Site  # what the model is for
    plan: Plan | None = None  # None for the first processor that supports everything
    reason: str = ""  # for people
    # the candidates among which the plan was; None for those of the plan
    considered: Sequence[Considered] | None = None
    branched: Branching | None = None  # the network with the plan's parts, if it is known
    lowered: tvm.IRModule | None = None  # the same as kernel-level Relax, if it is known
    trial: Model | None = None  # the plan's model that was measured, if one was
    network: str = ""  # what the network is called, for people
    # all plans of a model that can switch between several, by name, this one first
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def noted(self, *notes: str) -> Decision:
        """The decision with more notes."""
        return replace(self, reason="; ".join(filter(None, (self.reason, *notes))))

    def build(
        self, mod: tvm.IRModule, spare: bool, observer: Observer, streams: bool = False
    ) -> Model:
        """The model: the one that was measured, if it needs nothing more.

        Args:
            streams: whether frames of videos may reuse what did not change, on the CPU alone.
            spare: whether the CPU gets kernels for all operators. Models are measured without,
                because spare kernels would hide failures.
        """
        trial, site, plans = self.trial, self.site, self.plans
        is_complete = (
            not plans and not streams and not (spare and trial and len(trial.graph.processors) > 1)
        )
        if trial is not None and trial.parts is not None and is_complete:
            parts = trial.parts.explained(self.reason, self.considered, network=self.network)
            return Model(trial.module, parts=parts)
        first, *others = plans.values() or (self.plan,)
        known = (self.branched, self.lowered) if trial is None else (None, None)
        parts = build_parts(
            mod, first, site.processors, site.placeable, observer, *known, spare, others, streams
        )
        if plans:
            usual = [Usual()] * len(plans)
            if others and site.take is not None:
                say(f"measuring {len(plans)} plans in turns")
                usual = usual_runs(Model.from_parts(parts), site.take)
            parts = parts.named(
                list(plans), [one.seconds for one in usual], [one.work_ns for one in usual]
            )
        return Model.from_parts(parts.explained(self.reason, self.considered, network=self.network))


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
