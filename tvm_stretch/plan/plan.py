"""The plan: which processor runs which operators, in which order, as a file that people can edit.

    {
     "format": "tvm_stretch.plan",
     "version": 1,
     "processors": ["cpu", "opencl"],
     "shares": {"conv2d1": [40, 24]},
     "splits": [{"by": "rows", "start": "relu1", "end": "relu4", "ratios": [3, 2]}],
     "regions": [
      {"name": "r0", "processor": "cpu", "operators": ["conv2d", "add", "relu"]},
      {"name": "r1", "processor": "opencl", "operators": ["conv2d1.p1"]}
     ],
     "refusals": []
    }

Operators are the calls of canonical Relax `main`, named after their binding variables. `shares` and
`splits` cut some of them into parts. Both have one number for each processor of the plan, in the
plan's order, 0 for processors that take no part. Regions name the operators after cutting. Regions
are listed in an order in which they could run one after the other; the regions of one processor do
run in that order, and operators run in the order of their region. To edit shares or splits, remove
`regions`: parts then go to the processors to which the numbers belong, and other operators to the
first that supports them. `refusals` lists the operators that a processor cannot run, as the
compiler found out, `remarks` those that are slow, `considered` the candidates of a search. They,
`costs`, `reason`, `predicted_mj` and each region's `why`, `predicted_ns` and `predicted_mj` have no
influence.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from tvm_stretch.base.errors import PlanError
from tvm_stretch.base.files import as_path, is_finite, write_whole, writing
from tvm_stretch.base.formats import Format
from tvm_stretch.base.words import counted
from tvm_stretch.plan.considered import Considered, align, considered_lines
from tvm_stretch.plan.splits import ChannelSplit, Split, splits_to_data

FORMAT = Format("tvm_stretch.plan", 1, "the plan", PlanError, "write the plan again")


@dataclass(frozen=True)
class PlannedRegion:
    """Operators that one processor runs as one unit, in this order."""

    name: str  # shown in messages and timelines
    processor: str  # one of the plan's processors
    operators: tuple[str, ...]  # names in canonical Relax
    # start and end in nanoseconds from the start of the run, if a planner predicted them; shown
    # in timelines
    predicted_ns: tuple[int, int] | None = None
    why: str = ""  # the reason for the processor, for people
    # millijoules of the processor for it, if powers are known; the idle device is in none
    predicted_mj: float | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a processor cannot run an operator."""

    processor: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Which processor runs which operators, in which order; the first processor is the CPU.

    Attributes:
        processors: names of all processors of the model.
        regions: in an order in which they could run one after the other.
        refusals: why processors cannot run certain operators.
        shares: for layers whose output channels are computed in parts, the channels per processor.
        splits: segments that are computed in bands of rows or in shares of channels.
        reason: why this plan was chosen, and over which others, for people.
        costs: the cost model that predicted it, for people.
        remarks: operators that are slow on their processor, and why, for people.
        considered: the candidates among which it was chosen, for people.
        predicted_mj: the millijoules of a run, if powers are known.
        execution: where a model really runs its operators; not part of the file.

    Examples:
        >>> plan = ts.plan_for("resnet18.onnx", ["llvm"])
        >>> plan.write("plan.json")
        >>> model = ts.compile("resnet18.onnx", ["llvm"], plan="plan.json")
        >>> {region.processor for region in model.plan.regions}
        {'cpu'}
    """

    processors: tuple[str, ...]
    regions: tuple[PlannedRegion, ...]
    refusals: tuple[Refusal, ...] = ()
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    splits: tuple[Split, ...] = ()
    reason: str = ""
    costs: str = ""
    remarks: tuple[str, ...] = ()
    considered: tuple[Considered, ...] = ()
    predicted_mj: float | None = None
    execution: Execution | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)

    @staticmethod
    def read(source: PlanLike) -> Plan:
        """The plan in a file, a dict of its JSON, or another plan.

        Raises:
            PlanError: there is no such file, or it contains no plan.
        """
        if isinstance(source, Plan):
            return source
        data, where = FORMAT.read_any(source, "Plan")
        return FORMAT.build(Plan, {"regions": (), **data}, where)

    def to_json(self) -> str:
        """The plan as JSON, one operator per line; the same plan always gives the same text."""
        data = {
            **FORMAT.head,
            "processors": self.processors,
            "shares": dict(self.shares),
            "splits": splits_to_data(self.splits),
            "regions": [_region_data(region) for region in self.regions],
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "reason": self.reason,
            "costs": self.costs,
            "remarks": self.remarks,
            "considered": [_considered_data(one) for one in self.considered],
            **({} if self.predicted_mj is None else {"predicted_mj": self.predicted_mj}),
        }
        return json.dumps(data, indent=1) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON; the file appears complete or not at all."""
        with writing("the plan", PlanError):
            write_whole(as_path(path, "the plan"), self.to_json())

    def processor_of(self) -> dict[str, str]:
        """The processor of each operator, by name."""
        return {name: r.processor for r in self.regions for name in r.operators}

    @property
    def predicted_ns(self) -> int | None:
        """The predicted end of the last region; None unless every region has a prediction."""
        ends = [region.predicted_ns[1] for region in self.regions if region.predicted_ns]
        return max(ends) if ends and len(ends) == len(self.regions) else None

    def explain(self) -> str:
        """A table for people: regions with processor, reason and time; refusals; fallbacks."""
        heads = ("region", "processor", "operators", "predicted ms", "mJ", "why", "")
        body = [_row(region) for region in self.regions]
        kept = [column for column in range(len(heads)) if any(row[column] for row in body)]
        rows = [tuple(row[column] for column in kept) for row in [heads, *body]]
        lines = [*align(rows), ""]
        if self.shares:
            layers = counted(len(self.shares), "layer")
            lines.append(f"computed in shares of their channels: {layers}")
        lines += [f"split by {_split_text(split)}" for split in self.splits]
        if self.predicted_ns is not None:
            energy = "" if self.predicted_mj is None else f", {self.predicted_mj:.3g} mJ"
            lines.append(f"predicted: {self.predicted_ns / 1e6:.3f} ms{energy}")
        if self.considered:
            lines += considered_lines(self.considered)
        elif self.costs:
            lines.append(f"costs: {self.costs}")
        if self.reason:
            lines.append(self.reason)
        lines += self.remarks
        if self.refusals:
            lines += ["refused:", *align(refusal_rows(self.refusals))]
        if self.execution is not None:
            if not self.refusals:
                lines.append("no operator was refused by any processor")
            lines.append(str(self.execution))
        return "\n".join(lines)


PlanLike: TypeAlias = Plan | Mapping[str, object] | str | os.PathLike[str]


_KIND = re.compile(r"^[a-z_]+(\.\w+)+: ")
"""The kind of an operator at the start of a reason: ``relax.nn.conv2d: ``."""


def abbreviate(names: tuple[str, ...], most: int = 6) -> str:
    """Names as a list; of many names the first and the last."""
    if len(names) <= most:
        return ", ".join(names)
    return ", ".join([*names[: most - 2], "...", names[-1]])


def by_reason(refusals: Sequence[Refusal]) -> dict[tuple[str, str], tuple[str, ...]]:
    """The operators that a processor refuses for the same reason, without the operator's kind."""
    groups: dict[tuple[str, str], tuple[str, ...]] = {}
    for refusal in refusals:
        key = refusal.processor, _KIND.sub("", refusal.reason)
        groups[key] = (*groups.get(key, ()), refusal.operator)
    return groups


def refusal_rows(refusals: Sequence[Refusal]) -> list[tuple[str, str, str]]:
    """Processor, operators and reason; one row for each reason."""
    return [
        (who, names[0] if len(names) == 1 else f"{len(names)} operators ({abbreviate(names)})", why)
        for (who, why), names in by_reason(refusals).items()
    ]


def _row(region: PlannedRegion) -> tuple[str, ...]:
    predicted = ""
    if region.predicted_ns is not None:
        predicted = f"{(region.predicted_ns[1] - region.predicted_ns[0]) / 1e6:.3f}"
    energy = "" if region.predicted_mj is None else f"{region.predicted_mj:.3g}"
    count = str(len(region.operators))
    names = abbreviate(region.operators)
    return (region.name, region.processor, count, predicted, energy, region.why, names)


def _split_text(split: Split) -> str:
    data = splits_to_data([split])[0]
    ratios = " : ".join(f"{ratio:g}" for ratio in split.ratios)
    return f"{data['by']}: {split.start} -> {split.end} as {ratios}"


def _region_data(region: PlannedRegion) -> dict[str, Any]:
    data = {"name": region.name, "processor": region.processor, "operators": region.operators}
    fields = {
        "predicted_ns": region.predicted_ns,
        "predicted_mj": region.predicted_mj,
        "why": region.why,
    }
    return {**data, **{key: value for key, value in fields.items() if value}}


def _considered_data(one: Considered) -> dict[str, Any]:
    """A candidate without unknown numbers, so that older versions read the file."""
    data = asdict(one)
    optional = ("predicted_mj", "measured_mj", "least_ns")
    return {k: v for k, v in data.items() if v is not None or k not in optional}


def _check(plan: Plan) -> None:
    """Check everything that does not depend on the network."""
    for kind, items in ((str, plan.processors), (PlannedRegion, plan.regions)):
        if not isinstance(items, tuple) or not all(isinstance(item, kind) for item in items):
            raise PlanError(
                f"expected a tuple of {kind.__name__} for a plan, got {items!r}; "
                "read one with Plan.read, or take a model's"
            )
    for what, names in (
        ("processors", plan.processors),
        ("names of regions", tuple(region.name for region in plan.regions)),
        ("operators", tuple(name for region in plan.regions for name in region.operators)),
    ):
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise PlanError(
                f"expected every one of the plan's {what} once, got {', '.join(twice)} more than "
                "once; remove the others"
            )
    if not plan.processors:
        raise PlanError("expected at least one processor for the plan, got none; name the CPU")
    for name, widths in plan.shares.items():
        _check_numbers(widths, f"shares of {name!r}", len(plan.processors))
    for index, split in enumerate(plan.splits):
        _check_numbers(split.ratios, f"ratios of splits[{index}]", len(plan.processors))
        if isinstance(split, ChannelSplit) and split.block < 1:
            raise PlanError(
                f"expected a positive number for block of splits[{index}], got {split.block}; "
                "correct it"
            )
    for region in plan.regions:
        if region.processor not in plan.processors:
            raise PlanError(
                f"expected one of the plan's processors {list(plan.processors)} for region "
                f"{region.name!r}, got {region.processor!r}; name one of them"
            )
        if not region.name.isidentifier() or region.name == "main":
            raise PlanError(
                "expected a name of letters, digits and underscores, other than main, for a "
                f"region, got {region.name!r}; rename it"
            )
        if region.predicted_ns and region.predicted_ns[0] > region.predicted_ns[1]:
            raise PlanError(
                f"expected start and end for predicted_ns of region {region.name!r}, got "
                f"{region.predicted_ns}; remove the field"
            )
        if not region.operators:
            raise PlanError(
                f"expected at least one operator for region {region.name!r}, got none; "
                "remove the region"
            )


def _check_numbers(numbers: Sequence[float], where: str, count: int) -> None:
    """Check that there is one number per processor, and that two or more take part."""
    valid = all(is_finite(number) and number >= 0 for number in numbers)
    if len(numbers) != count or not valid or sum(number > 0 for number in numbers) < 2:
        raise PlanError(
            f"expected {count} numbers of at least 0, one for each processor of the plan and two "
            f"or more above 0, for the {where}, got {list(numbers)}; correct them"
        )


@dataclass(frozen=True)
class Stray:
    """An operator that fell back to another processor than planned."""

    operator: str
    planned: str
    found: str


@dataclass(frozen=True)
class Execution:
    """How a plan was executed.

    Attributes:
        operators: number of operators of the plan.
        strays: operators that ran elsewhere.
        without_kernel: operators that need no kernel.
    """

    operators: int
    strays: tuple[Stray, ...]
    without_kernel: tuple[str, ...]

    def __str__(self) -> str:
        """``0 of 57 operators fell back``, and which."""
        text = f"{len(self.strays)} of {self.operators} operators fell back"
        moves = (f"{s.operator} from {s.planned} to {s.found}" for s in self.strays)
        return ": ".join(filter(None, (text, ", ".join(moves))))
