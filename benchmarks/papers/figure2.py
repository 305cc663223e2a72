"""Potentials & Pitfalls, figure 2: strategies beside each other on five networks, in floats.

    python -m benchmarks.papers.figure2 [yolov2 ..]

The paper has three phones; the profile of one of them, a Snapdragon 855, predicts each strategy
here: every operator on the CPU, every operator on the GPU, µLayer, CoDL, and our plan. Floats cost
what the profile says of float32 (the paper's own table 3, by which its rates were set). The paper's
milliseconds are those of that table; its PoseNet is a larger one, so that only ratios compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tvm_stretch as ts
from benchmarks.baselines import schedule_codl, schedule_mulayer
from benchmarks.commands import markdown, options
from benchmarks.scheduling_profiles import spans
from tutorials import zoo
from tvm_stretch.plan.scheduling.problem import Problem

NETWORKS = ("yolov2", "vgg16", "posenet", "fast_style_transfer", "retinaface")
PHONE, TEAM = "snapdragon-855", ("cpu", "opencl")
THEIRS = {"yolov2": (219, 170), "vgg16": (240, 171), "posenet": (430, 328)}
"""The paper's milliseconds of MACE on the GPU, and of CoDL on CPU and GPU."""


def alone(problem: Problem, place: int) -> int:
    """Nanoseconds of all operators on a processor; those that it refuses run on the other one."""
    return sum(
        problem.cost(op, place if place in problem.supported[op] else problem.fastest(op))
        for op in range(len(problem.operators))
    )


def row(name: str) -> tuple[str, ...]:
    """Predicted milliseconds of each strategy, and ratios to the GPU beside the paper's."""
    source = zoo.build(name)
    network = ts.problems.network_problem(source, TEAM, device=PHONE, as_built=True)
    cpu, gpu = (alone(network.problem, place) / 1e6 for place in (0, 1))
    both = spans(network.problem, {"µLayer": schedule_mulayer, "CoDL": schedule_codl})
    mulayer, codl = (both[name] / 1e6 for name in ("µLayer", "CoDL"))
    plan = ts.plan_for(source, TEAM, device=PHONE, as_built=True)
    ours = (plan.predicted_ns or 0) / 1e6
    theirs = THEIRS.get(name)
    ratios = (f"{mulayer / gpu:.2f}", f"{codl / gpu:.2f}", f"{ours / gpu:.2f}")
    told = (
        ("", "")
        if theirs is None
        else (f"{theirs[0]}, {theirs[1]}", f"{theirs[1] / theirs[0]:.2f}")
    )
    times = (f"{ms:.1f}" for ms in (cpu, gpu, mulayer, codl, ours))
    return name, *times, *ratios, *told


def table(names: Sequence[str]) -> Iterator[str]:
    """A row for each network."""
    heads = ("CPU", "GPU", "µLayer", "CoDL", "ours")
    ratios = ("µLayer / GPU", "CoDL / GPU", "ours / GPU")
    paper = ("paper: GPU, CoDL", "paper: CoDL / GPU")
    yield from markdown(("predicted ms", *heads, *ratios, *paper), map(row, names))


def main() -> None:
    """Run from the command line."""
    arguments = options(__doc__, None, ("networks*", str))
    print("\n".join(table(arguments.networks or NETWORKS)))


if __name__ == "__main__":
    main()
