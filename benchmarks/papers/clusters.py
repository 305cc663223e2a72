"""HOPE, figure 7: the big and the little cores of a CPU as two processors.

    python -m benchmarks.papers.clusters counted [squeezenet1_0 ..]    schedules of seven networks
    python -m benchmarks.papers.clusters measured [squeezenet1_0 ..]   plans carried out here
    python -m benchmarks.papers.clusters                              both

`counted` schedules for two big and four little cores, whose speeds are 3 to 2, without transfers:
both clusters read the same memory. `measured` needs two cores. The last one is the little cluster:
another process takes a half of each millisecond from it, so that plans run there as at half the
clock. Schedulers get costs in which the little core is so much slower. Each answer is compared with
the one of the big core alone, then all plans take turns with real-time priority, which keeps other
programs away; a ratio is the median of a round's, and beside it stands that of the least latencies.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tvm_stretch as ts
from benchmarks.baselines import (
    schedule_hope_gs,
    schedule_hope_lp,
    schedule_single,
    schedule_starpu,
)
from benchmarks.baselines.bounds import check_schedule
from benchmarks.commands import beside, markdown, options
from benchmarks.schedulers import NETWORKS
from benchmarks.scheduling_profiles import CLUSTERS, graph_of, spans, synthetic_problem, whole
from benchmarks.two_processors import Carrier, check_alike, in_turns
from tutorials import zoo
from tvm_stretch.plan.plan import Plan
from tvm_stretch.plan.scheduling.result import Scheduler
from tvm_stretch.plan.search import search
from tvm_stretch.plan.search.costs import planning_costs
from tvm_stretch.read import load_network
from tvm_stretch.targets.processors import make_processors

THEIRS = dict(zip(NETWORKS, (15.7, 2.2, 2.6, 9.8, 8.3, 3.2, 0.0), strict=True))
"""By how many percent HOPE:LP's latency is below StarPU's on the paper's Kirin 990."""

MEASURED = ("squeezenet1_0", "inception_v3")

SCHEDULERS: Mapping[str, Scheduler] = {
    "StarPU": schedule_starpu,
    "HOPE:GS": schedule_hope_gs,
    "HOPE:LP": schedule_hope_lp,
}
SHARE = 0.5
"""The part of its time that the little core has for us."""

_TAKER = """
import os, sys, time
core, share, period = int(sys.argv[1]), float(sys.argv[2]), 1e-3
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
print("begun", flush=True)
begin = time.perf_counter()
while True:
    while time.perf_counter() < begin + (1 - share) * period:
        pass
    begin = max(begin + period, time.perf_counter())
    time.sleep(max(0.0, begin - time.perf_counter()))
"""


def counted(names: Sequence[str]) -> Iterator[str]:
    """Markdown: latencies in ms of every scheduler, and HOPE:LP over StarPU."""
    rows = []
    for name in names:
        problem = whole(synthetic_problem(graph_of(name), CLUSTERS))
        own = spans(problem, {"big alone": schedule_single, **SCHEDULERS})
        gain = f"{1 - own['HOPE:LP'] / own['StarPU']:.1%}", f"{THEIRS.get(name, 0):.1f}%"
        rows.append((name, *(ns / 1e6 for ns in own.values()), *gain))
    heads = "network", "big alone", *SCHEDULERS, "HOPE:LP below StarPU", "in the paper"
    yield from markdown(heads, rows)


@contextlib.contextmanager
def slower(core: int, share: float) -> Iterator[None]:
    """Context in which a core has only a share of its time for us, and other programs wait."""
    with contextlib.ExitStack() as stack:
        try:
            taker = beside("-c", _TAKER, core, share, until="begun", seconds=0.0)
            stack.enter_context(taker)
        except RuntimeError:
            raise SystemExit(
                "expected the right to real-time priorities, got none; run it as root, or with "
                "CAP_SYS_NICE"
            ) from None
        stack.callback(_schedule_threads, os.SCHED_OTHER, 0)
        _schedule_threads(os.SCHED_FIFO, 1)
        yield


def _schedule_threads(policy: int, priority: int) -> None:
    """Set the priority of all threads of this process."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))


def plans_of(name: str, size: int | None, core: int) -> tuple[object, dict[str, tuple[Plan, int]]]:
    """The network, and its plans with predicted nanoseconds."""
    mod = load_network(zoo.build(name, size=size))
    processors, _ = make_processors(targets(core), 1)
    costs = planning_costs(processors).corrected([1.0, 1 / SHARE])
    found = search(mod, costs)
    singles = {one.plan.regions[0].processor: one for one in found.singles}
    plans = {"big alone": (singles["cpu"].plan, singles["cpu"].cost.ns)}
    plans["little alone"] = (singles["little"].plan, singles["little"].cost.ns)
    carrier = Carrier(mod, costs)
    for scheduler, schedule in SCHEDULERS.items():
        result = schedule(whole(carrier.problem))
        check_schedule(result.problem, result)
        plans[scheduler] = carrier.plan(result), result.makespan
    if found.rivals:
        plans["ours"] = found.rivals[0].plan, found.rivals[0].cost.ns
    return mod, plans


def targets(core: int) -> list[object]:
    """The CPU without a core, and that core."""
    return ["llvm", {"kind": "little-cores", "cores": str(core)}]


def measured(name: str, size: int | None, rounds: int) -> Iterator[Sequence[object]]:
    """Rows: predicted and measured milliseconds of each plan."""
    core = max(os.sched_getaffinity(0))
    mod, plans = plans_of(name, size, core)
    models = {
        label: ts.compile(mod, targets(core), plan=plan, cpu_threads=1)
        for label, (plan, _) in plans.items()
    }
    check_alike(models)
    with slower(core, SHARE):
        samples = in_turns(models, rounds)
    for label in models:
        ratio, least = (f(label, "big alone") for f in (samples.ratio, samples.least_ratio))
        times = plans[label][1] / 1e6, samples.median(label)
        yield name, label, *times, f"{ratio:.2f} ({least:.2f})"


def main() -> None:
    """Print both tables, or one."""
    args = options(
        __doc__,
        None,
        ("how?", "both"),
        ("networks*", str),
        ("--size", int, "height and width of the input of `measured`"),
        ("--rounds", 21),
        how=["both", "counted", "measured"],
    )
    lines = [] if args.how == "measured" else list(counted(args.networks or NETWORKS))
    if args.how != "counted":
        heads = "network", "plan", "predicted ms", "measured ms", "of the big core (least)"
        names = args.networks or MEASURED
        rows = (row for name in names for row in measured(name, args.size, args.rounds))
        lines += ["", *markdown(heads, rows)]
    print("\n".join(lines))  # together, because the solver prints, too


if __name__ == "__main__":
    main()
