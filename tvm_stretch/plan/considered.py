"""What a search considered before it chose a plan, as a table.

candidate           predicted ms  above least  costs  measured ms  verdict
cpu alone                128.000  113 %        2          131.200  beaten
9 layers in shares        11.500  9 %          1           80.100  chosen: x0.61 of cpu alone ..
costs 1: typical of such processors, nothing was measured there
costs 2: typical of such processors, nothing was measured there, corrected by a run
predictions by different costs do not compare

The least time is a bound of all plans by the same costs: all processors always busy, nothing handed
over (`plan/search/candidates.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Considered:
    """One candidate.

    Attributes:
        what: in words.
        predicted_ns: the latency that a cost model predicted.
        costs: which cost model.
        measured_ns: the median latency, if the candidate was built and run.
        verdict: whether it was chosen, or why not.
        predicted_mj: the millijoules of a run that were predicted, if powers are known.
        measured_mj: those that a meter measured.
        least_ns: a bound of the latency of any plan by the same costs.
    """

    what: str
    predicted_ns: int | None = None
    costs: str = ""
    measured_ns: int | None = None
    verdict: str = ""
    predicted_mj: float | None = None
    measured_mj: float | None = None
    least_ns: int | None = None

    @property
    def gap(self) -> float | None:
        """By how much the predicted latency is above the bound; None if one is not known."""
        if self.predicted_ns is None or not self.least_ns:
            return None
        return self.predicted_ns / self.least_ns - 1


def told_once(candidates: Sequence[Considered]) -> list[Considered]:
    """The candidates without those that are listed above, or were built and run below.

    A search that is repeated by other costs considers each processor alone again.
    """
    told: list[Considered] = []
    ran = {one.what for one in candidates if one.measured_ns is not None}
    for one in candidates:
        if one.measured_ns is not None or one.what not in ran | {other.what for other in told}:
            told.append(one)
    return told


def considered_lines(considered: Sequence[Considered]) -> Iterator[str]:
    """The table of the module docstring."""
    candidates = told_once(considered)
    sources = list(dict.fromkeys(one.costs for one in candidates if one.predicted_ns is not None))
    heads = ("candidate", "predicted ms", "above least", "predicted mJ", "costs", "measured ms")
    rows = [(*heads, "measured mJ", "verdict")]
    for one in candidates:
        number = "" if one.predicted_ns is None else str(sources.index(one.costs) + 1)
        predicted, measured = map(_milliseconds, (one.predicted_ns, one.measured_ns))
        first, second = map(_millijoules, (one.predicted_mj, one.measured_mj))
        gap = "" if one.gap is None else f"{100 * one.gap:.0f} %"
        rows.append((one.what, predicted, gap, first, number, measured, second, one.verdict))
    optional = {i for i, head in enumerate(rows[0]) if "mJ" in head or head == "above least"}
    shown = [i for i in range(len(rows[0])) if i not in optional or any(r[i] for r in rows[1:])]
    yield from align([tuple(row[i] for i in shown) for row in rows])
    yield from (f"costs {number}: {source}" for number, source in enumerate(sources, start=1))
    if len(sources) > 1:
        yield "predictions by different costs do not compare"


def _milliseconds(ns: int | None) -> str:
    return "" if ns is None else f"{ns / 1e6:.3f}"


def _millijoules(mj: float | None) -> str:
    return "" if mj is None else f"{mj:.3g}"


def align(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lines in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
