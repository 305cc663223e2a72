"""The decision for a network: its plan, the reason, and results of the search about it.

A model may change to other plans while it runs, such as one without a processor that is busy then:

    fastest            cpu + opencl + hexagon
    without cpu              opencl + hexagon
    without opencl     cpu          + hexagon
    without hexagon    cpu + opencl

If one processor is left, it computes the parts of the fastest plan one after the other. It then
reads the weights that are packed for these parts, so all plans together need hardly more memory
than one. If several are left, a search finds their best plan. The latency of each plan is measured
where the model runs, in turns, because later runs are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import tvm

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.progress import say
from tvm_stretch.make.pipeline import Job, build_parts
from tvm_stretch.make.placement import find_refusals
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan, PlanLike, PlannedRegion
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.contest import Usual, usual_runs
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.limits import Limits
from tvm_stretch.plan.search.objective import LATENCY, Objective
from tvm_stretch.plan.search.realise import Candidate, by_objective
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.model import Model
from tvm_stretch.targets.processor import Processor

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
    objective: Objective = LATENCY  # by which the model changes between them

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
            streams: whether frames of videos may reuse what did not change.
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
        say("building the model")
        job = replace(self.job, spare=spare)
        jobs = [job.by(plan) for plan in plans.values()] or [job]
        parts = build_parts(*jobs, streams=streams)
        if plans:
            usual = [_predicted(plan) for plan in plans.values()]
            if len(plans) > 1 and self.site.take is not None:
                say(f"measuring {len(plans)} plans in turns")
                usual = usual_runs(Model.from_parts(parts), self.site.take, self.objective)
            watts = [one.watts for one in usual]
            by_energy = self.objective.minimise == "energy" and all(watts)
            parts = parts.named(
                list(plans),
                [one.seconds for one in usual],
                [one.work_ns for one in usual],
                watts if by_energy else (),
                round(1e6 * (self.objective.latency_ms or 0)) if by_energy else 0,
            )
        return Model.from_parts(parts.explained(self.reason, self.considered, network=network))


def _predicted(plan: Plan) -> Usual:
    """The power of a plan that nothing measures, as predicted."""
    ns, energy = plan.predicted_ns or 0, plan.predicted_mj or 0.0
    return Usual(watts=1e6 * energy / ns if ns else 0.0)


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
    ready = (candidate.branched, candidate.lowered) if trial is None else ()
    plan = replace(plan, reason=reason, considered=table)
    return Decision(site, job.by(plan, *ready), reason, table, trial)


FASTEST = "fastest"

PlansLike = bool | Mapping[str, PlanLike]
"""True for `without_each`, or plans by name, the one to begin with first."""


def read_plans(plans: object) -> dict[str, Plan] | None:
    """The user's plans by name; None if `without_each` should find them.

    Raises:
        InputError: they are no plans by name.
        PlanError: one of them is no plan.
    """
    if plans is True or plans is False or plans is None:
        return None
    named = plans if isinstance(plans, Mapping) else {}
    if not named or not all(isinstance(name, str) and name for name in named):
        raise InputError(
            f"expected True or plans by name for plans, got {plans!r:.100}; write "
            'plans={"all": "all.json", "cpu alone": "cpu.json"}'
        )
    return {name: Plan.read(plan) for name, plan in named.items()}


def with_plans(decision: Decision, named: Mapping[str, Plan] | None, limits: Limits) -> Decision:
    """The decision with several plans: those of the caller, or one without each processor."""
    decision = replace(decision, objective=limits.objective)
    if named is not None:
        return replace(decision, plans=named)
    plans, notes = without_each(decision, limits)
    return replace(decision, plans=plans if len(plans) > 1 else {}).noted(*notes)


def without_each(decision: Decision, limits: Limits) -> tuple[dict[str, Plan], list[str]]:
    """The chosen plan, and for each processor the most promising plan without it.

    Returns:
        Plans by name, without those that only repeat another one; and why others are missing.
    """
    say("searching for plans without each processor")
    site, mod = decision.site, decision.job.mod
    # the caller's plan may leave its regions to us
    fastest = decision.job.plan if decision.trial is None else decision.trial.plan
    decisions, notes = {FASTEST: fastest}, []
    for processor in site.placeable:
        left = [other for other in site.placeable if other is not processor]
        name = f"without {processor.name}"
        try:
            costs = site.costs(mod, left)
            if len(left) > 1:
                plan = _best_of(mod, costs, limits)
            else:
                _require_free(costs, left[0], limits)
                plan = _alone(mod, fastest, left[0])
        except UnsupportedError as error:
            notes.append(f"no plan {name}: {error}")
            continue
        if all(what_runs(plan) != what_runs(other) for other in decisions.values()):
            decisions[name] = plan
    return decisions, notes


def _require_free(costs: Costs, processor: Processor, limits: Limits) -> None:
    place = [other.name for other in costs.processors].index(processor.name)
    if not limits.may_do_all(place):
        raise UnsupportedError(f"expected a processor that may compute all, got {limits.text}")


def _best_of(mod: tvm.IRModule, costs: Costs, limits: Limits) -> Plan:
    candidates = search(mod, costs, limits=limits)
    best = min((*candidates.singles, *candidates.rivals), key=by_objective(limits), default=None)
    if best is None:
        raise UnsupportedError("expected a plan for the processors that are left, got none")
    return best.plan


def _alone(mod: tvm.IRModule, fastest: Plan, processor: Processor) -> Plan:
    """All of a plan's parts on one processor."""
    for refusal in find_refusals(mod["main"], processor):
        raise UnsupportedError(f"{refusal.operator} on {refusal.processor}: {refusal.reason}")
    operators = tuple(name for region in fastest.regions for name in region.operators)
    region = PlannedRegion("r0", processor.name, operators, why="the only one that is left")
    return replace(fastest, regions=(region,), refusals=(), reason="", costs="")


def what_runs(plan: Plan) -> tuple[object, ...]:
    """The plan's placement alone, without its notes and its list of processors."""
    numbers = [*plan.shares.items(), *plan.splits]
    return str(numbers), [(region.processor, region.operators) for region in plan.regions]
