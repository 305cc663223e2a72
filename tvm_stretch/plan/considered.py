"""What a search considered before it chose a plan, as a table.

candidate           predicted ms  costs  measured ms  verdict
cpu alone                128.000  2          131.200  beaten
9 layers in shares        11.500  1           80.100  chosen: x0.61 of cpu alone (95 % ..)
costs 1: typical of such processors, nothing was measured there
costs 2: typical of such processors, nothing was measured there, corrected by a run
predictions by different costs do not compare
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
    """

    what: str
    predicted_ns: int | None = None
    costs: str = ""
    measured_ns: int | None = None
    verdict: str = ""
    predicted_mj: float | None = None
    measured_mj: float | None = None


def considered_lines(candidates: Sequence[Considered]) -> Iterator[str]:
    """The table of the module docstring."""
    sources = list(dict.fromkeys(one.costs for one in candidates if one.predicted_ns is not None))
    heads = ("candidate", "predicted ms", "predicted mJ", "costs", "measured ms", "measured mJ")
    rows = [(*heads, "verdict")]
    for one in candidates:
        number = "" if one.predicted_ns is None else str(sources.index(one.costs) + 1)
        predicted, measured = map(_milliseconds, (one.predicted_ns, one.measured_ns))
        energies = ("" if mj is None else f"{mj:.3g}" for mj in (one.predicted_mj, one.measured_mj))
        first, second = energies
        rows.append((one.what, predicted, first, number, measured, second, one.verdict))
    shown = [i for i, head in enumerate(heads) if "mJ" not in head or any(r[i] for r in rows[1:])]
    yield from align([tuple(row[i] for i in (*shown, -1)) for row in rows])
    yield from (f"costs {number}: {source}" for number, source in enumerate(sources, start=1))
    if len(sources) > 1:
        yield "predictions by different costs do not compare"


def _milliseconds(ns: int | None) -> str:
    return "" if ns is None else f"{ns / 1e6:.3f}"


def align(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Lines in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
