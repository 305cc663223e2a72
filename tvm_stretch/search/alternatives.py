"""Plans to change to while a model runs: where a processor is busy, one without it is the fastest.

    fastest            cpu + opencl + hexagon
    without cpu              opencl + hexagon
    without opencl     cpu          + hexagon
    without hexagon    cpu + opencl

Each is the best that the search finds for the processors that are left; what each takes is measured
where the model runs, in turns, because that is what its runs are compared with later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import tvm

from tvm_stretch.build.placement import choose_plan
from tvm_stretch.errors import InputError, UnsupportedError
from tvm_stretch.plan.plan import Plan, PlanLike
from tvm_stretch.runtime.model import Model
from tvm_stretch.search import search
from tvm_stretch.search.contest import compare
from tvm_stretch.search.costs import Costs
from tvm_stretch.targets.processor import Processor

FASTEST = "fastest"

PlansLike = bool | Mapping[str, PlanLike]
"""True for `without_each`, or plans by name, the one to begin with first."""

CostsOf = Callable[[Sequence[Processor]], Costs]
"""What the search knows if operators may be placed on these processors only."""


def read_plans(plans: object) -> dict[str, Plan] | None:
    """The plans of a user by name; None where he leaves them to `without_each`.

    Raises:
        InputError: they are nothing of the kind.
        PlanError: one of them is no plan.
    """
    if plans is True or plans is False or plans is None:
        return None
    named = isinstance(plans, Mapping) and all(isinstance(name, str) and name for name in plans)
    if not named or not plans:
        raise InputError(
            f"expected True or plans by name for plans, got {plans!r:.100}; write "
            'plans={"all": "all.json", "cpu alone": "cpu.json"}'
        )
    return {name: Plan.read(plan) for name, plan in plans.items()}


def without_each(
    mod: tvm.IRModule, fastest: Plan, placeable: Sequence[Processor], costs_of: CostsOf
) -> tuple[dict[str, Plan], list[str]]:
    """The fastest plan, and for each processor the one that promises most without it.

    Args:
        mod: the canonical module.
        fastest: of all processors.
        placeable: those that operators may be placed on.
        costs_of: see `CostsOf`.

    Returns:
        Plans by name, those that only repeat another one left out; and why others are missing.
    """
    found, notes = {FASTEST: fastest}, []
    for processor in placeable:
        left = [other for other in placeable if other is not processor]
        name = f"without {processor.name}"
        try:
            plan = _best_on(mod, left, costs_of(left))
        except UnsupportedError as error:
            notes.append(f"no plan {name}: {error}")
            continue
        if all(_what_runs(plan) != _what_runs(other) for other in found.values()):
            found[name] = plan
    return found, notes


def _best_on(mod: tvm.IRModule, left: Sequence[Processor], costs: Costs) -> Plan:
    if len(left) > 1:
        candidates = search(mod, costs)
        best = min((*candidates.singles, *candidates.rivals), key=lambda one: one.ns)
        return best.plan
    names = [processor.name for processor in costs.processors]
    return choose_plan(mod["main"], names, left, None)


def _what_runs(plan: Plan) -> tuple[object, ...]:
    """The plan without what is said of it, whatever other processors there are."""
    numbers = [*plan.shares.items(), *plan.splits]
    return str(numbers), [(region.processor, region.operators) for region in plan.regions]


def expected_seconds(model: Model, arena: Callable[[Model], Model]) -> list[float]:
    """What a run of each of a model's plans takes at present.

    Raises:
        MeasureError: a plan failed while it was measured.
    """
    return [outcome.seconds for outcome in compare(list(_pinned(arena(model))))]


def _pinned(model: Model) -> Iterator[Model]:
    for name in model.plans:
        instance = model.create_instance()
        instance.use(name)
        yield instance
