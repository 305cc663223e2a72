"""Chooses the plan of a network: the caller's, one that won before, or the winner of a search.

a plan is given, or only one processor     the given plan, or that processor
plans can be measured                      the one that won before, or the winner (`decide`)
the same with little effort                the one that won before, or the first processor
nothing can be measured                    the plan that is predicted to be the fastest
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median

import tvm

from tvm_stretch.base.errors import (
    DeviceError,
    InputError,
    StretchError,
    UnsupportedError,
    last_line,
)
from tvm_stretch.base.progress import say
from tvm_stretch.make.pipeline import Job, Observer, build_parts
from tvm_stretch.make.placement import find_refusals, fit_processors
from tvm_stretch.network.properties.equal_layers import KEPT
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.search import Found, search
from tvm_stretch.plan.search.contest import (
    MeasureError,
    Outcome,
    compare,
    is_lasting,
    trace,
    winner,
)
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.decision import Build, Decision, decided
from tvm_stretch.plan.search.fewer_layers import FewerLayers
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.objective import LATENCY, Cost, Objective
from tvm_stretch.plan.search.present_pace import at_present_pace
from tvm_stretch.plan.search.realise import Candidate, by_objective
from tvm_stretch.plan.search.remembered import Memory, memory_of
from tvm_stretch.plan.search.site import Site
from tvm_stretch.plan.search.wrong_answers import doubted, find_wrong
from tvm_stretch.run.model import Model
from tvm_stretch.run.timeline import Timeline
from tvm_stretch.targets.processor import Processor

# Builds promising plans and the best single processor, measures them, and keeps the winner.
#
#     search ──> cpu alone, 22 ms predicted        ──build, measure in turns──> the faster one,
#                30 layers in shares, 12 ms                                     and why
#
# Costs that were not measured may be far off. Then a run of the first plan tells the real speed of
# each processor. If their ratio differs from the costs, the search proposes a second plan with
# corrected costs; otherwise the second plan is of shares of output channels alone, which compute
# nothing twice. Single processors are measured too if they come near to the plans; others are not,
# because compiling one more can take as long as everything else. Measured costs hold for a quiet
# machine; small reference networks tell how fast it is now (`at_present_pace`).


_OVERTAKEN = "not built: a run showed other speeds, and the search was repeated"
_FAR_BEHIND = "not built: others are predicted to be faster"

_IN_REACH = 1.5
"""Predictions that a run has corrected may be this wrong."""
_TIMELINES = 5
_SURPRISING = 1.2
"""Another ratio of the processors' speeds than predicted, by more than this, is worth a second
search; less is what the launches in a traced run make of it."""


def decide(
    job: Job,  # the network
    site: Site,  # where it is to run, and where models are measured
    build: Build,  # makes a model of a network and a plan for it
    limits: Limits = NO_LIMITS,  # what processors may compute at most
    memory: Memory | None = None,  # remembers the winning plan
    may_use: Callable[[Plan], bool] = lambda _: True,  # of several processors
) -> Decision:
    """The fastest plan of a network; one processor unless several win beyond doubt.

    Raises:
        MeasureError: a model failed while it was measured.
        UnsupportedError: no processor supports one of the operators.
    """
    assert site.take is not None
    mod, take, costs = job.mod, site.take, site.costs(job.mod)
    if costs.trusted:
        costs = _at_present_pace(costs, build, take)
    say("searching for plans")

    def searched(costs: Costs) -> Found:
        result = search(mod, costs, limits=limits)
        return replace(result, rivals=tuple(r for r in result.rivals if may_use(r.plan)))

    candidates = searched(costs)
    rivals = [(rival, build(mod, rival)) for rival in candidates.rivals[:1]]
    others, passed = candidates.rivals[1:], list(candidates.passed)
    if rivals and not costs.trusted:
        first, model = rivals[0]
        factors = _surprise(first, trace(take(model), _TIMELINES), site.processors)
        if max(factors) > _SURPRISING * min(factors):
            say("searching again, with the speeds that were found")
            passed += [one.considered(_OVERTAKEN) for one in (*candidates.singles, *others)]
            candidates = searched(costs.corrected(factors))
            candidates = replace(
                candidates, notes=tuple(f"{n} (corrected by a run)" for n in candidates.notes)
            )
            passed += candidates.passed
            unlike = [r for r in candidates.rivals if _choices(r) != _choices(first)]
            others = (*unlike[:1], *(r for r in unlike[1:] if r.is_asked))
    rivals += [(rival, build(mod, rival)) for rival in others]
    singles = candidates.singles[:1] if costs.trusted else _in_reach(candidates, limits)
    singles = candidates.singles if limits.objective.needs else singles
    entries = [*((single, build(mod, single)) for single in singles), *rivals]
    notes = candidates.notes if singles else ("no processor supports everything", *candidates.notes)
    built = [candidate for candidate, _ in entries]
    passed += [one.considered(_FAR_BEHIND) for one in candidates.singles if one not in built]
    if len(entries) == 1 and limits.objective == LATENCY:
        candidate, model = entries[0]
        chosen = candidate.considered("chosen: the only one that was built")
        decision = decided(site, job, candidate, "; ".join(notes), (chosen, *passed), model)
        if memory is not None and decision.plan is not None:
            memory.store(decision.plan)
        return decision
    say(f"measuring {len(entries)} plans in turns")
    models = [take(model) for _, model in entries]
    outcomes = compare(models)
    if wrong := find_wrong(site, built, models):
        raise doubted(job, site, wrong)
    costs_measured = limits.objective.measure(models, [one.seconds for one in outcomes])
    candidate, model = entries[index := _winner(outcomes, costs_measured, limits.objective)]
    reason = "; ".join((*notes, f"chosen: {candidate.what}"))
    rows = _measured(built, outcomes, index)
    if limits.objective.needs:
        rows = (
            replace(row, measured_mj=cost.millijoules, verdict="chosen" if i == index else "")
            for i, (row, cost) in enumerate(zip(rows, costs_measured, strict=True))
        )
    table = (*rows, *passed)
    decision = decided(site, job, candidate, reason, table, model)
    if memory is not None and decision.plan is not None:
        memory.store(decision.plan, is_lasting(outcomes))
    return decision


def _winner(outcomes: Sequence[Outcome], costs: Sequence[Cost], objective: Objective) -> int:
    """The best model by the objective; by latency several processors must win beyond doubt.

    Raises:
        InputError: no model is within the budgets.
    """
    if objective == LATENCY:
        return winner(outcomes)
    best = min(range(len(costs)), key=lambda index: objective(costs[index]))
    objective.require(costs[best], costs)
    return best


def _in_reach(result: Found, limits: Limits) -> list[Candidate]:
    """The best processor alone, and others that might be about as fast as the plans."""
    cost = by_objective(limits)
    best = min(map(cost, result.rivals), default=math.inf)
    return [s for i, s in enumerate(result.singles) if not i or cost(s) < _IN_REACH * best]


def _at_present_pace(costs: Costs, build: Build, take: Callable[[Model], Model]) -> Costs:
    def measured(network: tvm.IRModule, plans: Sequence[Candidate]) -> Sequence[Outcome]:
        return compare([take(build(network, plan)) for plan in plans])

    return at_present_pace(costs, measured)


def _choices(candidate: Candidate) -> tuple[object, ...]:
    """The plan's placement alone, without its predictions."""
    plan = candidate.plan
    return dict(plan.shares), plan.splits, plan.processor_of()


def _surprise(
    candidate: Candidate, timelines: Sequence[Timeline], processors: Sequence[Processor]
) -> tuple[float, ...]:
    """How much slower each processor's kernels were than predicted; 1 if it had no kernels."""
    share_of = {processor.name: processor.hardware.max_share for processor in processors}
    factors = []
    for name, predicted in zip(candidate.plan.processors, candidate.busy, strict=True):
        usages = [usage for timeline in timelines for usage in timeline.usage]
        measured = median([u.kernels for u in usages if u.processor == name] or [0])
        work = predicted * share_of[name]  # without the pauses
        factors.append(measured / work if measured and work else 1.0)
    return tuple(factors)


def _measured(
    candidates: Sequence[Candidate], outcomes: Sequence[Outcome], chosen: int
) -> Iterator[Considered]:
    """Every model that ran, compared with the first."""
    for index, (candidate, outcome) in enumerate(zip(candidates, outcomes, strict=True)):
        versus = (
            f"x{outcome.ratio:.2f} of {candidates[0].what} (95 % {outcome.low:.2f} to "
            f"{outcome.high:.2f})"
        )
        verdict = "chosen" if index == chosen else "slower" if outcome.high < 1 else "not faster"
        if index == 0 and chosen:
            verdict = "slower"
        text = verdict if index == 0 else f"{verdict}: {versus}"
        yield candidate.considered(text, outcome.seconds)


def choose(
    # the network, the caller's plan, and who sees each phase of models that are built
    job: Job,
    site: Site,  # where it is to run
    limits: Limits = NO_LIMITS,  # what processors may compute at most, and who schedules branches
) -> Decision:
    """Choose the plan of a network.

    Raises:
        DeviceError: the remote device failed, and its CPU with it.
        UnsupportedError: no processor supports one of the operators.
    """
    if job.requested is not None:
        return Decision(site, job, job.requested.reason)
    is_free = limits.objective == LATENCY
    if len(site.placeable) == 1 and site.profile is None and is_free:
        return Decision(site, job)
    if site.take is not None:
        return _measure_few_layers(job, site, limits) or _measure(job, site, limits)
    return predict(job, site, limits, is_cautious=site.profile is None)


def predict(
    job: Job, site: Site, limits: Limits = NO_LIMITS, is_cautious: bool = False
) -> Decision:
    """The plan that is predicted to be the fastest.

    For a profile, the search is repeated without each processor: it is heuristic, and with three
    processors it may miss a plan that it finds with two.

    Args:
        is_cautious: whether costs that were never measured only choose the best single processor.
    """
    costs, result, candidates = find(job.mod, site, limits)
    if is_cautious and not (site.device and costs.trusted):
        best, how = candidates[0], f"not measured, for {site.device or 'another machine'}"
    else:
        best = min(candidates, key=by_objective(limits))
        how = f"predicted for {site.device or 'this machine'}, not measured"
    limits.objective.require(best.cost, [one.cost for one in candidates])
    others = (one.considered("not chosen") for one in candidates if one is not best)
    table = (best.considered("chosen"), *others, *result.passed)
    least = f"with all processors always busy it would take {result.least_ns / 1e6:.3f} ms"
    reason = "; ".join((*result.notes, least, f"chosen: {best.what}, {how}"))
    decision = decided(site, job, best, reason, table)
    if best.plan.processors == tuple(site.names):
        return decision
    plan = fit_processors(replace(best.plan, reason=reason), site.names, site.placeable)
    return replace(decision, job=job.by(plan))


def find(
    mod: tvm.IRModule, site: Site, limits: Limits = NO_LIMITS
) -> tuple[Costs, Found, list[Candidate]]:
    """The costs of a site, what a search finds, and all candidates."""
    say("searching for plans")
    costs = site.costs(mod)
    if "energy" in limits.objective.needs and costs.power is None:
        raise InputError(
            f"expected powers of the processors of {site.device or 'this machine'} for energy as "
            "objective, got none; name a profile with watts as device, or plan where a meter is"
        )
    result = search(mod, costs, limits=limits)
    candidates = [*result.singles, *result.rivals]
    ours = replace(limits, scheduler=None)
    is_free = replace(ours, objective=LATENCY) == NO_LIMITS
    if site.profile is not None and len(site.processors) > 2 and is_free:
        for processor in site.processors[1:]:
            with suppress(UnsupportedError):
                fewer = search(mod, site.without(processor).costs(mod), limits=ours)
                candidates += [*fewer.singles, *fewer.rivals]
    return costs, result, candidates


def _measure_few_layers(job: Job, site: Site, limits: Limits) -> Decision | None:
    """The decision for a network of many equal layers, found with three of them."""
    few = FewerLayers.find(job.mod) if replace(limits, searches=True) == NO_LIMITS else None
    if few is None:
        return None
    say(f"searching with {KEPT} of {few.run.count} equal layers")
    own = replace(job, mod=few.mod, observer=Observer())
    return few.decision(_measure(own, site, limits, few.repeats), job)


def _measure(
    job: Job, site: Site, limits: Limits, may_use: Callable[[Plan], bool] = lambda _: True
) -> Decision:
    """The winner of `decide`; if a device fails meanwhile, the CPU alone."""
    is_usual = limits.scheduler is None and limits.objective == LATENCY
    may_remember = site.identity and is_usual
    key = f"{site.identity} {limits.caps} {limits.parts}"
    memory = memory_of(job.mod, site.processors, key) if may_remember else None
    remembered = None if memory is None else memory.find()
    if remembered is not None:
        say("building the plan that won before")
        try:
            model = Model.from_parts(build_parts(job.by(remembered)))
            trace(model, 1)
        except StretchError as error:  # the user did not request that plan, so search again
            say(f"the plan that won before is not taken: {last_line(error)}")
        else:
            reason = f"{remembered.reason}; measured before, not again"
            return Decision(site, job.by(model.plan), reason, trial=model)

    if not limits.searches:
        return _without_search(job, site)

    def built(network: tvm.IRModule, candidate: Candidate) -> Model:
        say(f"building {candidate.what}")
        seen = job.observer if network is job.mod else Observer()
        own = job.by(candidate.plan, candidate.branched, candidate.lowered)
        return Model.from_parts(build_parts(replace(own, mod=network, observer=seen)))

    try:
        return decide(job, site, built, limits, memory, may_use)
    except MeasureError as error:
        if site.device and isinstance(error.__cause__, DeviceError):
            raise error.__cause__ from error
        left = [p for p in site.placeable if p.is_host and limits.may_do_all(0)]
        if not left:
            raise
        alone = replace(site, processors=left, placeable=left)
        own = replace(job, processors=left, placeable=left)
        return Decision(alone, own, reason=f"cpu alone: measuring the others failed: {error}")


def _without_search(job: Job, site: Site) -> Decision:
    """The first processor that supports everything; without one, operators have the first each."""
    refused = [find_refusals(job.mod["main"], processor) for processor in site.placeable]
    plan = Plan(tuple(site.names), ()) if all(refused) else None
    return Decision(site, job.by(plan), "not searched, because effort is low")
