"""What the profile of a phone, a Snapdragon 855, predicts of the papers' strategies.

    python -m benchmarks.papers.predicted strategies [yolov2 ..]      Pitfalls, figure 2
    python -m benchmarks.papers.predicted stretched [resnet34 ..]     NN-Stretch, figure 11
    python -m benchmarks.papers.predicted granularities               Pitfalls, figure 4
    python -m benchmarks.papers.predicted clocks [squeezenet1_0 ..]   HOPE, figure 5

`strategies`: every operator on the CPU, every operator on the GPU, µLayer, CoDL, and our plan, in
floats, which cost what the profile says of float32 (the paper's own table 3, by which its rates
were set). The paper's milliseconds are those of that table; its PoseNet is a larger one, so that
only ratios compare.

`stretched`: the paper's types, 8 bits on the CPU and half floats on the GPU, which are µLayer's,
too. CoDL and µLayer keep the network and share layers; the stretched network (`ts.stretch`, at
least 90 % of the capacity) meets at the ends of stages alone. CoDL takes neither RegNetX nor
EfficientNet, so the paper has two networks.

`granularities`: ResNet-50 in 8 bits (half floats on the GPU) while processes compete for the CPU:
in sub-graphs (stretched for three and for two processors), in layers (CoDL), and in tasks, where
consecutive frames go to different processors. Tasks have a throughput; shown are milliseconds for
each frame. With n competitors the CPU is n + 1 times slower. Designs are those of the idle phone,
CoDL's shares follow the present speeds, and hand-overs take as long as before. The paper's text
states 19 ms in sub-graphs on the idle phone and 48 % more for CoDL, that CoDL is the fastest beside
two competitors, and that three make the CPU 10.2 times slower.

`clocks`: HOPE and others while the CPU has its highest, a medium and its lowest clock. The paper's
phone has a Snapdragon 625 at 652 to 2016 MHz; here the clocks are those of the profile's file. The
GPU keeps its own, and hand-overs are those of `benchmarks.scheduling_profiles`, because the profile
has TFLite's. Below are the means of the networks, beside the paper's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from types import MappingProxyType

import tvm_stretch as ts
from benchmarks.baselines import (
    schedule_codl,
    schedule_hope_gs,
    schedule_hope_lp,
    schedule_mosaic,
    schedule_mulayer,
    schedule_single,
    schedule_starpu,
)
from benchmarks.commands import markdown, options
from benchmarks.scheduling_profiles import host_problem, spans, transfers_between, whole
from tutorials import zoo
from tvm_stretch.lab.stretching.devices import judge_on
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile, write_profile
from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Scheduler
from tvm_stretch.plan.search.twin import twin_costs, twin_processors
from tvm_stretch.read import load_network

PHONE, TEAM, EVERY = "snapdragon-855", ("cpu", "opencl"), ("cpu", "opencl", "hexagon")

# --- strategies beside each other -----------------------------------------------------------------

MACE_CODL_MS = {"yolov2": (219, 170), "vgg16": (240, 171), "posenet": (430, 328)}
"""The paper's milliseconds of MACE on the GPU, and of CoDL on CPU and GPU."""


def alone(problem: Problem, place: int) -> int:
    """Nanoseconds of all operators on a processor; those that it refuses run on the other one."""
    return sum(
        problem.cost(op, place if place in problem.supported[op] else problem.fastest(op))
        for op in range(len(problem.operators))
    )


def shared_ms(problem: Problem) -> list[float]:
    """Milliseconds on the CPU, on the GPU, of µLayer and of CoDL."""
    both = spans(problem, {"µLayer": schedule_mulayer, "CoDL": schedule_codl})
    return [ns / 1e6 for ns in (alone(problem, 0), alone(problem, 1), *both.values())]


def strategies_row(name: str) -> tuple[str, ...]:
    """Predicted milliseconds of each strategy, and ratios to the GPU beside the paper's."""
    source = zoo.build(name)
    network = ts.problems.network_problem(source, TEAM, device=PHONE, as_built=True)
    plan = ts.plan_for(source, TEAM, device=PHONE, as_built=True)
    times = [*shared_ms(network.problem), (plan.predicted_ns or 0) / 1e6]
    told = ["", ""]
    if theirs := MACE_CODL_MS.get(name):
        told = [f"{theirs[0]}, {theirs[1]}", f"{theirs[1] / theirs[0]:.2f}"]
    ratios = (f"{ms / times[1]:.2f}" for ms in times[2:])
    return name, *(f"{ms:.1f}" for ms in times), *ratios, *told


def strategies(names: Sequence[str]) -> Iterator[str]:
    """Pitfalls, figure 2."""
    heads = "predicted ms", "CPU", "GPU", "µLayer", "CoDL", "ours", "µLayer / GPU", "CoDL / GPU"
    paper = "ours / GPU", "paper: GPU, CoDL", "paper: CoDL / GPU"
    yield from markdown((*heads, *paper), map(strategies_row, names))


def stretched_row(name: str) -> tuple[str, ...]:
    """Milliseconds of each way, and how many times as fast the stretched network is."""
    source = zoo.build(name)
    times = shared_ms(ts.problems.network_problem(source, TEAM, device=PHONE).problem)
    best = ts.stretch(source, TEAM, device=PHONE).best
    ours = best.ns / 1e6
    gains = (f"{ms / ours:.2f}" for ms in (times[3], times[1]))
    return name, *(f"{ms:.1f}" for ms in (*times, ours)), *gains, str(best.design)


def stretched(names: Sequence[str]) -> Iterator[str]:
    """NN-Stretch, figure 11."""
    rows = ([cell.replace(" | ", " + ") for cell in stretched_row(name)] for name in names)
    heads = "predicted ms", "CPU", "GPU", "µLayer", "CoDL", "stretched"
    yield from markdown((*heads, "times as fast as CoDL", "as the GPU", "design"), rows)


# --- while other programs compete -----------------------------------------------------------------

COMPETITORS = range(4)


def beside(profile: Profile, competitors: int) -> Profile:
    """The phone while a number of processes compete for its CPU."""
    cpu, slower = profile.processor("cpu"), competitors + 1
    busy = replace(
        cpu,
        multiply_adds_per_ns={k: v / slower for k, v in cpu.multiply_adds_per_ns.items()},
        activation_bytes_per_ns=cpu.activation_bytes_per_ns / slower,
        weight_bytes_per_ns=cpu.weight_bytes_per_ns / slower,
        kernel_us=cpu.kernel_us * slower,
        group_us=cpu.group_us * slower,
    )
    processors = MappingProxyType({**profile.processors, "cpu": busy})
    return replace(profile, device=f"{profile.device}, {competitors}", processors=processors)


def granularities(names: Sequence[str]) -> Iterator[str]:
    """Pitfalls, figure 4: milliseconds of each granularity with 0 to 3 competitors."""
    (name,) = names
    heads = f"{name}, predicted ms", *(f"{count} competitors" for count in COMPETITORS)
    with tempfile.TemporaryDirectory() as folder:
        phones = [Path(folder, f"{count}.toml") for count in COMPETITORS]
        for count, path in enumerate(phones):
            write_profile(beside(load_profile(PHONE), count), path)
        rows = ((what, *(f"{ms:.1f}" for ms in times)) for what, times in _granular(name, phones))
        yield from markdown(heads, rows)


def _granular(name: str, phones: Sequence[Path]) -> Iterator[tuple[str, Sequence[float]]]:
    source = zoo.build(name)
    for told, team in (("C+G+D", EVERY), ("C+G", TEAM)):
        stretched = ts.stretch(source, list(team), device=PHONE)
        kept = (c.design for c in stretched.candidates if c.kept and len(c.design.processors) > 1)
        seconds = judge_on(stretched, phones, [next(kept)]).seconds["design 1"]
        yield f"sub-graphs, {told}", [1e3 * (one or 0) for one in seconds]
    layers = (ts.problems.network_problem(source, list(TEAM), device=one) for one in phones)
    codl = [spans(one.problem, {"CoDL": schedule_codl})["CoDL"] / 1e6 for one in layers]
    yield "layers, CoDL on C+G", codl
    single = [
        [(ts.plan_for(source, [p], device=one).predicted_ns or 0) / 1e6 for one in phones]
        for p in EVERY
    ]
    yield "tasks, C, G and D", [1 / sum(1 / ms for ms in one) for one in zip(*single, strict=True)]
    yield from zip(("CPU alone", "GPU alone", "DSP alone"), single, strict=True)


# --- clocks of the CPU ----------------------------------------------------------------------------

_HALVES = 2  # the GPU computes in float16
SCHEDULERS: Mapping[str, Scheduler] = {
    "one processor": schedule_single,
    "MOSAIC": schedule_mosaic,
    "StarPU": schedule_starpu,
    "HOPE:GS": schedule_hope_gs,
    "HOPE:LP": schedule_hope_lp,
}
BELOW = {"highest": (22.1, 10.3), "medium": (17.5, 9.3), "lowest": (19.2, 10.8)}
"""By how many percent HOPE:LP's latencies are below MOSAIC's and StarPU's, at each clock."""


def latencies(name: str, mhz: float) -> dict[str, int]:
    """Nanoseconds of each scheduler's plan at a clock of the CPU."""
    profile = load_profile(f"{PHONE}@cpu={mhz:g}")
    costs = twin_costs(profile, twin_processors(profile, TEAM)[0])
    problem = whole(host_problem(load_network(zoo.build(name)), costs))
    return spans(replace(problem, transfers=transfers_between(len(TEAM), _HALVES)), SCHEDULERS)


def clocks(names: Sequence[str]) -> Iterator[str]:
    """HOPE, figure 5: milliseconds, and means beside the paper's."""
    every = load_profile(PHONE).processor("cpu").mhz
    chosen = (every[0], every[len(every) // 2], every[-1])
    times = {(name, clock): latencies(name, clock) for name in names for clock in chosen}
    rows = ((n, f"{mhz:g}", *(ns / 1e6 for ns in own.values())) for (n, mhz), own in times.items())
    yield from markdown(("network", "MHz of the CPU", *SCHEDULERS), rows)
    yield ""
    means = []
    for (label, theirs), clock in zip(BELOW.items(), chosen, strict=True):
        own = [times[name, clock] for name in names]
        gains = (mean(1 - one["HOPE:LP"] / one[o] for one in own) for o in ("MOSAIC", "StarPU"))
        means.append((label, *(f"{g:.1%}, {t}%" for g, t in zip(gains, theirs, strict=True))))
    yield from markdown(
        ("clock", "HOPE:LP below MOSAIC: ours, paper", "below StarPU: ours, paper"), means
    )


TABLES: Mapping[str, tuple[Callable[[Sequence[str]], Iterator[str]], tuple[str, ...]]] = {
    "strategies": (strategies, ("yolov2", "vgg16", "posenet", "fast_style_transfer", "retinaface")),
    "stretched": (stretched, ("resnet34", "resnet50")),
    "granularities": (granularities, ("resnet50",)),
    "clocks": (clocks, ("squeezenet1_0", "inception_v3")),
}
"""With the paper's networks."""


def main() -> None:
    """Print a table."""
    args = options(__doc__, None, ("what", str), ("networks*", str), what=TABLES)
    table, usual = TABLES[args.what]
    print("\n".join(list(table(args.networks or usual))))  # together: the solver prints, too


if __name__ == "__main__":
    main()
