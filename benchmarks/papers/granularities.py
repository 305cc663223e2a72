"""Potentials & Pitfalls, figure 4, on its own phone: granularities while other programs compete.

    python -m benchmarks.papers.granularities

ResNet-50 on the profile of a Snapdragon 855, in 8 bits (half floats on the GPU): in sub-graphs
(stretched for three and for two processors), in layers (CoDL), and in tasks, where consecutive
frames go to different processors. Tasks have a throughput; shown are milliseconds for each frame.
Competing processes take their share of the CPU's cores alone: with n of them the CPU is n + 1
times slower. Designs are those of the idle phone, CoDL's shares follow the present speeds, and
hand-overs take as long as before. The paper's text states 19 ms in sub-graphs on the idle phone and
48 % more for CoDL, that CoDL is the fastest beside two competitors, and that three make the CPU
10.2 times slower.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import tvm_stretch as ts
from benchmarks.baselines import schedule_codl
from benchmarks.commands import markdown, options
from benchmarks.scheduling_profiles import spans
from tutorials import zoo
from tvm_stretch.lab.stretching.devices import judge_on
from tvm_stretch.plan.cost.profile import Profile
from tvm_stretch.plan.cost.profile_file import load_profile, write_profile

NETWORK, PHONE = "resnet50", "snapdragon-855"
COMPETITORS = range(4)
TEAMS = {"sub-graphs, C+G+D": ["cpu", "opencl", "hexagon"], "sub-graphs, C+G": ["cpu", "opencl"]}


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


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Milliseconds of each granularity with 0 to 3 competitors."""
    phones = []
    for count in COMPETITORS:
        phones.append(folder / f"{count}.toml")
        write_profile(beside(load_profile(PHONE), count), phones[-1])
    source = zoo.build(NETWORK)
    for name, team in TEAMS.items():
        stretched = ts.stretch(source, team, device=PHONE)
        best = next(
            c.design for c in stretched.candidates if c.kept and len(c.design.processors) > 1
        )
        seconds = judge_on(stretched, phones, [best]).seconds["design 1"]
        yield name, *(f"{1e3 * (one or 0):.1f}" for one in seconds)
    problems = [
        ts.problems.network_problem(source, TEAMS["sub-graphs, C+G"], device=one).problem
        for one in phones
    ]
    codl = [spans(one, {"CoDL": schedule_codl})["CoDL"] / 1e6 for one in problems]
    yield "layers, CoDL on C+G", *(f"{ms:.1f}" for ms in codl)
    alone = [
        [(ts.plan_for(source, [p], device=one).predicted_ns or 0) / 1e6 for one in phones]
        for p in ("cpu", "opencl", "hexagon")
    ]
    yield (
        "tasks, C, G and D",
        *(f"{1 / sum(1 / ms for ms in one):.1f}" for one in zip(*alone, strict=True)),
    )
    for name, times in zip(("CPU alone", "GPU alone", "DSP alone"), alone, strict=True):
        yield name, *(f"{ms:.1f}" for ms in times)


def main() -> None:
    """Run from the command line."""
    options(__doc__, None)
    heads = ("ResNet-50, predicted ms", *(f"{count} competitors" for count in COMPETITORS))
    with tempfile.TemporaryDirectory() as folder:
        print("\n".join(markdown(heads, rows(Path(folder)))))


if __name__ == "__main__":
    main()
