"""The decision for a network: its plan, the reason, and results of the search about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm

from tvm_stretch.base.progress import say
from tvm_stretch.make.pipeline import Job, build_parts
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
    job: Job  # the network and its plan
    reason: str = ""  # for people
    # the candidates among which the plan was; None for those of the plan
    considered: Sequence[Considered] | None = None
    trial: Model | None = None  # the plan's model that was measured, if one was
    # all plans of a model that can switch between several, by name, this one first
    plans: Mapping[str, Plan] = field(default_factory=dict)

    @property
    def plan(self) -> Plan | None:
        """The plan; None for the first processor that supports everything."""
        return self.job.requested

    def noted(self, *notes: str) -> Decision:
        """The decision with more notes."""
        return replace(self, reason="; ".join(filter(None, (self.reason, *notes))))

    def build(self, spare: bool, streams: bool, network: str) -> Model:
        """The model: the one that was measured, if it needs nothing more.

        Args:
            streams: whether frames of videos may reuse what did not change, on the CPU alone.
            spare: whether the CPU gets kernels for all operators. Models are measured without,
                because spare kernels would hide failures.
            network: what it is called, for people.
        """
        trial, plans = self.trial, self.plans
        is_complete = (
            not plans and not streams and not (spare and trial and len(trial.graph.processors) > 1)
        )
        if trial is not None and trial.parts is not None and is_complete:
            parts = trial.parts.explained(self.reason, self.considered, network=network)
            return Model(trial.module, parts=parts)
        job = replace(self.job, spare=spare)
        jobs = [job.by(plan) for plan in plans.values()] or [job]
        parts = build_parts(*jobs, streams=streams)
        if plans:
            usual = [Usual()] * len(plans)
            if len(plans) > 1 and self.site.take is not None:
                say(f"measuring {len(plans)} plans in turns")
                usual = usual_runs(Model.from_parts(parts), self.site.take)
            parts = parts.named(
                list(plans), [one.seconds for one in usual], [one.work_ns for one in usual]
            )
        return Model.from_parts(parts.explained(self.reason, self.considered, network=network))


def decided(
    site: Site,
    job: Job,  # any of the network
    candidate: Candidate,  # of the search
    reason: str,
    considered: Sequence[Considered],
    trial: Model | None = None,
) -> Decision:
    """The decision for a candidate of the search."""
    table = tuple(considered)
    plan = candidate.plan if trial is None else trial.plan
    known = (candidate.branched, candidate.lowered) if trial is None else ()
    plan = replace(plan, reason=reason, considered=table)
    return Decision(site, job.by(plan, *known), reason, table, trial)
