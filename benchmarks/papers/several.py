"""Several networks on one phone: one after the other, as Band schedules them, and interleaved.

    python -m benchmarks.papers.several

Requests for two networks come at once. `fastest` runs one after the other on the processor that is
the fastest for it, as TFLite does. `Band` (Jeong et al., MobiSys 2022) cuts each network where the
processors that support its operators change, and gives each sub-graph to the processor that is
expected to finish it first. `plans` runs one network after the other, each by our plan for all
processors. `interleaved` schedules the operators of all requests together, as plans for networks of
`ts.join` do. Schedules are checked by the independent checker; the profile is NN-Stretch's phone.
Band's paper states up to 5.04 times the speed of TFLite for an app with several networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from benchmarks.baselines.anneal import schedule
from benchmarks.baselines.bounds import check_schedule
from benchmarks.commands import markdown, options
from benchmarks.scheduling_profiles import graph_of, synthetic_problem, whole
from tvm_stretch.plan.scheduling.problem import Problem, Tensor

PAIRS = (("squeezenet1_0", "inception_v3"), ("squeezenet1_0", "lstm"))
PROFILES = ("mi9 C+G", "mi9 C+G+D")
REQUESTS = 2  # of each network


def together(problems: Sequence[Problem]) -> Problem:
    """All networks as one problem; they share processors and nothing else."""
    operators, tensors = [], []
    for number, one in enumerate(problems):
        first = len(operators)
        operators += [replace(op, name=f"{number}.{op.name}") for op in one.operators]
        tensors += [
            Tensor(
                f"{number}.{t.name}",
                t.bytes,
                first + t.producer,
                tuple(first + reader for reader in t.consumers),
            )
            for t in one.tensors
        ]
    return replace(problems[0], operators=tuple(operators), tensors=tuple(tensors))


def fastest(problem: Problem) -> int:
    """Nanoseconds on the processor that supports all and takes the least time."""
    places = range(len(problem.processors))
    operators = range(len(problem.operators))
    able = [p for p in places if all(p in problem.supported[op] for op in operators)]
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


def row(pair: Sequence[str], profile: str) -> tuple[str, ...]:
    """Milliseconds of each way."""
    problems = {name: whole(synthetic_problem(graph_of(name), profile)) for name in pair}
    requests = [problems[name] for _ in range(REQUESTS) for name in pair]
    result = schedule(together(requests))
    check_schedule(together(requests), result)
    plans = {name: schedule(problem).makespan for name, problem in problems.items()}
    after = sum(fastest(problem) for problem in requests)
    ways = (band(requests), sum(plans[name] for _ in range(REQUESTS) for name in pair))
    times = (after, *ways, result.makespan)
    shown = (f"{ns / 1e6:.1f} ({after / ns:.2f})" for ns in times)
    return f"{REQUESTS} x {' and '.join(pair)}", profile, *shown


def main() -> None:
    """Run from the command line."""
    options(__doc__, None)
    heads = ("requests", "profile", "fastest", "Band", "plans", "interleaved")
    rows = (row(pair, profile) for pair in PAIRS for profile in PROFILES)
    print("Milliseconds, and how many times as fast as `fastest`.")
    print()
    print("\n".join(markdown(heads, rows)))


if __name__ == "__main__":
    main()
