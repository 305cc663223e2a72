"""Schedulers beside each other on HOPE's seven networks.

```
python -m benchmarks.schedulers [inception_v3 ...] [--profiles 1:3 host] [--json out.json]
```
Every schedule passes the independent checker before its latency is shown.  The program ends with an
error if ours is slower than any other, if it needs more than 2 s of a core for NASNet-Large, or if
HOPE's order over its baselines is not reproduced (on the mean over all seven networks).

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
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_stretch import zoo
from tvm_stretch.frontend import load_network
from tvm_stretch.graph import Group, OperatorGraph
from tvm_stretch.processors import make_processors
from tvm_stretch.scheduling import (
    SCHEDULERS,
    Problem,
    Result,
    check_schedule,
    linear_transfer,
    lower_bound,
    schedule,
)
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
    return graph.problem(_NAMES[:count], costs, transfers, launch=launch, splittable=True)


def host_costs() -> Costs:
    """What is known of the processors of this machine."""
    processors, _ = make_processors(["llvm", "opencl"], 1)
    return planning_costs(processors)


def host_problem(graph: OperatorGraph, costs: Costs) -> Problem:
    """The problem of a network on this machine."""
    costs.learn(graph.groups)
    places = range(len(costs.processors))
    names = [processor.name for processor in costs.processors]

    def nanoseconds(group: Group) -> list[int | None]:
        return [costs.of(group, place) for place in places]

    launch = [costs.start(place) for place in places]
    return graph.problem(names, nanoseconds, costs.transfers(), launch=launch, splittable=True)


def whole(problem: Problem) -> Problem:
    """The same problem without the right to split operators."""
    operators = tuple(replace(operator, splittable=False) for operator in problem.operators)
    return replace(problem, operators=operators)


def compare(problem: Problem, skipped: frozenset[str]) -> dict[str, Any]:
    """Latencies in ms and scheduling times in s of every scheduler, all checked."""
    unsplit = whole(problem)
    results = {
        name: scheduler(unsplit if name == "ours" else problem)
        for name, scheduler in SCHEDULERS.items()
        if name not in skipped
    }
    results["ours, split"] = schedule(problem)
    for name, result in results.items():
        check_schedule(unsplit if name == "ours" else problem, result)
    _require_best(results)
    cpu = time.process_time()
    schedule(whole(problem))
    return {
        "operators": len(problem.operators),
        "latency_ms": {name: result.makespan / 1e6 for name, result in results.items()},
        "lower_bound_ms": lower_bound(unsplit) / 1e6,
        "gap": results["ours"].gap,
        "scheduling_s": {name: result.runtime_ns / 1e9 for name, result in results.items()},
        "scheduling_cpu_s_of_ours": time.process_time() - cpu,
    }


def _require_best(results: Mapping[str, Result]) -> None:
    """Ours beats every other scheduler: those that split operators if it may split them too."""
    for name, result in results.items():
        splits = any(operator.whole for operator in result.problem.operators)
        ours = results["ours, split" if splits else "ours"]
        if ours.makespan > result.makespan:
            raise SystemExit(f"{name} takes {result.makespan} ns, ours {ours.makespan}")


def problems(networks: list[str], profiles: list[str]) -> Iterator[tuple[str, str, Problem]]:
    """Network, profile, problem."""
    host = host_costs() if "host" in profiles else None
    for network in networks:
        mod = load_network(zoo.build(network), None)
        graph = OperatorGraph.of(mod, fuse=False)
        for profile in profiles:
            if profile == "host" and host is not None:
                yield network, profile, host_problem(OperatorGraph.of(mod), replace(host))
            else:
                yield network, profile, synthetic_problem(graph, profile)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: latencies in ms, then the bound, the gap and what scheduling took."""
    names = list(rows[0]["latency_ms"])
    head = ["network", "profile", "operators", *names, "lower bound", "gap", "ours took (CPU s)"]
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        latencies = [f"{row['latency_ms'][name]:.1f}" for name in names]
        bound, gap = f"{row['lower_bound_ms']:.1f}", f"{row['gap']:.1%}"
        took = f"{row['scheduling_cpu_s_of_ours']:.2f}"
        cells = [
            row["network"],
            row["profile"],
            str(row["operators"]),
            *latencies,
            bound,
            gap,
            took,
        ]
        yield f"| {' | '.join(cells)} |"


def mean_ratios(rows: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Geometric mean of a scheduler's latency over that of every scheduler."""
    others = rows[0]["latency_ms"]
    return {
        other: statistics.geometric_mean(
            row["latency_ms"][name] / row["latency_ms"][other] for row in rows
        )
        for other in others
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES))
    parser.add_argument("--skip", nargs="+", default=[], help="schedulers to leave out")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for network, profile, problem in problems(arguments.networks, arguments.profiles):
        rows.append({"network": network, "profile": profile})
        rows[-1] |= compare(problem, frozenset(arguments.skip))
        print(list(table(rows))[-1], flush=True)
    compared = [name for name in ("HOPE:LP", "ours") if name in rows[0]["latency_ms"]]
    means = {name: mean_ratios(rows, name) for name in compared}
    if "host" in arguments.profiles:
        print(f"\nhost: {host_costs().source}")
    print("\n".join(["", *table(rows), ""]))
    for name, ratios in means.items():
        print(f"{name} over: " + ", ".join(f"{o} {r:.3f}" for o, r in ratios.items() if o != name))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "means": means}, indent=1) + "\n")
    slow = [
        f"{row['network']} {row['profile']}: {row['scheduling_cpu_s_of_ours']:.2f} s"
        for row in rows
        if row["scheduling_cpu_s_of_ours"] > _MOST_SECONDS
    ]
    if slow:
        raise SystemExit(f"ours needs more than {_MOST_SECONDS} s for {', '.join(slow)}")
    wrong = [name for name in BASELINES if means.get("HOPE:LP", {}).get(name, 0) > 1]
    if wrong and set(arguments.networks) >= set(NETWORKS):  # the paper's order is that of all seven
        raise SystemExit(f"HOPE:LP is slower than {', '.join(wrong)} on average")


if __name__ == "__main__":
    main()
