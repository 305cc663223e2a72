"""A model with three plans while something else keeps a core busy.

    python -m benchmarks.adaptation [resnet18] [--size 224] [--calm 40] [--busy 60] [--times 3]

Plans: CPU and OpenCL, each without the other. With PoCL, OpenCL is the upper half of the cores. A
process that only counts is pinned to a core of one processor and, later, of the other:

    changes   runs that took the old plan before the model changes, and back after the process ends
    latency   of the runs between, over the best plan that is pinned, measured in turns with them
              while the core is busy: median, and mean, in which trials of the slow plan count
    overhead  without disturbance: a run that may change its plan over one of the same plan pinned
    memory    of the three plans over the one that needs most
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import mean, median

import tvm_stretch as ts
from benchmarks.commands import options
from tutorials import zoo
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.plan.search.decision import FASTEST
from tvm_stretch.read import load_network

_TARGETS = ["llvm", "opencl"]
_OWN = "the model that changes"
_BLOCK = 6  # runs in a row, as a process that slept gets more of a busy core at first
_BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@contextlib.contextmanager
def busy(core: int) -> Iterator[None]:
    """Context in which another process keeps this core busy."""
    process = subprocess.Popen([sys.executable, "-c", _BURN, str(core)])
    try:
        time.sleep(0.3)
        yield
    finally:
        process.kill()
        process.wait()


def three_plans(name: str, size: int | None) -> tuple[ts.Model, ts.Model]:
    """A model with plans for both processors and for each alone; and one with the first plan."""
    mod = load_network(zoo.build(name, size=size))
    processors, _ = processors_of(None, _TARGETS, None)
    best = search(mod, planning_costs(processors)).rivals[0]
    print(f"plan: {best.what}")
    one = ts.compile(mod, _TARGETS, plan=best.plan)
    return ts.compile(mod, _TARGETS, plan=best.plan, plans=True), one


def pinned(model: ts.Model) -> dict[str, Callable[[], float]]:
    """Runs of each plan alone, which return their seconds."""
    found = {}
    for name in model.plans:
        instance = model.create_instance()
        instance.use(name)
        found[name] = instance.timed_run()
    return found


@dataclass(frozen=True)
class Disturbed:
    """The effects of a busy core."""

    to: str
    runs_to_change: int
    runs_back: int
    median: float
    mean: float
    plans: Mapping[str, float]


def disturb(
    model: ts.Model, run: Callable[[], float], core: int, calm: int, runs: int
) -> Disturbed:
    """Keep a core busy for a number of runs, and record the model's plans and latencies."""
    each = pinned(model)
    for _ in range(calm):
        run()
    with busy(core):
        before = _runs_while(model, run, lambda name: name == FASTEST, runs)
        taken: dict[str, list[float]] = {name: [] for name in (_OWN, *each)}
        used: list[str] = []
        for number in range(runs // _BLOCK):
            turn = list({_OWN: run, **each}.items())
            first = number % len(turn)
            for name, one in turn[first:] + turn[:first]:
                taken[name] += [one() for _ in range(_BLOCK)]
            used.append(model.in_use)
    own = taken.pop(_OWN)
    medians = {name: median(times) for name, times in taken.items()}
    best = min(medians, key=lambda name: medians[name])
    after = _runs_while(model, run, lambda name: name != FASTEST, 100)
    return Disturbed(
        max(set(used), key=used.count),
        before,
        after,
        median(own) / medians[best],
        mean(own) / mean(taken[best]),
        medians,
    )


def _runs_while(
    model: ts.Model, run: Callable[[], float], holds: Callable[[str], bool], most: int
) -> int:
    count = 0
    while holds(model.in_use) and count < most:
        run()
        count += 1
    return count


def overhead(model: ts.Model, rounds: int) -> float:
    """The median of the ratios of runs that may change and of runs that may not."""
    adaptive, fixed = model.create_instance(), model.create_instance()
    fixed.use(FASTEST)
    ratios = []
    runs = [adaptive.timed_run(), fixed.timed_run()]
    for number in range(rounds):
        turn = runs if number % 2 else runs[::-1]
        taken = {id(run): run() for run in turn}
        if adaptive.in_use == FASTEST:
            ratios.append(taken[id(runs[0])] / taken[id(runs[1])])
    return median(ratios)


def needed(model: ts.Model) -> int:
    """Bytes of weights, prepared weights and arena."""
    graph = model.graph
    return graph.weights_bytes + graph.prepared_bytes + graph.arena_bytes


def main() -> None:
    """Measure, and print the table."""
    args = options(
        __doc__,
        None,
        ("network?", "resnet18"),
        ("--size", int),
        ("--calm", 40),
        ("--busy", 60),
        ("--times", 3),
    )
    model, one = three_plans(args.network, args.size)
    for plan in model.graph.plans:
        print(f"{plan.name}: {plan.expected_ns / 1e6:.2f} ms")
    three, first = needed(model), needed(one)
    print(f"memory: {three / 1e6:.1f} MB, x{three / first:.3f} of the first plan alone")
    print(f"overhead: {overhead(model, 200) - 1:+.2%}")
    run = model.timed_run()
    last = os.cpu_count() or 1
    for core in (0, last - 1):
        for _ in range(args.times):
            got = disturb(model, run, core, args.calm, args.busy)
            plans = ", ".join(f"{name} {s * 1e3:.2f} ms" for name, s in got.plans.items())
            print(
                f"core {core} busy: to {got.to!r} after {got.runs_to_change} runs, back after "
                f"{got.runs_back}; median x{got.median:.2f}, mean x{got.mean:.2f} of the best "
                f"({plans})",
                flush=True,
            )


if __name__ == "__main__":
    main()
