"""Which plan to use: the user's, or everything on one processor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tvm import relax

from tvm_stretch.errors import PlanError, UnsupportedError
from tvm_stretch.passes.calls import Calls
from tvm_stretch.passes.tag import check_plan
from tvm_stretch.plan import Plan, PlannedRegion, Refusal
from tvm_stretch.targets.processor import Processor


def choose_plan(
    main: relax.Function,
    names: Sequence[str],
    placeable: Sequence[Processor],
    requested: Plan | None,
) -> Plan:
    """The plan for `main`, with every refusal of every processor.

    Args:
        main: canonical Relax.
        names: all processors of the model, the CPU first.
        placeable: the processors that operators may be placed on, most wanted first.
        requested: the user's plan.

    Raises:
        PlanError: the requested plan does not fit the network or the targets.
        UnsupportedError: an operator is placed on a processor that cannot run it, or no processor
            can run all of them.
    """
    operators = tuple(Calls(main).calls)
    refusals = tuple(
        refusal for processor in placeable for refusal in find_refusals(main, processor)
    )
    if requested is None:
        requested = Plan(tuple(names), _on_one_processor(operators, placeable, refusals))
    regions = _on_known_processors(requested.regions, placeable)
    plan = replace(requested, processors=tuple(names), regions=regions, refusals=refusals)
    check_plan(plan, main)
    _check_support(plan)
    return plan


def find_refusals(main: relax.Function, processor: Processor) -> list[Refusal]:
    """What the processor cannot run of `main`, and why."""
    reasons = {name: processor.why_not(call) for name, call in Calls(main).calls.items()}
    return [Refusal(processor.name, n, reason) for n, reason in reasons.items() if reason]


def _on_one_processor(
    operators: tuple[str, ...], placeable: Sequence[Processor], refusals: Sequence[Refusal]
) -> tuple[PlannedRegion, ...]:
    """Everything in one region of the first processor that supports it all."""
    refusing = {refusal.processor for refusal in refusals}
    for processor in placeable:
        if processor.name not in refusing:
            return (PlannedRegion("r0", processor.name, operators),) if operators else ()
    raise UnsupportedError(
        "expected operators that one of the processors supports, got others: "
        f"{_reasons(refusals)}; replace them in the network, or give a plan that uses several "
        "processors"
    )


def _on_known_processors(
    regions: tuple[PlannedRegion, ...], placeable: Sequence[Processor]
) -> tuple[PlannedRegion, ...]:
    names = [processor.name for processor in placeable]
    for region in regions:
        if region.processor not in names:
            raise PlanError(
                f"expected one of the processors {names} for region {region.name!r} of the plan, "
                f"got {region.processor!r}; add its target, or place the region elsewhere"
            )
    return regions


def _check_support(plan: Plan) -> None:
    placed = plan.processor_of()
    broken = [r for r in plan.refusals if placed[r.operator] == r.processor]
    if broken:
        raise UnsupportedError(
            "expected operators on processors that support them, got others: "
            f"{_reasons(broken)}; place them elsewhere"
        )


def _reasons(refusals: Sequence[Refusal]) -> str:
    texts = (f"{r.operator} on {r.processor}: {r.reason}" for r in refusals)
    return "; ".join(dict.fromkeys(texts))
