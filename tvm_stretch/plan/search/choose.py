"""Chooses the plan of a network: the caller's, one that won before, or the winner of a search.

a plan is given, or only one processor     the given plan, or that processor
plans can be measured                      the winner of decide.py, or the one that won before
nothing can be measured                    the plan that is predicted to be the fastest
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

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
from tvm_stretch.make.placement import fit_processors
from tvm_stretch.plan.scheduling import schedule_heft
from tvm_stretch.plan.search import Found, search
from tvm_stretch.plan.search.contest import MeasureError, trace
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.decide import decide
from tvm_stretch.plan.search.decision import Decision, decided
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.objective import LATENCY
from tvm_stretch.plan.search.realise import Candidate, by_objective
from tvm_stretch.plan.search.remembered import memory_of
from tvm_stretch.plan.search.site import Site
from tvm_stretch.run.model import Model


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
        return _measure(job, site, limits)
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
    costs, found, candidates = find(job.mod, site, limits)
    if is_cautious and not (site.device and costs.trusted):
        best, how = candidates[0], f"not measured, for {site.device or 'another machine'}"
    else:
        best = min(candidates, key=by_objective(limits))
        how = f"predicted for {site.device or 'this machine'}, not measured"
    limits.objective.require(best.cost, [one.cost for one in candidates])
    others = (one.considered("not chosen") for one in candidates if one is not best)
    table = (best.considered("chosen"), *others, *found.passed)
    least = f"with all processors always busy it would take {found.least_ns / 1e6:.3f} ms"
    reason = "; ".join((*found.notes, least, f"chosen: {best.what}, {how}"))
    decision = decided(site, job, best, reason, table)
    if best.plan.processors == tuple(site.names):
        return decision
    plan = fit_processors(replace(best.plan, reason=reason), site.names, site.placeable)
    return replace(decision, job=job.by(plan))


def find(
    mod: tvm.IRModule, site: Site, limits: Limits = NO_LIMITS
) -> tuple[Costs, Found, list[Candidate]]:
    """The costs of a site, what a search finds, and all candidates.

    Raises:
        InputError: the objective counts energy, and the processors' powers are not known.
    """
    say("searching for plans")
    costs = site.costs(mod)
    if "energy" in limits.objective.needs and costs.power is None:
        raise InputError(
            f"expected powers of the processors of {site.device or 'this machine'} for energy as "
            "objective, got none; name a profile with watts as device, or plan where a meter is"
        )
    found = search(mod, costs, limits=limits)
    candidates = [*found.singles, *found.rivals]
    is_free = replace(limits, objective=LATENCY) == NO_LIMITS
    if site.profile is not None and len(site.processors) > 2 and is_free:
        for processor in site.processors[1:]:
            with suppress(UnsupportedError):
                fewer = search(mod, site.without(processor).costs(mod), limits=limits)
                candidates += [*fewer.singles, *fewer.rivals]
    return costs, found, candidates


def _measure(job: Job, site: Site, limits: Limits) -> Decision:
    """The winner of `decide`; if a device fails meanwhile, the CPU alone."""
    is_usual = limits.scheduler is schedule_heft and limits.objective == LATENCY
    may_remember = site.identity and is_usual
    said = f"{site.identity} {limits.caps} {limits.parts}"
    memory = memory_of(job.mod, site.processors, said) if may_remember else None
    known = None if memory is None else memory.find()
    if known is not None:
        say("building the plan that won before")
        try:
            model = Model.from_parts(build_parts(job.by(known)))
            trace(model, 1)
        except StretchError as error:  # the user did not request that plan, so search again
            say(f"the plan that won before is not taken: {last_line(error)}")
        else:
            reason = f"{known.reason}; measured before, not again"
            return Decision(site, job.by(model.plan), reason, trial=model)

    def built(network: tvm.IRModule, candidate: Candidate) -> Model:
        say(f"building {candidate.what}")
        seen = job.observer if network is job.mod else Observer()
        own = job.by(candidate.plan, candidate.branched, candidate.lowered)
        return Model.from_parts(build_parts(replace(own, mod=network, observer=seen)))

    try:
        return decide(job, site, built, limits, memory)
    except MeasureError as error:
        if site.device and isinstance(error.__cause__, DeviceError):
            raise error.__cause__ from error
        left = [p for p in site.placeable if p.is_host and limits.may_do_all(0)]
        if not left:
            raise
        alone = replace(site, processors=left, placeable=left)
        own = replace(job, processors=left, placeable=left)
        return Decision(alone, own, reason=f"cpu alone: measuring the others failed: {error}")
