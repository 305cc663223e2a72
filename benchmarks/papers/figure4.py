"""Potentials & Pitfalls, figure 4: granularities of plans beside competing processes.

    python -m benchmarks.papers.figure4 [squeezenet1_0] [--size 128] [--competitors 0 1 2 3]

    cpu alone, opencl alone   the whole network on one processor
    kernels                   whole kernels on both, as HOPE:GS schedules them
    shares                    layers and chains in shares, as CoDL does
    ours                      the plan that the search predicts to be the fastest
    changing                  a model with all of these plans, which may change

Competitors are processes that only count, pinned to a core of one processor; with PoCL, OpenCL is
the upper half of the cores. All plans and the changing model run in blocks that alternate. Answers
of all plans are compared first. The last two columns are the changing model's mean latency over
that of the best plan, in which trials of slow plans count, and the plan that it used most. With one
competitor that is NN-Stretch's figure 13, too.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from statistics import mean, median
from typing import Any

import tvm

import tvm_stretch as ts
from benchmarks.baselines import schedule_codl
from benchmarks.commands import Table, beside, options, turns
from benchmarks.scheduling_profiles import whole
from benchmarks.two_processors import BOTH, TARGETS, Carrier, check_alike, plans_of
from tutorials import zoo
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.scheduling.hope import schedule_hope_gs
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network

_CHANGING, _WARM_UP, _ROUNDS, _BLOCK = "changing", 70, 10, 6
_BURN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def granular_plans(mod: tvm.IRModule) -> dict[str, Plan]:
    """The plans of a network, by granularity."""
    costs = planning_costs(processors_of(None, TARGETS, None)[0])
    plans, carrier = plans_of(mod, costs), Carrier(mod, costs)
    ours = {"ours": plans.pop(BOTH)} if BOTH in plans else {}
    plans["kernels"] = carrier.plan(schedule_hope_gs(whole(carrier.problem)))
    plans["shares"] = carrier.plan(schedule_codl(carrier.problem))
    return plans | ours


def instances(model: ts.Model) -> dict[str, ts.Model]:
    """An instance for each plan, which it keeps."""
    instances = {name: model.create_instance() for name in model.plans}
    for name, one in instances.items():
        one.use(name)
    return instances


def pinned(model: ts.Model) -> dict[str, Callable[[], float]]:
    """Runs of each plan alone, which return their seconds."""
    return {name: one.timed_run() for name, one in instances(model).items()}


def blocks(runs: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Seconds of runs that take turns in blocks: a process that slept gets more of a busy core."""
    samples = turns(runs, rounds, warm_up=0, times=_BLOCK)
    return {name: [ms / 1e3 for ms in taken] for name, taken in samples.of.items()}


def watched(
    model: ts.Model, condition: AbstractContextManager[Any], rounds: int, watch: Callable[[], Any]
) -> tuple[list[float], dict[str, list[float]], list[Any]]:
    """Under a condition: seconds of the model, which may change its plan, and of its plans.

    And what `watch` says after each run of the model.
    """
    model.adapt()
    run, seen = model.timed_run(), list[Any]()

    def changing() -> float:
        seconds = run()
        seen.append(watch())
        return seconds

    with condition:
        for _ in range(_WARM_UP):
            changing()
        seen.clear()
        taken = blocks({_CHANGING: changing, **pinned(model)}, rounds)
    return taken.pop(_CHANGING), taken, seen


def row(model: ts.Model, core: int, count: int) -> tuple[Mapping[str, float], float, str]:
    """Medians of the plans in ms, the cost of changing, and the plan used most."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(beside("-c", _BURN, core))
        own, taken, used = watched(model, stack, _ROUNDS, lambda: model.in_use)
    best = min(mean(times) for times in taken.values())
    medians = {name: 1e3 * median(times) for name, times in taken.items()}
    return medians, mean(own) / best, Counter(used).most_common(1)[0][0]


def main() -> None:
    """Measure, and print the table."""
    args = options(
        __doc__,
        None,
        ("networks*", ["squeezenet1_0"]),
        ("--size", 128),
        ("--competitors*", [0, 1, 2, 3]),
    )
    cores = {"CPU": 0, "OpenCL": (os.cpu_count() or 1) - 1}
    for network in args.networks:
        mod = load_network(zoo.build(network, size=args.size))
        model = ts.compile(mod, TARGETS, plans=granular_plans(mod))
        check_alike(instances(model))
        names = list(model.plans)
        print(f"\n{network}, {args.size} pixels, ms\n")
        table = Table("competitors", *names, "changing over the best", "it used")
        for count in args.competitors:
            for where, core in cores.items() if count else [("nobody", 0)]:
                medians, cost, used = row(model, core, count)
                fastest = min(medians.values())
                cells = [f"**{t:.2f}**" if t == fastest else f"{t:.2f}" for t in medians.values()]
                told = f"{count} on the {where}" if count else "none"
                table.row(told, *cells, cost, used)


if __name__ == "__main__":
    main()
