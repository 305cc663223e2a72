"""Schedulers beside each other on HOPE's seven networks.

```
python -m benchmarks.schedulers [inception_v3 ...] [--profiles 1:3 host] [--json out.json]
```
Every schedule passes the independent checker before its latency is shown.  The program ends with an
error if ours is slower than any other, if it needs more than 2 s of a core for any network, or if
HOPE's order over its baselines is not reproduced (on the mean over the seven networks and the
synthetic profiles).  Rows that the JSON file holds already are not computed again.  What scheduling
takes is time of the processor, not of the clock.  `µLayer, one layout` is µLayer where handing over
converts nothing, as in the paper's figure 6; `gap if transfers were free` tells how much of the gap
is due to transfers, which the lower bound does not count.

`host` are the processors of this machine, CPU and OpenCL: costs of kernels, hand-overs, launches as
`ts.measure()` found them, or typical ones where it was never run; the caption says which.

Synthetic profiles are roofs, not devices: `1:3` is a CPU of 20 GMAC/s and a GPU of 60; memory of 10
GB/s at ratio 1; a hand-over takes 0.15 ms and converts the layout at 2.5 GB/s; µLayer and CoDL may
split convolutions, matrix products and pooling.  Problems hold one operator per Relax call, as in
the paper (NASNet-Large: 1,113); those of `host` hold kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import tvm
from tvm_stretch.targets.processors import make_processors

from tvm_stretch import zoo
from tvm_stretch.frontend import load_network
from tvm_stretch.ir.operator_graph import Group, OperatorGraph
from tvm_stretch.scheduling import (
    FREE,
    Problem,
    Result,
    TransferCost,
    check_schedule,
    linear_transfer,
    lower_bound,
)
from tvm_stretch.scheduling.anneal import SCHEDULERS, schedule
from tvm_stretch.scheduling.baselines import (
    schedule_mulayer,
)
from tvm_stretch.scheduling.of_network import problem_of
from tvm_stretch.search.costs import Costs, planning_costs

NETWORKS = (
    "inception_v3",
    "inception_v4",
    "pnasnet_mobile",
    "pnasnet_large",
    "nasnet_large",
    "squeezenet1_0",
    "lstm",
)
PROFILES = ("host", "1:3", "1:2", "1:1", "2:1", "3:1", "1:1:1", "1:2:3")
# HOPE:LP has to win over these on average, as in the paper's figures 4 and 6.
BASELINES = ("MOSAIC", "StarPU", "µLayer", "HOPE:GS")
ONE_LAYOUT = "µLayer, one layout"  # an easier problem than the others have
# Schedulers whose own time the table shows; the others take less than HOPE:GS.
TIMED = ("HOPE:GS", "HOPE:LP", "ours", "ours, split")

Row: TypeAlias = dict[str, Any]

_MOST_SECONDS = 2.0
_NAMES = ("cpu", "gpu", "dsp")
_LAUNCH_NS = (2_000, 10_000, 10_000)
_MACS_PER_NS, _BYTES_PER_NS = 20.0, 10.0
_HAND_OVER = linear_transfer(150_000, 2_500)


def synthetic_problem(graph: OperatorGraph, profile: str) -> Problem:
    """The problem of a network on processors of the given speeds."""
    speeds = [float(part) for part in profile.split(":")]
    count = len(speeds)

    def costs(group: Group) -> list[int]:
        moved = group.read_bytes + group.bytes
        roofs = [
            max(group.multiply_adds / _MACS_PER_NS / s, moved / _BYTES_PER_NS / s**0.5)
            for s in speeds
        ]
        return [launch + round(roof) for launch, roof in zip(_LAUNCH_NS, roofs, strict=False)]

    transfers = ((_HAND_OVER,) * count,) * count
    launch = _LAUNCH_NS[:count]
    return problem_of(graph, _NAMES[:count], costs, transfers, launch=launch, splittable=True)


def host_costs() -> Costs:
    """What is known of the processors of this machine."""
    processors, _ = make_processors(["llvm", "opencl"], 1)
    return planning_costs(processors)


def host_problem(mod: tvm.IRModule, costs: Costs) -> Problem:
    """The problem of a network on this machine."""
    graph = costs.kernels.lower(mod)
    costs.ask_for(graph.groups)
    places = range(len(costs.processors))
    names = [processor.name for processor in costs.processors]

    def nanoseconds(group: Group) -> list[int | None]:
        return [costs.whole(group, place) for place in places]

    launch = [costs.start(place) for place in places]
    return problem_of(graph, names, nanoseconds, costs.transfers(), launch=launch, splittable=True)


def whole(problem: Problem) -> Problem:
    """The same problem without the right to split operators."""
    operators = tuple(replace(operator, splittable=False) for operator in problem.operators)
    return replace(problem, operators=operators)


def one_layout(problem: Problem) -> Problem:
    """The synthetic problem if handing over converted nothing, as HOPE ran µLayer (section 5.4)."""
    count = len(problem.processors)
    fixed = TransferCost(((0, _HAND_OVER(0)),))
    return replace(problem, transfers=((fixed,) * count,) * count)


def without_transfers(problem: Problem) -> Problem:
    """The same problem if handing over took no time."""
    count = len(problem.processors)
    return replace(problem, transfers=((FREE,) * count,) * count)


def compare(problem: Problem, profile: str, skipped: frozenset[str]) -> Row:
    """Latencies in ms and scheduling times in s of every scheduler, all checked."""
    unsplit = whole(problem)
    asked = {name: (scheduler, problem) for name, scheduler in SCHEDULERS.items()}
    asked |= {"ours": (schedule, unsplit), "ours, split": (schedule, problem)}
    results, took = {}, {}
    for name, (scheduler, given) in asked.items():
        if name not in skipped:
            fresh = replace(given)  # without what another scheduler already found out about it
            began = time.process_time()
            results[name] = scheduler(fresh)
            took[name] = time.process_time() - began
            check_schedule(given, results[name])
    _require_best(results)
    latencies = {name: result.makespan / 1e6 for name, result in results.items()}
    converted = problem if profile == "host" else one_layout(problem)
    latencies[ONE_LAYOUT] = schedule_mulayer(converted).makespan / 1e6
    return {
        "operators": len(problem.operators),
        "latency_ms": latencies,
        "lower_bound_ms": lower_bound(unsplit) / 1e6,
        "ours_without_transfers_ms": schedule(without_transfers(unsplit)).makespan / 1e6,
        "gap": results["ours"].gap,
        "scheduling_cpu_s": took,
    }


def _require_best(results: Mapping[str, Result]) -> None:
    """Ours beats every other scheduler: those that split operators if it may split them too."""
    for name, result in results.items():
        splits = any(operator.whole for operator in result.problem.operators)
        ours = results["ours, split" if splits else "ours"]
        if ours.makespan > result.makespan:
            raise SystemExit(f"{name} takes {result.makespan} ns, ours {ours.makespan}")


def problems(wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Problem]:
    """The problem of each network and profile."""
    host = host_costs() if any(profile == "host" for _, profile in wanted) else None
    found = {}
    for network in dict.fromkeys(network for network, _ in wanted):
        mod = load_network(zoo.build(network), None)
        graph = OperatorGraph(mod["main"])
        for key in (key for key in wanted if key[0] == network):
            if key[1] == "host" and host is not None:
                found[key] = host_problem(mod, replace(host))
            else:
                found[key] = synthetic_problem(graph, key[1])
    return found


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: latencies in ms, then the bound, the gap and what scheduling took."""
    names = list(rows[0]["latency_ms"])
    timed = [name for name in TIMED if name in names]
    head = ["network", "profile", "operators", *names, "lower bound", "gap"]
    head += ["gap if transfers were free"]
    head += [f"{name}, CPU s" for name in timed]
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        cells = [row["network"], row["profile"], str(row["operators"])]
        cells += [f"{row['latency_ms'][name]:.1f}" for name in names]
        bound, free = row["lower_bound_ms"], row["ours_without_transfers_ms"]
        cells += [f"{bound:.1f}", f"{row['gap']:.1%}", f"{1 - bound / free:.1%}"]
        cells += [f"{row['scheduling_cpu_s'][name]:.2f}" for name in timed]
        yield f"| {' | '.join(cells)} |"


def reduction(rows: Sequence[Row], name: str, other: str) -> float:
    """By how much a scheduler's latency is lower than another's, in the mean of the rows."""
    return statistics.mean(1 - row["latency_ms"][name] / row["latency_ms"][other] for row in rows)


def reductions(rows: Sequence[Row], name: str, others: Sequence[str]) -> Iterator[str]:
    """Markdown: how much a scheduler wins over others, for each profile in the mean of networks."""
    yield f"| {name} over | {' | '.join(others)} |"
    yield f"|{' --- |' * (len(others) + 1)}"
    synthetic = [row for row in rows if row["profile"] != "host"]
    chosen = {p: [row for row in rows if row["profile"] == p] for p in PROFILES}
    for title, some in {**chosen, "all synthetic": synthetic}.items():
        if some:
            cells = [f"{reduction(some, name, other):.1%}" for other in others]
            yield f"| {title} | {' | '.join(cells)} |"


def shortcomings(rows: Sequence[Row]) -> Iterator[str]:
    """What this program promises and the rows do not show."""
    for row in rows:
        seconds = row["scheduling_cpu_s"]["ours"]
        if seconds > _MOST_SECONDS:
            yield f"ours needs {seconds:.2f} s for {row['network']} {row['profile']}"
    synthetic = [row for row in rows if row["profile"] != "host"]
    if {row["network"] for row in synthetic} >= set(NETWORKS):  # the paper's order is of all seven
        for name in BASELINES:
            if "HOPE:LP" in rows[0]["latency_ms"] and reduction(synthetic, "HOPE:LP", name) < 0:
                yield f"HOPE:LP is slower than {name} in the mean"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES))
    parser.add_argument("--skip", nargs="+", default=[], help="schedulers to leave out")
    parser.add_argument("--json", type=Path, help="keep all figures here, and go on from there")
    arguments = parser.parse_args()
    wanted = [(n, p) for p in arguments.profiles for n in arguments.networks]
    known = _read(arguments.json)
    missing = [key for key in wanted if key not in known]
    given = problems(missing)
    for network, profile in missing:
        row = {"network": network, "profile": profile}
        row |= compare(given[network, profile], profile, frozenset(arguments.skip))
        known[network, profile] = row
        print(list(table([row]))[-1], flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(list(known.values()), indent=1) + "\n")
    rows = [known[key] for key in wanted]
    if "host" in arguments.profiles:
        print(f"\nhost: {host_costs().source}")
    print("\n".join(["", *table(rows), ""]))
    for name in ("HOPE:LP", "ours"):
        if name in rows[0]["latency_ms"]:
            others = [other for other in rows[0]["latency_ms"] if other != name]
            print("\n".join([*reductions(rows, name, others), ""]))
    found = list(shortcomings(rows))
    if found:
        raise SystemExit("; ".join(found))


def _read(path: Path | None) -> dict[tuple[str, str], Row]:
    rows = json.loads(path.read_text()) if path and path.exists() else []
    return {(row["network"], row["profile"]): row for row in rows}


if __name__ == "__main__":
    main()
