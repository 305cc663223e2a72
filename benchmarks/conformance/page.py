"""What the lines of JSON come to: a summary, and a page of the documentation."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from benchmarks.conformance.workers import Line

_ORDER = ("whole", "in part", "refused", "wrong", "raw", "dead", "not exported")
_BAD = ("wrong", "raw", "dead")


def groups_of(lines: Sequence[Line]) -> dict[tuple[str, str, str], list[Line]]:
    """The lines of each suite, target and group."""
    found: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        found[line["suite"], line["target"], line["group"]].append(line)
    return found


def verdict_of(lines: Sequence[Line]) -> str:
    """The verdict on an operator: `wrong` if one case is, `in part` if some are refused."""
    counts = Counter(line["verdict"] for line in lines if line["verdict"] not in ("scope", "done"))
    for bad in _BAD:
        if counts[bad]:
            return bad
    if counts["right"]:
        return "in part" if counts["refused"] else "whole"
    return "refused" if counts["refused"] else "not exported"


def scope_of(lines: Sequence[Line]) -> str:
    """Why no forward pass uses an operator, or `in`."""
    said = [line["detail"] for line in lines if line["verdict"] == "scope"]
    scope = said[-1] if said else "in"
    return "not exported" if scope == "in" and verdict_of(lines) == "not exported" else scope


def summary(lines: Sequence[Line]) -> str:
    """Numbers of cases and of operators, and the names of those that are not right."""
    parts = []
    found = groups_of(lines)
    for suite, target in sorted({key[:2] for key in found}):
        own = {key[2]: value for key, value in found.items() if key[:2] == (suite, target)}
        parts.append(_summary_of(suite, target, own))
    return "\n\n".join(parts)


def _summary_of(suite: str, target: str, groups: dict[str, list[Line]]) -> str:
    cases = Counter(x["verdict"] for own in groups.values() for x in own if x["case"])
    kinds = {name: verdict_of(own) for name, own in groups.items()}
    scopes = {name: scope_of(own) for name, own in groups.items()}
    inside = [name for name in groups if scopes[name] == "in"]
    counts = Counter(kinds[name] for name in inside)
    whole, some = counts["whole"], counts["in part"]
    share = f"{100 * whole / len(inside):.1f} % whole" if inside else ""
    with_parts = f", {100 * (whole + some) / len(inside):.1f} % whole or in part" if inside else ""
    text = [
        f"{suite} on {target}: {sum(cases.values())} cases: {_counted(cases)}",
        f"  of {len(groups)} groups {len(inside)} are in scope: "
        f"{_counted(counts, _ORDER)}: {share}{with_parts}",
        f"  out of scope: {_counted(Counter(s for s in scopes.values() if s != 'in'))}",
    ]
    for kind in (*_BAD, "refused", "in part"):
        names = [n for n in sorted(groups) if kinds[n] == kind and (n in inside or kind in _BAD)]
        if names:
            text.append(f"  {kind}: {', '.join(names)}")
    return "\n".join(text)


def _counted(counts: Counter[str], order: Sequence[str] = ()) -> str:
    names = [n for n in order if counts[n]] or [name for name, _ in counts.most_common()]
    return ", ".join(f"{counts[name]} {name}" for name in names) or "none"


_INTRODUCTION = """# Other people's tests

`python -m benchmarks.conformance SUITE --json FILE` runs the tests that others wrote for operators
and networks; `python -m benchmarks.conformance page --json FILE..` wrote this page. A case is right
(the reference's numbers), refused with a reason, wrong, raw (an error that is not ours) or dead
(the process died).
An operator is whole if all of its samples are right that torch exports, and in part if others are
refused. Out of scope is what no forward pass without randomness and sparse tensors uses:
operators that compute a gradient, that have sparse tensors, results that are no tensors, not
defined or different with each seed, that work in place, or that torch does not run or export.
Suites take hours: the counts of groups and cases say how much of each was run for this page.
"""


def page(lines: Sequence[Line], before: str = "") -> str:
    """The page: sections of what the lines have are new, others are those of the page before."""
    found = groups_of(lines)
    kept = re.split(r"^(?=## )", before, flags=re.MULTILINE)[1:]
    sections = {text.splitlines()[0]: text.rstrip("\n") + "\n" for text in kept}
    for suite, target in sorted({key[:2] for key in found}):
        own = {key[2]: value for key, value in found.items() if key[:2] == (suite, target)}
        first, *rest = _summary_of(suite, target, own).splitlines()
        counts = "\n".join(f"- {line.strip()}" for line in (first, *rest[:2]))
        title = f"## {suite} on {target}"
        sections[title] = f"{title}\n\n{counts}\n\n{_table(own)}"
    return "\n".join([_INTRODUCTION, *(sections[title] for title in sorted(sections))])


_ALIKE = 60
"""Reasons that begin with the same letters stand in one row: names of kernels follow."""


def _table(groups: dict[str, list[Line]]) -> str:
    """Groups that are not whole, by their first reason."""
    together: dict[tuple[str, str], list[str]] = defaultdict(list)
    shown: dict[tuple[str, str], str] = {}
    for name in sorted(groups):
        own, kind = groups[name], verdict_of(groups[name])
        cases = [line for line in own if line["case"]]
        if kind == "whole" or (scope_of(own) != "in" and kind not in _BAD):
            continue
        wanted = kind if kind in _BAD else "refused"
        reasons = [line["detail"] for line in cases if line["verdict"] == wanted]
        right = sum(line["verdict"] == "right" for line in cases)
        reason = re.sub(r"([|<>*_`\\])", r"\\\1", reasons[0][:160]) if reasons else ""
        key = kind, reason[:_ALIKE]
        shown.setdefault(key, reason)
        together[key].append(f"`{name}` ({right} of {len(cases)})")
    rows = ["| verdict | first reason | groups (cases right) |", "| --- | --- | --- |"]
    rows += [f"| {k[0]} | {shown[k]} | {', '.join(names)} |" for k, names in together.items()]
    return "\n".join(rows) + "\n" if len(rows) > 2 else "Every group in scope is whole.\n"
