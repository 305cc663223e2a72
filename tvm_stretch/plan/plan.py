"""The plan: which processor runs which operators, in which order. A file that people can edit.

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

Operators are the calls of canonical Relax `main`, by the names of their binding variables; `shares`
and `splits` cut some of them into parts. Both have one number for each processor of the plan, in
their order, 0 for those that take no part. Regions name the operators after that; they stand in an
order in which they could run one after the other; those of one processor do run in that order, and
operators in the order of their region. To edit shares or splits, leave `regions` out: parts then go
to the processors that the numbers name, everything else to the first one that supports it.
`refusals` is what the compiler found out about processors that cannot run an operator; it, `costs`,
`reason` and each region's `why` and `predicted_ns` have no influence.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tvm_stretch.errors import PlanError
from tvm_stretch.plan.execution import Execution
from tvm_stretch.plan.splits import Split, splits_from_data, splits_to_data

FORMAT = "tvm_stretch.plan"
VERSION = 1


@dataclass(frozen=True)
class PlannedRegion:
    """Operators that one processor runs as one unit, in this order.

    Attributes:
        name: as in messages and timelines.
        processor: one of the plan's processors.
        operators: names of canonical Relax.
        predicted_ns: start and end in nanoseconds from the start of the run, where a planner
            predicted them; timelines show them.
        why: why it runs there, for people.
    """

    name: str
    processor: str
    operators: tuple[str, ...]
    predicted_ns: tuple[int, int] | None = None
    why: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why a processor cannot run an operator."""

    processor: str
    operator: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """See the module docstring; the first processor is the CPU.

    Attributes:
        processors: names of all processors of the model.
        regions: in an order in which they could run one after the other.
        refusals: why processors cannot run certain operators.
        shares: layers whose output channels are computed in parts, and how many each processor has.
        splits: segments that are computed in bands of rows or in shares of channels.
        reason: why this plan was chosen, and against what, for people.
        costs: which cost model predicted it, for people.
        execution: where its operators really run, if a model does; not part of the file.
    """

    processors: tuple[str, ...]
    regions: tuple[PlannedRegion, ...]
    refusals: tuple[Refusal, ...] = ()
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    splits: tuple[Split, ...] = ()
    reason: str = ""
    costs: str = ""
    execution: Execution | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check(self)

    @staticmethod
    def read(source: PlanLike) -> Plan:
        """The plan in a file, a dict of its JSON, or another plan.

        Raises:
            PlanError: there is no such file, or it is no plan.
        """
        if isinstance(source, Plan):
            return source
        if isinstance(source, Mapping):
            return _from_data(dict(source), "the plan")
        if not isinstance(source, str | os.PathLike):
            raise PlanError(
                f"expected a Plan, the path of its file or a dict for plan, got "
                f"{type(source).__name__}; give one of these"
            )
        path = Path(source)
        try:
            return _from_data(json.loads(path.read_text(encoding="utf-8")), str(path))
        except OSError as error:
            raise PlanError(
                f"expected a readable file for the plan, got {error}; check the path"
            ) from error
        except ValueError as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"expected JSON for {path}, got {error}; correct the file") from error

    def to_json(self) -> str:
        """The plan as JSON, one operator per line; the same plan always gives the same text."""
        data = {
            "format": FORMAT,
            "version": VERSION,
            "processors": self.processors,
            "shares": dict(self.shares),
            "splits": splits_to_data(self.splits),
            "regions": [_region_data(region) for region in self.regions],
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "reason": self.reason,
            "costs": self.costs,
        }
        return json.dumps(data, indent=1) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON; the file appears complete or not at all."""
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise PlanError(
                f"expected a place to write the plan to, got {error}; check the path"
            ) from error

    def processor_of(self) -> dict[str, str]:
        """The processor of each operator."""
        return {name: r.processor for r in self.regions for name in r.operators}

    @property
    def predicted_ns(self) -> int | None:
        """When the last region ends, if all of them are predicted."""
        ends = [region.predicted_ns[1] for region in self.regions if region.predicted_ns]
        return max(ends) if ends and len(ends) == len(self.regions) else None

    def explain(self) -> str:
        """A table for people: regions, where, why and when they run; every refusal; fallbacks."""
        heads = ("region", "processor", "operators", "predicted ms", "why", "")
        body = [_row(region) for region in self.regions]
        kept = [column for column in range(len(heads)) if any(row[column] for row in body)]
        rows = [tuple(row[column] for column in kept) for row in [heads, *body]]
        lines = [*_align(rows), ""]
        if self.shares:
            lines.append(f"{len(self.shares)} layers are computed in shares of their channels")
        lines += [f"split by {_split_text(split)}" for split in self.splits]
        if self.predicted_ns is not None:
            lines.append(f"predicted: {self.predicted_ns / 1e6:.3f} ms")
        if self.costs:
            lines.append(f"costs: {self.costs}")
        if self.reason:
            lines.append(self.reason)
        if self.refusals:
            lines.append("refused:")
            lines.extend(_align([(r.processor, r.operator, r.reason) for r in self.refusals]))
        if self.execution is not None:
            if not self.refusals:
                lines.append("no operator was refused by any processor")
            lines.append(str(self.execution))
        return "\n".join(lines)


PlanLike: TypeAlias = Plan | Mapping[str, Any] | str | os.PathLike[str]


def _abbreviate(names: tuple[str, ...], most: int = 6) -> str:
    if len(names) <= most:
        return ", ".join(names)
    return ", ".join([*names[: most - 2], "...", names[-1]])


def _row(region: PlannedRegion) -> tuple[str, ...]:
    predicted = ""
    if region.predicted_ns is not None:
        predicted = f"{(region.predicted_ns[1] - region.predicted_ns[0]) / 1e6:.3f}"
    count = str(len(region.operators))
    names = _abbreviate(region.operators)
    return (region.name, region.processor, count, predicted, region.why, names)


def _split_text(split: Split) -> str:
    data = splits_to_data([split])[0]
    ratios = " : ".join(f"{ratio:g}" for ratio in split.ratios)
    return f"{data['by']}: {split.start} -> {split.end} as {ratios}"


def _align(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _from_data(data: Any, where: str) -> Plan:
    """A plan from parsed JSON, every field checked."""
    if not isinstance(data, dict):
        raise PlanError(f"expected an object for {where}, got {type(data).__name__}; see Plan")
    found = (data.get("format"), data.get("version"))
    if found != (FORMAT, VERSION):
        raise PlanError(
            f"expected {(FORMAT, VERSION)} for format and version of {where}, got {found}; "
            "write the plan with this version of tvm_stretch"
        )
    fields = ("processors", "regions", "refusals", "shares", "splits", "reason", "costs")
    unknown = set(data) - {"format", "version", *fields}
    if unknown:
        raise PlanError(f"expected no field {sorted(unknown)} in {where}, got it; remove it")
    regions = data.get("regions", [])
    if not isinstance(regions, list) or not all(isinstance(item, dict) for item in regions):
        raise PlanError(
            f"expected a list of objects for regions of {where}, got {regions!r}; correct it"
        )
    return Plan(
        processors=_strings(data, "processors", where),
        regions=tuple(_region(item, f"regions[{i}] of {where}") for i, item in enumerate(regions)),
        refusals=_refusals(data.get("refusals", []), where),
        shares=_shares(data.get("shares", {}), where),
        splits=splits_from_data(data.get("splits", []), where),
        reason=str(data.get("reason", "")),
        costs=str(data.get("costs", "")),
    )


def _shares(data: Any, where: str) -> dict[str, tuple[int, ...]]:
    def is_share(value: Any) -> bool:
        return isinstance(value, list | tuple) and all(type(part) is int for part in value)

    if not isinstance(data, Mapping) or not all(map(is_share, data.values())):
        raise PlanError(
            f"expected lists of channel counts by operator for shares of {where}, got {data!r}; "
            'write {"conv2d": [32, 32]}'
        )
    return {str(name): tuple(parts) for name, parts in data.items()}


def _region_data(region: PlannedRegion) -> dict[str, Any]:
    data = {"name": region.name, "processor": region.processor, "operators": region.operators}
    known = {"predicted_ns": region.predicted_ns, "why": region.why}
    return {**data, **{key: value for key, value in known.items() if value}}


def _region(item: dict[str, Any], where: str) -> PlannedRegion:
    if set(item) - {"predicted_ns", "why"} != {"name", "processor", "operators"}:
        raise PlanError(
            f"expected the fields name, processor and operators for {where}, got "
            f"{sorted(item)}; correct them"
        )
    for key in ("name", "processor"):
        if not isinstance(item[key], str):
            raise PlanError(f"expected a string for {key} of {where}, got {item[key]!r}; quote it")
    operators = _strings(item, "operators", where)
    predicted = _interval(item.get("predicted_ns"), where)
    why = str(item.get("why", ""))
    return PlannedRegion(item["name"], item["processor"], operators, predicted, why)


def _interval(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    numbers = list(value) if isinstance(value, list | tuple) else []
    if len(numbers) != 2 or not all(isinstance(n, int) for n in numbers) or numbers[0] > numbers[1]:
        raise PlanError(
            f"expected start and end for predicted_ns of {where}, got {value!r}; remove the field"
        )
    return (numbers[0], numbers[1])


def _refusals(items: Any, where: str) -> tuple[Refusal, ...]:
    try:
        return tuple(Refusal(**{str(key): str(item[key]) for key in item}) for item in items)
    except (TypeError, KeyError, AttributeError) as error:
        raise PlanError(
            f"expected objects with processor, operator and reason for refusals of {where}, got "
            f"{items!r}; remove the field"
        ) from error


def _strings(data: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = data.get(key)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise PlanError(f"expected a list of names for {key} of {where}, got {value!r}; correct it")
    return tuple(value)


def _check(plan: Plan) -> None:
    """What can be said without knowing the network."""
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
        if not region.operators:
            raise PlanError(
                f"expected at least one operator for region {region.name!r}, got none; "
                "remove the region"
            )


def _check_numbers(numbers: Sequence[float], where: str, count: int) -> None:
    """One number for each processor; two or more of them take part."""
    valid = all(math.isfinite(number) and number >= 0 for number in numbers)
    if len(numbers) != count or not valid or sum(number > 0 for number in numbers) < 2:
        raise PlanError(
            f"expected {count} numbers of at least 0, one for each processor of the plan and two "
            f"or more above 0, for the {where}, got {list(numbers)}; correct them"
        )
