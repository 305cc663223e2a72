"""NN-Stretch, figure 11: stretched networks beside CoDL and µLayer, on CPU and GPU.

    python -m benchmarks.papers.figure11 [resnet34 resnet50]

All times are predicted by the profile of a Snapdragon 855, with the paper's types: 8 bits on the
CPU and half floats on the GPU, which are µLayer's, too. CoDL and µLayer keep the network and share
layers; the stretched network (`ts.stretch`, at least 90 % of the capacity) meets at the
ends of stages alone. CoDL takes neither RegNetX nor EfficientNet, so the paper has two networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tvm_stretch as ts
from benchmarks.baselines import schedule_codl, schedule_mulayer
from benchmarks.commands import markdown, options
from benchmarks.papers.figure2 import PHONE, TEAM, alone
from benchmarks.scheduling_profiles import spans
from tutorials import zoo

NETWORKS = ("resnet34", "resnet50")


def row(name: str) -> tuple[str, ...]:
    """Milliseconds of each way, and how many times as fast the stretched network is."""
    source = zoo.build(name)
    problem = ts.problems.network_problem(source, TEAM, device=PHONE).problem
    single = [alone(problem, place) / 1e6 for place in (0, 1)]
    both = spans(problem, {"µLayer": schedule_mulayer, "CoDL": schedule_codl})
    mulayer, codl = (both[way] / 1e6 for way in ("µLayer", "CoDL"))
    best = ts.stretch(source, TEAM, device=PHONE).best
    ours = best.ns / 1e6
    times = (f"{ms:.1f}" for ms in (*single, mulayer, codl, ours))
    return name, *times, f"{codl / ours:.2f}", f"{single[1] / ours:.2f}", str(best.design)


def table(names: Sequence[str]) -> Iterator[str]:
    """A row for each network."""
    heads = ("predicted ms", "CPU", "GPU", "µLayer", "CoDL", "stretched")
    gains = ("times as fast as CoDL", "as the GPU", "design")
    rows = ([cell.replace(" | ", " + ") for cell in row(name)] for name in names)
    yield from markdown((*heads, *gains), rows)


def main() -> None:
    """Run from the command line."""
    arguments = options(__doc__, None, ("networks*", str))
    print("\n".join(table(arguments.networks or NETWORKS)))


if __name__ == "__main__":
    main()
