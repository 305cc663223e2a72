"""Which plans are worth trying for a network, best guesses first.

One processor      everything on each processor that supports it all
channel shares     the processors compute each large layer together, a share of its output channels
                   each, and meet before the next (`passes/split_outputs.py`)

The shares follow the processors' speeds: of the whole network at first, then of each layer, read
from the timeline of a run. A layer is shared only if that saves more than a meeting costs; what is
between shared layers stays in parts, or runs on the first processor. The compiler builds and
measures what comes from here: a plan never ships because of a prediction alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import lcm
from statistics import median

import tvm
from tvm import relax

from tvm_stretch.passes.calls import Calls
from tvm_stretch.passes.operators import POINTWISE, Operator, Operators
from tvm_stretch.passes.share_winograd import share_winograd
from tvm_stretch.passes.split_outputs import part_name, split_outputs
from tvm_stretch.plan import Plan
from tvm_stretch.regions import form_regions
from tvm_stretch.runtime.timeline import Timeline
from tvm_stretch.targets.processor import Processor

_WORTH_SHARING = 2_000_000
"""Multiply-adds that take longer than a meeting of two processors, about 30 us on a fast core."""


Speeds = Callable[[str], Sequence[float]]


@dataclass(frozen=True)
class Candidate:
    """A plan, and what it is in words."""

    plan: Plan
    what: str


def single_plans(mod: tvm.IRModule, placeable: Sequence[Processor]) -> list[Candidate]:
    """Everything on one processor, for each that supports it all."""
    names = tuple(Calls(mod["main"]).calls)
    found = []
    for processor in placeable:
        if all(processor.why_not(call) is None for call in Calls(mod["main"]).calls.values()):
            regions = form_regions(mod["main"], dict.fromkeys(names, processor.name))
            plan = Plan((processor.name,), regions)
            found.append(Candidate(plan, f"{processor.name} alone"))
    return found


def shared_plan(
    mod: tvm.IRModule,
    placeable: Sequence[Processor],
    speeds: Speeds,
    least_work: int = _WORTH_SHARING,
) -> Candidate | None:
    """Large layers in shares; None where no layer is large enough.

    Args:
        mod: the canonical module.
        placeable: the processors; operators that are not shared go to the first.
        speeds: how fast each processor is at an operator, in any unit.
        least_work: multiply-adds of a layer that is worth sharing.
    """
    operators = Operators(mod["main"])
    shares: dict[str, tuple[int, ...]] = {}
    for operator in operators:
        if operator.multiply_adds < least_work:
            continue
        parts = _shares(operator, operators, placeable, speeds)
        if parts is not None and all(p.why_not(operator.call) is None for p in placeable):
            shares[operator.name] = parts
    if not shares:
        return None
    split = share_winograd(split_outputs(mod, shares), [p.machine for p in placeable])
    placed = _place_parts(split["main"], placeable)
    if placed is None:
        return None
    regions = form_regions(split["main"], placed)
    names = tuple(processor.name for processor in placeable)
    what = f"{len(shares)} layers shared by {' and '.join(names)}"
    return Candidate(Plan(names, regions, shares=shares), what)


def measured_speeds(plan: Plan, timelines: Sequence[Timeline]) -> Speeds:
    """Speeds at each shared layer of ``plan``: channels of a part by the time of its region."""
    region_of = {name: region.name for region in plan.regions for name in region.operators}
    times: dict[str, float] = {}
    for regions in zip(*(timeline.regions for timeline in timelines), strict=True):
        kernels = ([s.end - s.start for s in r.spans if s.kind == "kernel"] for r in regions)
        times[regions[0].name] = median(map(sum, kernels))

    def speeds(name: str) -> Sequence[float]:
        parts = plan.shares[name]
        regions = (region_of[part_name(name, index)] for index in range(len(parts)))
        return [channels / times[region] for channels, region in zip(parts, regions, strict=True)]

    return speeds


def _place_parts(main: relax.Function, placeable: Sequence[Processor]) -> dict[str, str] | None:
    """Part k on processor k; None if one of them does not support its part."""
    placed: dict[str, str] = {}
    suffixes = [part_name("", index) for index in range(len(placeable))]
    for name, call in Calls(main).calls.items():
        found = (p for p, s in zip(placeable, suffixes, strict=True) if name.endswith(s))
        processor = next(found, placeable[0])
        if processor.why_not(call) is not None:
            return None
        placed[name] = processor.name
    return placed


def _shares(
    operator: Operator, operators: Operators, placeable: Sequence[Processor], speeds: Speeds
) -> tuple[int, ...] | None:
    """Output channels of each processor, whole blocks and whole groups of the next layer."""
    if operator.kind not in ("nn.conv2d", "matmul"):
        return None
    if operator.kind == "nn.conv2d" and int(operator.call.attrs.groups) > 1:
        return None  # stays in the parts that it reads
    channels = operator.shape[1]
    unit = lcm(placeable[0].machine.lanes, *_group_widths(operator, operators))
    units, rest = divmod(channels, unit)
    if units < len(placeable):
        return None
    each = speeds(operator.name)
    counts = [max(1, round(units * speed / sum(each))) for speed in each[:-1]]
    last = units - sum(counts)
    return (*(count * unit for count in counts), last * unit + rest) if last > 0 else None


def _group_widths(operator: Operator, operators: Operators) -> list[int]:
    """Input channels of the groups of grouped convolutions that read this operator's result."""
    widths, waiting = [], [operator.name]
    while waiting:
        for name in operators.readers[waiting.pop()]:
            reader = operators[name]
            if reader.kind == "nn.conv2d" and int(reader.call.attrs.groups) > 1:
                widths.append(int(reader.call.args[1].ty.shape.values[1]))
            elif reader.kind in POINTWISE and len(reader.inputs) == 1:
                waiting.append(name)
    return widths
