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
from benchmarks.baselines.parts import check_schedule
from benchmarks.commands import options
from benchmarks.scheduling_profiles import host_problem, transfers_between, whole
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


def spans(name: str, mhz: float) -> dict[str, int]:
    """Nanoseconds of each scheduler's plan."""
    profile = load_profile(f"{DEVICE}@cpu={mhz:g}")
    costs = twin_costs(profile, twin_processors(profile, TEAM)[0])
    problem = whole(host_problem(load_network(zoo.build(name)), costs))
    problem = replace(problem, transfers=transfers_between(len(TEAM), _HALVES))
    found = {}
    for scheduler, schedule in SCHEDULERS.items():
        result = schedule(problem)
        check_schedule(problem, result)
        found[scheduler] = result.makespan
    return found


def table(names: Sequence[str]) -> Iterator[str]:
    """Markdown: milliseconds, and means beside the paper's."""
    clocks = load_profile(DEVICE).processor("cpu").mhz
    chosen = (clocks[0], clocks[len(clocks) // 2], clocks[-1])
    yield f"| network | MHz of the CPU | {' | '.join(SCHEDULERS)} |"
    yield "|" + " --- |" * (2 + len(SCHEDULERS))
    gains: dict[float, list[tuple[float, float]]] = {clock: [] for clock in chosen}
    for name in names:
        for clock in chosen:
            found = spans(name, clock)
            cells = [f"{ns / 1e6:.2f}" for ns in found.values()]
            yield f"| {name} | {clock:g} | {' | '.join(cells)} |"
            best = found["HOPE:LP"]
            gains[clock].append((1 - best / found["MOSAIC"], 1 - best / found["StarPU"]))
    yield ""
    yield "| clock | HOPE:LP below MOSAIC: ours, paper | below StarPU: ours, paper |"
    yield "|" + " --- |" * 3
    for (label, *theirs), own in zip(THEIRS, gains.values(), strict=True):
        means = [mean(column) for column in zip(*own, strict=True)]
        cells = [f"{gain:.1%}, {their}%" for gain, their in zip(means, theirs, strict=True)]
        yield f"| {label} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    args = options(__doc__, None, ("networks*", ["squeezenet1_0", "inception_v3"]))
    print("\n".join(list(table(args.networks))))  # together, because the solver prints, too


if __name__ == "__main__":
    main()
