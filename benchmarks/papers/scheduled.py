"""HOPE's schedulers on roofs of processors: figures that are counted, without a phone.

    python -m benchmarks.papers.scheduled mulayer [squeezenet1_0 ..]     HOPE, figure 6
    python -m benchmarks.papers.scheduled ablations [squeezenet1_0 ..] [--profile 1:3]
    python -m benchmarks.papers.scheduled several                        networks of one app

`mulayer`: beside µLayer on seven networks, where handing over converts no layout: the paper runs
µLayer on a library whose CPU and GPU kernels share one. Both schedulers get such hand-overs here,
on a GPU that is three times as fast as the CPU, or as fast. Shown is by how many percent HOPE's
latency is below µLayer's; the paper's are at most 40.6, 35.9 and 28.0 % on its three phones, and
none for the LSTM.

`ablations`: HOPE without one of its parts, or with another value of a constant:

    tensor caching   without, every operator that reads a tensor receives it again
    node merging     without, short operators are placed one by one
    N_T              pieces of the integer programs have fewer operators; 12
    ε                how much larger than half a part may be, if it can; 0.2
    K                operators that the greedy search places together; 4 for two processors

Cells are latencies over those of the paper's setting, by HOPE:LP and HOPE:GS.

`several`: requests for two networks come at once, on NN-Stretch's phone. `fastest` runs one after
the other on the processor that is the fastest for it, as TFLite does. `Band` (Jeong et al., MobiSys
2022) cuts each network where the processors that support its operators change, and gives each
sub-graph to the processor that is expected to finish it first. `plans` runs one network after the
other, each by our plan for all processors. `interleaved` schedules the operators of all requests
together, as plans for networks of `ts.join` do. Band's paper states up to 5.04 times the speed of
TFLite for an app with several networks.

The independent checker passes every schedule first; `benchmarks.scheduling_profiles` has the roofs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import mean
from typing import TypeAlias

from benchmarks.baselines import schedule_hope_gs, schedule_hope_lp, schedule_mulayer
from benchmarks.baselines.anneal import schedule
from benchmarks.baselines.bounds import check_schedule
from benchmarks.commands import markdown, options
from benchmarks.schedulers import NETWORKS
from benchmarks.scheduling_profiles import (
    RATIOS,
    graph_of,
    one_layout,
    spans,
    synthetic_problem,
    whole,
)
from tvm_stretch.plan.scheduling.problem import Problem, Tensor
from tvm_stretch.plan.scheduling.result import Scheduler

HOPE: Mapping[str, Scheduler] = {"HOPE:GS": schedule_hope_gs, "HOPE:LP": schedule_hope_lp}
PROFILES = ("1:3", "1:1")  # of `mulayer`


def mulayer_rows(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Percent of µLayer's latency that HOPE saves, of each network and in the mean."""
    every = []
    for name in names:
        saved = []
        for profile in PROFILES:
            problem = one_layout(synthetic_problem(graph_of(name), profile))
            makespans = spans(problem, {"µLayer": schedule_mulayer, **HOPE})
            saved += [100 * (1 - makespans[who] / makespans["µLayer"]) for who in HOPE]
        every.append(saved)
        yield name, *(f"{one:.1f}" for one in saved)
    yield "mean", *(f"{mean(column):.1f}" for column in zip(*every, strict=True))


def mulayer(args: Namespace) -> Iterator[str]:
    """HOPE, figure 6."""
    heads = [f"{profile} {who}, %" for profile in PROFILES for who in HOPE]
    yield from markdown(("less than µLayer", *heads), mulayer_rows(args.networks or NETWORKS))


# --- HOPE without its parts -----------------------------------------------------------------------

Variant: TypeAlias = tuple[str, Scheduler | None, Scheduler | None, bool]
"""Name, both schedulers (None: nothing changes for it), whether tensors are cached."""


def variants() -> Iterator[Variant]:
    """Every part left out, and every constant at other values."""
    lp, gs = schedule_hope_lp, schedule_hope_gs
    yield "no tensor caching", lp, gs, False
    yield "no node merging", partial(lp, merges=False), partial(gs, merges=False), True
    for piece in (4, 8, 16):
        yield f"N_T = {piece}", partial(lp, piece=piece), None, True
    for balance in (0.0, 0.5, 1.0):
        yield f"ε = {balance:g}", partial(lp, balance=balance), None, True
    for width in (1, 2, 3, 6):
        yield f"K = {width}", None, partial(gs, width=width), True


def ablation_rows(problem: Problem) -> Iterator[tuple[str, str, str]]:
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


def ablations(args: Namespace) -> Iterator[str]:
    """HOPE's parts."""
    rows = (
        (network, *cells)
        for network in args.networks or ("squeezenet1_0", "inception_v3")
        for cells in ablation_rows(whole(synthetic_problem(graph_of(network), args.profile)))
    )
    yield from markdown(("network", "HOPE", "HOPE:LP", "HOPE:GS"), rows)


# --- several networks at once ---------------------------------------------------------------------

PAIRS = (("squeezenet1_0", "inception_v3"), ("squeezenet1_0", "lstm"))
PHONES = ("mi9 C+G", "mi9 C+G+D")
REQUESTS = 2  # of each network


def together(problems: Sequence[Problem]) -> Problem:
    """All networks as one problem; they share processors and nothing else."""
    operators, tensors = [], []
    for number, one in enumerate(problems):
        first = len(operators)
        operators += [replace(op, name=f"{number}.{op.name}") for op in one.operators]
        for t in one.tensors:
            readers = tuple(first + reader for reader in t.consumers)
            tensors.append(Tensor(f"{number}.{t.name}", t.bytes, first + t.producer, readers))
    return replace(problems[0], operators=tuple(operators), tensors=tuple(tensors))


def fastest(problem: Problem) -> int:
    """Nanoseconds on the processor that supports all and takes the least time."""
    operators = range(len(problem.operators))
    able = set(range(len(problem.processors))).intersection(*problem.supported)
    return min(sum(problem.cost(op, p) for op in operators) for p in able)


def band(requests: Sequence[Problem]) -> int:
    """Nanoseconds until all requests are done, each sub-graph where it is expected to end first."""
    free = [0] * len(requests[0].processors)
    for problem in requests:
        ready = 0
        for able, operators in subgraphs(problem):
            ends = {
                p: max(ready, free[p]) + sum(problem.cost(op, p) for op in operators) for p in able
            }
            place = min(ends, key=ends.__getitem__)
            ready = free[place] = ends[place]
    return max(free)


def subgraphs(problem: Problem) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Operators in order, cut where the processors that support them change.

    Inputs and outputs cost nothing, and wait for no processor.
    """
    counted = [op for op in problem.sequence if problem.cost(op, problem.fastest(op))]
    for able, operators in groupby(counted, key=lambda op: problem.supported[op]):
        yield able, list(operators)


def requests_row(pair: Sequence[str], profile: str) -> tuple[str, ...]:
    """Milliseconds of each way."""
    problems = {name: whole(synthetic_problem(graph_of(name), profile)) for name in pair}
    requests = [problems[name] for _ in range(REQUESTS) for name in pair]
    result = schedule(together(requests))
    check_schedule(together(requests), result)
    plans = REQUESTS * sum(schedule(problem).makespan for problem in problems.values())
    after = sum(fastest(problem) for problem in requests)
    times = (after, band(requests), plans, result.makespan)
    shown = (f"{ns / 1e6:.1f} ({after / ns:.2f})" for ns in times)
    return f"{REQUESTS} x {' and '.join(pair)}", profile, *shown


def several(_args: Namespace) -> Iterator[str]:
    """Band, and ours."""
    yield from ("Milliseconds, and how many times as fast as `fastest`.", "")
    heads = "requests", "profile", "fastest", "Band", "plans", "interleaved"
    yield from markdown(heads, (requests_row(pair, own) for pair in PAIRS for own in PHONES))


TABLES: Mapping[str, Callable[[Namespace], Iterator[str]]] = {
    "mulayer": mulayer,
    "ablations": ablations,
    "several": several,
}


def main() -> None:
    """Print a table."""
    words = (("what", str), ("networks*", str), ("--profile", "1:3", "of `ablations`"))
    args = options(__doc__, None, *words, what=TABLES, profile=RATIOS)
    print("\n".join(list(TABLES[args.what](args))))  # together, because the solver prints, too


if __name__ == "__main__":
    main()
