"""Builds promising plans and the best single processor, measures them, and keeps the winner.

    search ──> cpu alone, 22 ms predicted        ──build, measure in turns──> the faster one,
               30 layers in shares, 12 ms                                     and why

Costs that were not measured may be far off. Then a run of the first plan tells the real speed of
each processor. If their ratio differs from the costs, the search proposes a second plan with
corrected costs; otherwise the second plan is of shares of output channels alone, which compute
nothing twice. Single processors are measured too if they come near to the plans; others are not,
because compiling one more can take as long as everything else. Measured costs hold for a quiet
machine; small reference networks tell how fast it is now (`at_present_pace`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.base.progress import say
from tvm_stretch.make.pipeline import Job
from tvm_stretch.network.integer_kernels import integer_call
from tvm_stretch.network.integers import Integer, Rounding
from tvm_stretch.plan.considered import Considered
from tvm_stretch.plan.search import Found, search
from tvm_stretch.plan.search.contest import Outcome, compare, is_lasting, trace, winner
from tvm_stretch.plan.search.costs import Costs
from tvm_stretch.plan.search.decision import Build, Decision, decided
from tvm_stretch.plan.search.limits import NO_LIMITS, Limits
from tvm_stretch.plan.search.objective import LATENCY, Cost, Objective
from tvm_stretch.plan.search.realise import Candidate, by_objective
from tvm_stretch.plan.search.remembered import Memory
from tvm_stretch.plan.search.site import Site
from tvm_stretch.read import load_network
from tvm_stretch.run.model import Model
from tvm_stretch.run.timeline import Timeline
from tvm_stretch.targets.processor import Processor

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
    # remembers the winning plan, if another contest would end alike
    memory: Memory | None = None,
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
    found = search(mod, costs, limits=limits)
    rivals = [(rival, build(mod, rival)) for rival in found.rivals[:1]]
    others, passed = found.rivals[1:], list(found.passed)
    if rivals and not costs.trusted:
        first, model = rivals[0]
        factors = _surprise(first, trace(take(model), _TIMELINES), site.processors)
        if max(factors) > _SURPRISING * min(factors):
            say("searching again, with the speeds that were found")
            passed += [one.considered(_OVERTAKEN) for one in (*found.singles, *others)]
            found = search(mod, costs.corrected(factors), limits=limits)
            found = replace(found, notes=tuple(f"{n} (corrected by a run)" for n in found.notes))
            passed += found.passed
            others = tuple(r for r in found.rivals if _choices(r) != _choices(first))[:1]
    rivals += [(rival, build(mod, rival)) for rival in others]
    singles = found.singles[:1] if costs.trusted else _in_reach(found, limits)
    singles = found.singles if limits.objective.needs else singles
    entries = [*((single, build(mod, single)) for single in singles), *rivals]
    notes = found.notes if singles else ("no processor supports everything", *found.notes)
    built = [candidate for candidate, _ in entries]
    passed += [one.considered(_FAR_BEHIND) for one in found.singles if one not in built]
    if len(entries) == 1 and limits.objective == LATENCY:
        candidate, model = entries[0]
        chosen = candidate.considered("chosen: the only one that was built")
        return decided(site, job, candidate, "; ".join(notes), (chosen, *passed), model)
    say(f"measuring {len(entries)} plans in turns")
    models = [take(model) for _, model in entries]
    outcomes = compare(models)
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
    if memory is not None and decision.plan is not None and is_lasting(outcomes):
        memory.store(decision.plan)
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


def _in_reach(found: Found, limits: Limits) -> list[Candidate]:
    """The best processor alone, and others that might be about as fast as the plans."""
    cost = by_objective(limits)
    best = min(map(cost, found.rivals), default=math.inf)
    return [s for i, s in enumerate(found.singles) if not i or cost(s) < _IN_REACH * best]


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
    share_of = {processor.name: processor.max_share for processor in processors}
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
        said = verdict if index == 0 else f"{verdict}: {versus}"
        yield candidate.considered(said, outcome.seconds)


_LAYERS, _CHANNELS, _SIDE = 8, 64, 28
_FEW_LAYERS, _SMALL_SIDE = 2, 14


def at_present_pace(
    costs: Costs, measure: Callable[[tvm.IRModule, Sequence[Candidate]], Sequence[Outcome]]
) -> Costs:
    """The costs at the machine's present speed, by a small chain of convolutions.

        cpu alone: predicted 0.80 ms, takes 1.00    -> cpu      x 1.25
        both:      predicted 0.45 ms, takes 0.68    -> together x 1.21

    Other guests of a machine slow its cores down, not always equally, and branches that meet wait
    for the slower one. A processor that takes no floats is timed with a chain of integers: its
    model predicts the chip of a DSP, but an emulator takes some hundred times as long.

    Args:
        measure: builds and times plans of a network.
    """
    for chain in (_chain, _integer_chain):
        network = load_network(chain())
        found = search(network, costs)
        if len(found.singles) == len(costs.processors):
            break
    else:
        return costs  # one of them supports no convolutions
    candidates = [*found.singles, *found.rivals[:1]]
    outcomes = measure(network, candidates)
    ratios = [o.seconds * 1e9 / c.cost.ns for o, c in zip(outcomes, candidates, strict=True)]
    names = [candidate.plan.regions[0].processor for candidate in found.singles]
    alone = dict(zip(names, ratios, strict=False))
    factors = [alone[processor.name] for processor in costs.processors]
    met = ratios[-1] / max(factors) if found.rivals else 1.0
    return costs.corrected(factors, together=max(1.0, met))


def _integer_chain() -> tvm.IRModule:
    """Like `_chain`, in 8 bits and so small that an emulator is fast enough."""
    dice, builder = np.random.default_rng(0), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, _CHANNELS, _SMALL_SIDE, _SMALL_SIDE), "uint8"))
    layer = Integer("conv2d", Rounding("uint8", 0, 0, 255), (0,), padding=(1, 1, 1, 1))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: relax.Expr = x
            for _ in range(_FEW_LAYERS):
                weight = dice.integers(-127, 128, (_CHANNELS, _CHANNELS, 3, 3)).astype("int8")
                bias, factor = np.zeros(_CHANNELS, "int32"), np.full(_CHANNELS, 4e-4, "float32")
                constants = map(relax.const, (weight, bias, factor))
                y = builder.emit(integer_call(builder, layer, y, *constants))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def _chain() -> tvm.IRModule:
    """The reference network: layers like those of real networks, with as many meetings."""
    dice, builder = np.random.default_rng(0), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, _CHANNELS, _SIDE, _SIDE), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(_LAYERS):
                weight = dice.standard_normal((_CHANNELS, _CHANNELS, 3, 3)) / 24
                constant = relax.const(weight.astype("float32"))
                y = builder.emit(relax.op.nn.conv2d(y, constant, padding=1))
                y = builder.emit(relax.op.nn.relu(y))
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()
