"""HOPE, figure 5: schedulers while the CPU has its highest, a medium and its lowest clock.

    python -m benchmarks.papers.clocks [squeezenet1_0 ..]

The paper's phone has a Snapdragon 625 at 652 to 2016 MHz. Here it is the profile of a Snapdragon
855 with the clocks of its file; the GPU keeps its own, and hand-overs are those of
`benchmarks.scheduling_profiles`, because that profile has TFLite's. Every schedule passes the
independent checker first. Below are the means of the networks, beside the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import mean

from benchmarks.baselines import (
    schedule_hope_gs,
    schedule_hope_lp,
    schedule_mosaic,
    schedule_single,
    schedule_starpu,
)
from benchmarks.commands import markdown, options
from benchmarks.scheduling_profiles import host_problem, spans, transfers_between, whole
from tutorials import zoo
from tvm_stretch.plan.cost.profile_file import load_profile
from tvm_stretch.plan.scheduling.result import Scheduler
from tvm_stretch.plan.search.twin import twin_costs, twin_processors
from tvm_stretch.read import load_network

DEVICE, TEAM = "snapdragon-855", ("cpu", "opencl")
_HALVES = 2  # the GPU computes in float16

SCHEDULERS: Mapping[str, Scheduler] = {
    "one processor": schedule_single,
    "MOSAIC": schedule_mosaic,
    "StarPU": schedule_starpu,
    "HOPE:GS": schedule_hope_gs,
    "HOPE:LP": schedule_hope_lp,
}
THEIRS = (("highest", 22.1, 10.3), ("medium", 17.5, 9.3), ("lowest", 19.2, 10.8))
"""By how many percent HOPE:LP's latencies are below MOSAIC's and StarPU's, at each clock."""


def latencies(name: str, mhz: float) -> dict[str, int]:
    """Nanoseconds of each scheduler's plan."""
    profile = load_profile(f"{DEVICE}@cpu={mhz:g}")
    costs = twin_costs(profile, twin_processors(profile, TEAM)[0])
    problem = whole(host_problem(load_network(zoo.build(name)), costs))
    return spans(replace(problem, transfers=transfers_between(len(TEAM), _HALVES)), SCHEDULERS)


def table(names: Sequence[str]) -> Iterator[str]:
    """Markdown: milliseconds, and means beside the paper's."""
    clocks = load_profile(DEVICE).processor("cpu").mhz
    chosen = (clocks[0], clocks[len(clocks) // 2], clocks[-1])
    found = {(name, clock): latencies(name, clock) for name in names for clock in chosen}
    rows = (
        (name, f"{clock:g}", *(ns / 1e6 for ns in own.values()))
        for (name, clock), own in found.items()
    )
    yield from markdown(("network", "MHz of the CPU", *SCHEDULERS), rows)
    yield ""
    means = []
    for (label, *theirs), clock in zip(THEIRS, chosen, strict=True):
        own = [found[name, clock] for name in names]
        cells = [label]
        for other, their in zip(("MOSAIC", "StarPU"), theirs, strict=True):
            gain = mean(1 - each["HOPE:LP"] / each[other] for each in own)
            cells.append(f"{gain:.1%}, {their}%")
        means.append(cells)
    heads = "clock", "HOPE:LP below MOSAIC: ours, paper", "below StarPU: ours, paper"
    yield from markdown(heads, means)


def main() -> None:
    """Print the table."""
    args = options(__doc__, None, ("networks*", ["squeezenet1_0", "inception_v3"]))
    print("\n".join(list(table(args.networks))))  # together, because the solver prints, too


if __name__ == "__main__":
    main()
