"""HOPE without one of its parts, or with another value of a constant; all else as in the paper.

    python -m benchmarks.papers.ablations [squeezenet1_0 inception_v3] [--profile 1:3]

    tensor caching   without, every operator that reads a tensor receives it again
    node merging     without, short operators are placed one by one
    N_T              pieces of the integer programs have fewer operators; 12
    ε                how much larger than half a part may be, if it can; 0.2
    K                operators that the greedy search places together; 4 for two processors

Cells are latencies over those of the paper's setting, by HOPE:LP and HOPE:GS; every schedule passes
the independent checker first. `benchmarks/scheduling_profiles.py` says what the profiles are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from benchmarks.commands import markdown, options
from benchmarks.scheduling_profiles import RATIOS, graph_of, spans, synthetic_problem, whole
from tvm_stretch.plan.scheduling import Problem
from tvm_stretch.plan.scheduling.hope import schedule_hope_gs, schedule_hope_lp
from tvm_stretch.plan.scheduling.result import Scheduler

Variant: TypeAlias = tuple[str, Scheduler | None, Scheduler | None, bool]
"""Name, both schedulers (None: nothing changes for it), whether tensors are cached."""


def variants() -> Iterator[Variant]:
    """Every part left out, and every constant at other values."""
    yield "no tensor caching", schedule_hope_lp, schedule_hope_gs, False
    without = {"merges": False}
    yield (
        "no node merging",
        partial(schedule_hope_lp, **without),
        partial(schedule_hope_gs, **without),
        True,
    )
    for piece in (4, 8, 16):
        yield f"N_T = {piece}", partial(schedule_hope_lp, piece=piece), None, True
    for balance in (0.0, 0.5, 1.0):
        yield f"ε = {balance:g}", partial(schedule_hope_lp, balance=balance), None, True
    for width in (1, 2, 3, 6):
        yield f"K = {width}", None, partial(schedule_hope_gs, width=width), True


def rows(problem: Problem) -> Iterator[tuple[str, str, str]]:
    """Name and both cells of each row; the first has milliseconds."""
    usual = list(spans(problem, {"lp": schedule_hope_lp, "gs": schedule_hope_gs}).values())
    yield "as in the paper", f"{usual[0] / 1e6:.2f} ms", f"{usual[1] / 1e6:.2f} ms"
    for name, *schedulers, caches in variants():
        given = replace(problem, caching=caches)
        lp, gs = (
            f"{spans(given, {name: scheduler})[name] / before:.3f}" if scheduler else ""
            for scheduler, before in zip(schedulers, usual, strict=True)
        )
        yield name, lp, gs


def main() -> None:
    """Print the table."""
    args = options(
        __doc__,
        None,
        ("networks*", ["squeezenet1_0", "inception_v3"]),
        ("--profile", "1:3"),
        profile=RATIOS,
    )
    every = (
        (network, *cells)
        for network in args.networks
        for cells in rows(whole(synthetic_problem(graph_of(network), args.profile)))
    )
    lines = markdown(("network", "HOPE", "HOPE:LP", "HOPE:GS"), every)
    print("\n".join(list(lines)))  # together, because the solver prints, too


if __name__ == "__main__":
    main()
