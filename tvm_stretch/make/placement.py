"""Choose the plan: the user's, checked and completed, or everything on one processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.network.operators import Calls
from tvm_stretch.passes.tag import check_plan
from tvm_stretch.plan.plan import Plan, PlannedRegion, Refusal, abbreviate, refusal_rows
from tvm_stretch.plan.regions import form_regions, place_operators
from tvm_stretch.targets.processor import Processor


def fit_processors(plan: Plan, names: Sequence[str], placeable: Sequence[Processor]) -> Plan:
    """The plan for this model's processors, which may be more and in another order.

    Args:
        names: all processors of the model, the CPU first.
        placeable: the processors that operators may be placed on.

    Raises:
        PlanError: a region, a share or a split is for another processor.
    """
    names_here = [processor.name for processor in placeable]
    for region in plan.regions:
        _require_known(region.processor, names_here, f"region {region.name!r} of the plan")

    def ordered(numbers: Sequence[Any], where: str) -> tuple[Any, ...]:
        by_name = dict(zip(plan.processors, numbers, strict=True))
        for name, number in by_name.items():
            if number:
                _require_known(name, names_here, where)
        return tuple(by_name.get(name, 0) for name in names)

    shares = {n: ordered(widths, f"shares of {n!r}") for n, widths in plan.shares.items()}
    splits = tuple(
        replace(split, ratios=ordered(split.ratios, f"splits[{index}]"))
        for index, split in enumerate(plan.splits)
    )
    return replace(plan, processors=tuple(names), shares=shares, splits=splits)


def choose_plan(
    main: relax.Function,  # canonical Relax, after the plan's shares and splits
    names: Sequence[str],  # all processors of the model, the CPU first
    # the processors on which operators may be placed, preferred ones first
    placeable: Sequence[Processor],
    requested: Plan | None,  # the plan of the user or the search
    # for operators that are parts, the index of their processor in ``names``
    owners: Mapping[str, int] | None = None,
) -> Plan:
    """The plan for `main`, with all refusals of all processors.

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
    plan = replace(fit_processors(requested, names, placeable), refusals=refusals)
    if not plan.regions and operators:
        placed = place_operators(main, names, placeable, owners or {})
        plan = replace(plan, regions=form_regions(main, placed))
    check_plan(plan, main)
    _check_support(plan)
    return replace(plan, remarks=tuple(_remarks(main, plan, placeable)))


def find_refusals(main: relax.Function, processor: Processor) -> list[Refusal]:
    """The operators of `main` that the processor cannot run, and why."""
    calls = Calls(main).calls
    processor.operators.foresee(list(calls.values()))
    reasons = {name: processor.why_not(call) for name, call in calls.items()}
    return [Refusal(processor.name, n, reason) for n, reason in reasons.items() if reason]


def _remarks(main: relax.Function, plan: Plan, placeable: Sequence[Processor]) -> Iterator[str]:
    """Remarks of processors on operators that they run, one line for each reason."""
    calls, placed = Calls(main).calls, plan.processor_of()
    for processor in placeable:
        names: dict[str, list[str]] = {}
        own = {name: call for name, call in calls.items() if placed[name] == processor.name}
        for name, reason in processor.operators.remark(own).items():
            names.setdefault(reason, []).append(name)
        for reason, slow in names.items():
            listed = abbreviate(tuple(slow))
            yield f"{processor.name}, {len(slow)} operators ({listed}): {reason}"


def _on_one_processor(
    operators: tuple[str, ...], placeable: Sequence[Processor], refusals: Sequence[Refusal]
) -> tuple[PlannedRegion, ...]:
    """Everything in one region of the first processor that supports all operators."""
    refusing = {refusal.processor for refusal in refusals}
    for processor in placeable:
        if processor.name not in refusing:
            return (PlannedRegion("r0", processor.name, operators),) if operators else ()
    raise UnsupportedError(
        "expected operators that one of the processors supports, got others: "
        f"{_reasons(refusals)}; replace them in the network, or give a plan that uses several "
        "processors"
    )


def _require_known(name: str, names: Sequence[str], where: str) -> None:
    if name not in names:
        raise PlanError(
            f"expected one of the processors {names} for {where}, got {name!r}; add its target, "
            "or place it elsewhere"
        )


def _check_support(plan: Plan) -> None:
    placed = plan.processor_of()
    broken = [r for r in plan.refusals if placed[r.operator] == r.processor]
    if broken:
        raise UnsupportedError(
            "expected operators on processors that support them, got others: "
            f"{_reasons(broken)}; place them elsewhere"
        )


def _reasons(refusals: Sequence[Refusal]) -> str:
    return "; ".join(f"{names} on {who}: {why}" for who, names, why in refusal_rows(refusals))
