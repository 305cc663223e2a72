"""``tvm-stretch diff before.html after.html``: what changed between two reports.

                    before     after
    measured        12.40 ms   9.10 ms    x0.73
    kernels         57         61
    conv_3: cpu -> opencl
    time of kernels with the same operators
    conv_5 + relu_5   2.10 ms   1.30 ms   -0.80 ms

Kernels are compared by their operators. What was fused otherwise stands in the lists of kernels
that only one report has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tvm_stretch.base.errors import InputError
from tvm_stretch.plan.considered import align

_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)
_MOST = 1 << 28  # bytes of a page: the largest network's is below a hundredth
_Row: TypeAlias = tuple[str, float | None, float | None]


@dataclass(frozen=True)
class ReportDifference:
    """What two reports have different."""

    facts: tuple[_Row, ...]  # latencies, sizes and counts: their name, before, after
    # operators on another processor: their name, before, after
    moved: tuple[tuple[str, str, str], ...]
    # kernels of the same operators: their name, nanoseconds before, after; those that changed most
    # first
    changed: tuple[_Row, ...]
    # kernels whose operators are no kernel of the other report, and nanoseconds
    only_before: tuple[tuple[str, float], ...]
    only_after: tuple[tuple[str, float], ...]  # those of the other one
    remarks: tuple[str, ...] = ()  # why the reports may not compare

    def __str__(self) -> str:
        """The tables of the module docstring; at most 20 kernels each."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from self.remarks
        rows = [("", "before", "after", "")]
        for name, before, after in self.facts:
            ratio = f"x{after / before:.2f}" if before and after and "ns" in name else ""
            rows.append((_called(name), _shown(name, before), _shown(name, after), ratio))
        yield from align(rows)
        yield from (f"{name}: {before} -> {after}" for name, before, after in self.moved)
        if self.changed:
            yield "time of kernels with the same operators"
            yield from align(
                [
                    (name, _ms(before), _ms(after), _ms((after or 0) - (before or 0), "+"))
                    for name, before, after in self.changed[:20]
                ]
            )
        for title, kernels in (("before", self.only_before), ("after", self.only_after)):
            if kernels:
                yield f"kernels only {title}"
                yield from align([(name, _ms(ns)) for name, ns in kernels[:20]])


def read_report(path: Path) -> dict[str, Any]:
    """The data in a page that `Model.report` wrote."""
    try:
        size = path.stat().st_size
        matches = _DATA.findall(path.read_text(encoding="utf-8")) if size < _MOST else []
        data = json.loads(matches[0]) if len(matches) == 1 else {}
        fault = _fault(data)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error!s:.200}"
    if fault:
        raise InputError(
            f"expected a page that model.report() wrote, got {path}: {fault}; write it again"
        )
    return dict(data)


def _fault(data: Any) -> str:
    """Why `compare_reports` could not read it; empty if it can."""
    places, regions = range(len(data["processors"])), range(len(data["regions"]))
    if any(region["processor"] not in places for region in data["regions"]):
        return "a region without a processor"
    for node in data["nodes"]:
        named = all(isinstance(operator, str) for operator in node["operators"])
        if node["region"] not in regions or not named or not isinstance(node["ns"], int | None):
            return "a kernel without region, operators or time"
    facts = (*_facts(data).values(), data["machine"], data["title"])
    return "" if all(isinstance(fact, int | float | str | None) for fact in facts) else "odd facts"


def compare_reports(before: Mapping[str, Any], after: Mapping[str, Any]) -> ReportDifference:
    """The difference between what `read_report` gave."""
    first, second = _facts(before), _facts(after)
    facts = [(name, first[name], second[name]) for name in first]
    old, new = _kernels(before), _kernels(after)
    both = [(" + ".join(key), old[key], new[key]) for key in old if key in new]
    changed = [row for row in both if row[1] is not None and row[2] is not None]
    changed.sort(key=lambda row: -abs((row[2] or 0) - (row[1] or 0)))
    places, places_after = _places(before), _places(after)
    return ReportDifference(
        tuple(facts),
        tuple(
            (name, place, places_after[name])
            for name, place in places.items()
            if places_after.get(name, place) != place
        ),
        tuple(changed),
        _only(old, new),
        _only(new, old),
        tuple(_remarks(before, after)),
    )


def _facts(data: Mapping[str, Any]) -> dict[str, float | None]:
    run, plan = data["run"], data["plan"]
    return {
        "measured_ns": None if run is None else run["duration"],
        "predicted_ns": None if plan is None else plan["predicted"],
        "overlap": None if run is None else run["overlap"],
        "kernels": len(data["nodes"]),
        "regions": len(data["regions"]),
        "arena_bytes": data["memory"]["arena"],
        "refused": None if plan is None else plan.get("refused", len(plan["refusals"])),
    }


def _kernels(data: Mapping[str, Any]) -> dict[tuple[str, ...], float | None]:
    kernels: dict[tuple[str, ...], float | None] = {}
    for node in data["nodes"]:  # a layer in shares is several kernels of the same operators
        key, ns = tuple(node["operators"]), node["ns"]
        entry = kernels.get(key)
        kernels[key] = ns if entry is None else entry + (ns or 0)
    return kernels


def _places(data: Mapping[str, Any]) -> dict[str, str]:
    """The processors of each operator, in words."""
    processors: dict[str, set[str]] = {}
    for node in data["nodes"]:
        processor = data["processors"][data["regions"][node["region"]]["processor"]]
        for operator in node["operators"]:
            processors.setdefault(operator, set()).add(processor)
    return {operator: " and ".join(sorted(places)) for operator, places in processors.items()}


def _only(
    some: Mapping[tuple[str, ...], float | None], others: Mapping[tuple[str, ...], float | None]
) -> tuple[tuple[str, float], ...]:
    rows = [(" + ".join(key), ns or 0) for key, ns in some.items() if key not in others]
    return tuple(sorted(rows, key=lambda row: -row[1]))


def _remarks(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for what, name in (("networks", "title"), ("machines", "machine")):
        if before[name] != after[name]:
            first, second = (data[name] or "not measured" for data in (before, after))
            yield f"other {what}: {first} and {second}"


def _called(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_bytes")


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_ns"):
        return _ms(value)
    if name == "overlap":
        return f"{value:.0%}"
    return f"{value / 1e6:.2f} MB" if name.endswith("_bytes") else f"{value:.0f}"


def _ms(ns: float | None, sign: str = "") -> str:
    return "-" if ns is None else f"{ns / 1e6:{sign}.3f} ms"
