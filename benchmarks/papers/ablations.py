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

from benchmarks.baselines.hope import schedule_hope_gs, schedule_hope_lp
from benchmarks.baselines.parts import check_schedule
from benchmarks.commands import options
from benchmarks.scheduling_profiles import RATIOS, synthetic_problem, whole
from tutorials import zoo
from tvm_stretch.network.operator_graph import OperatorGraph
from tvm_stretch.plan.scheduling import Problem
from tvm_stretch.plan.scheduling.result import Scheduler
from tvm_stretch.read import load_network

Variant: TypeAlias = tuple[str, Scheduler | None, Scheduler | None, bool]
"""Name, both schedulers (None: nothing changes for it), whether tensors are cached."""

PAPER: Variant = ("as in the paper", schedule_hope_lp, schedule_hope_gs, True)


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


def latency(scheduler: Scheduler, problem: Problem) -> int:
    """Nanoseconds of a checked schedule."""
    result = scheduler(problem)
    check_schedule(problem, result)
    return result.makespan


def rows(problem: Problem) -> Iterator[tuple[str, str, str]]:
    """Name and both cells of each row; the first has milliseconds."""
    _, lp, gs, _ = PAPER
    assert lp is not None and gs is not None
    usual = latency(lp, problem), latency(gs, problem)
    yield PAPER[0], f"{usual[0] / 1e6:.2f} ms", f"{usual[1] / 1e6:.2f} ms"
    for name, *schedulers, caches in variants():
        given = replace(problem, caching=caches)
        cells = [
            "" if scheduler is None else f"{latency(scheduler, given) / before:.3f}"
            for scheduler, before in zip(schedulers, usual, strict=True)
        ]
        yield name, cells[0], cells[1]


def main() -> None:
    """Print the table."""
    args = options(
        __doc__,
        None,
        ("networks*", ["squeezenet1_0", "inception_v3"]),
        ("--profile", "1:3"),
        profile=RATIOS,
    )
    lines = ["| network | HOPE | HOPE:LP | HOPE:GS |", "| --- " * 4 + "|"]
    for network in args.networks:
        graph = OperatorGraph(load_network(zoo.build(network), None)["main"])
        for cells in rows(whole(synthetic_problem(graph, args.profile))):
            lines.append(f"| {network} | {' | '.join(cells)} |")
    print("\n".join(lines))  # together, because the solver prints, too


if __name__ == "__main__":
    main()
