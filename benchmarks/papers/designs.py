"""NN-Stretch's tables 3, 4, 8 and 9: what meeting points, bounds, copies and shapes of branches do.

    python -m benchmarks.papers.designs meetings      table 3: more meeting points, more accuracy
    python -m benchmarks.papers.designs bounds        table 4: very shallow or narrow branches
    python -m benchmarks.papers.designs copies        table 8: two whole branches
    python -m benchmarks.papers.designs scaling       table 9: less depth, less width, or both

The paper trains on CIFAR-100 and ImageNet. Here small networks of the same families are trained on
drawn shapes of 32x32 pixels (`benchmarks.accuracy_tasks`); their branches have the paper's ratios.
Each seed draws its own images and trains every network of a table on them, so that differences are
those of pairs, with 95 % intervals. Latencies are predicted for the same networks at 672x672
pixels, with a branch each on CPU and DSP of the paper's phone; its profile takes the time of a
meeting from the paper's table 3. Trainings stay in the folder: the same command goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import tvm_stretch as ts
from benchmarks.accuracy import (
    Schedule,
    batches_of,
    fresh,
    interval,
    percent,
    silent,
    trainings,
)
from benchmarks.accuracy_networks import NETWORKS, Small
from benchmarks.accuracy_tasks import CLASSES, SIZE, Data, shapes
from benchmarks.commands import Table, options
from benchmarks.stretched import equal_capacity
from tutorials.zoo.shufflenet import unit
from tvm_stretch.lab.stretching.judge import Candidate
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.lab.stretching.stretching import Stretching
from tvm_stretch.lab.training import Training, fit
from tvm_stretch.lab.training.exchange import graph_of
from tvm_stretch.lab.training.torch_graph import Graph
from tvm_stretch.plan.design import Branch, Design, StretchedSegment

DEVICE, TEAM = "snapdragon-855", ("cpu", "hexagon")
LARGE = 672
"""Pixels along each side of the images for which latencies are predicted: with fewer, such small
networks would take less time than a meeting."""

RESIDUAL = Small(NETWORKS["resnet"].block, 16, (16, 32, 64), (4, 4, 4))
SHUFFLED = Small(unit, 24, (48, 96, 192), (4, 8, 4))

SCHEDULE = Schedule(epochs=8)

Ratios: TypeAlias = tuple[float, float]
"""Depth and width of a branch, relative to the original's."""


@dataclass(frozen=True)
class Row:
    """A network of a table."""

    name: str
    graph: Graph  # at 32x32 pixels
    ns: int  # predicted, at 672x672
    multiply_adds: int  # at 672x672
    parameters: int
    theirs: str  # the paper's row


# --- networks -------------------------------------------------------------------------------------


@cache
def stretching(small: Small, size: int) -> Stretching:
    """A network for images of a size, ready for designs."""
    return ts.stretch(small.build(3, size, CLASSES), TEAM, device=DEVICE)


def design(st: Stretching, *branches: Ratios) -> Design:
    """The same ratios in every stage."""

    def segment(run: Run) -> StretchedSegment:
        own = [
            Branch(name, max(1, round(depth * run.depth)), run.rounded(width))
            for name, (depth, width) in zip(TEAM, branches, strict=True)
        ]
        return StretchedSegment(run.start, run.end, tuple(own), run.merge)

    return Design(tuple(map(segment, st.task.chain.runs)))


def original(small: Small, theirs: str) -> Row:
    """The network without branches, on the faster processor."""
    st = stretching(small, LARGE)
    graph = graph_of(stretching(small, SIZE).mod)[0]
    return Row("as it is", graph, st.task.fastest_alone_ns, *st.original, theirs)


def stretched(name: str, small: Small, judged: Candidate, theirs: str) -> Row:
    """A design of the network for large images, which the one for small images has, too."""
    graph = graph_of(stretching(small, SIZE).module(judged.design))[0]
    return Row(name, graph, judged.ns, judged.multiply_adds, judged.parameters, theirs)


def meetings() -> Iterator[Row]:
    """Table 3: twelve blocks in two branches, which meet after some of them."""
    st = stretching(RESIDUAL, LARGE)
    yield original(RESIDUAL, "")
    for points, theirs in MEETINGS:
        candidates = [
            (w / 100, st.judge(meeting_after(st, points, w / 100))) for w in range(50, 81, 2)
        ]
        ratio, best = min(candidates, key=lambda pair: abs(pair[1].multiply_adds - st.original[0]))
        assert st.task.meetings(best.design)[0] == len(points)
        name = f"{len(points)} meeting points, {ratio:.0%} of the width"
        yield stretched(name, RESIDUAL, best, theirs)


def meeting_after(st: Stretching, points: Sequence[int], ratio: float) -> Design:
    """Two branches of all blocks, which meet after these blocks and are so wide.

    A 1x1 convolution before the concatenation restores the number of channels (equation 1).
    """
    blocks = [block for run in st.task.chain.runs for block in run.blocks]
    segments = []
    for first, last in pairwise((0, *points)):
        branches = [Branch(n, last - first, round(ratio * blocks[last - 1].width)) for n in TEAM]
        ends = blocks[first].start, blocks[last - 1].end
        segments.append(StretchedSegment(*ends, tuple(branches), "restore"))
    return Design(tuple(segments))


def bounds() -> Iterator[Row]:
    """Table 4: the first pair, and others that are shallower or narrower.

    The paper's third pair has as many parameters as the first one, here only the fourth has.
    """
    st = stretching(SHUFFLED, LARGE)
    yield original(SHUFFLED, "")
    for branches, theirs in BOUNDS:
        name = " and ".join(f"({depth:g}, {width:g})" for depth, width in branches)
        yield stretched(name, SHUFFLED, st.judge(design(st, *branches)), theirs)


def copies() -> Iterator[Row]:
    """Table 8: every segment twice."""
    st = stretching(RESIDUAL, LARGE)
    yield original(RESIDUAL, "76.7 %")
    yield stretched("two whole branches", RESIDUAL, st.judge(design(st, (1, 1), (1, 1))), "78.2 %")


def scaling() -> Iterator[Row]:
    """Table 9: half the depth, as much less width, and the fastest of at least that capacity."""
    st = stretching(RESIDUAL, LARGE)
    yield original(RESIDUAL, "76.7 %, 1")
    deep = st.judge(design(st, (0.5, 1), (0.5, 1)))
    yield stretched("half the depth", RESIDUAL, deep, "75.7 %, 1.3 times as fast")
    widths = [st.judge(design(st, (1, w / 100), (1, w / 100))) for w in range(50, 81)]
    wide = min(widths, key=lambda each: abs(each.multiply_adds - deep.multiply_adds))
    ratio = wide.design.segments[-1].branches[0].width / st.task.chain.runs[-1].width
    yield stretched(f"{ratio:.0%} of the width", RESIDUAL, wide, "76.2 %, 1.2 times as fast")
    least = min(deep, wide, key=lambda each: each.multiply_adds)
    both = equal_capacity(st, least.multiply_adds, least.parameters)
    name = f"depth and width: {both.design}"
    yield stretched(name, RESIDUAL, both, "76.2 %, 1.5 times as fast")


MEETINGS: Sequence[tuple[Sequence[int], str]] = (
    ((12,), "70.3 %, 13.2 ms"),
    ((8, 12), "71.0 %, 13.9 ms"),
    ((4, 8, 12), "72.0 %, 14.5 ms"),
    (range(2, 13, 2), "72.3 %, 16.1 ms"),
    (range(1, 13), "(9 points) 72.5 %, 17.9 ms"),
)
BOUNDS: Sequence[tuple[tuple[Ratios, Ratios], str]] = (
    (((0.5, 1), (0.75, 0.4)), "72.8 %, 0.83 G, 1.38 M"),
    (((0.5, 1), (0.3, 1)), "71.5 %, 0.90 G, 1.50 M"),
    (((1, 0.5), (1, 0.3)), "70.4 %, 0.83 G, 1.37 M"),
    (((1, 0.75), (1, 0.3)), ""),
)
TABLES: Mapping[str, Callable[[], Iterator[Row]]] = {
    "meetings": meetings,
    "bounds": bounds,
    "copies": copies,
    "scaling": scaling,
}


# --- accuracies -----------------------------------------------------------------------------------


def accuracies(
    rows: Sequence[Row], folder: Path, seeds: int, schedule: Schedule, workers: int
) -> list[list[float]]:
    """Percent of each row and seed; finished trainings are read from the folder."""
    jobs = {
        folder / f"design.{row.graph.fingerprint}.{seed}.json": (row.graph, seed, schedule)
        for seed in range(seeds)
        for row in rows
    }
    found = [float(row["percent"]) for row in trainings(jobs, trained, schedule, workers)]
    return [found[i :: len(rows)] for i in range(len(rows))]


def trained(job: tuple[Graph, int, Schedule]) -> dict[str, float]:
    """Percent of the tests that a network classifies correctly after training from a seed."""
    graph, seed, schedule = job
    data = _data(seed, schedule)
    how = Training(epochs=schedule.epochs, rate=schedule.rate, seed=seed, progress=silent)
    net = fresh(graph, seed)
    fit(net, batches_of(data, schedule), how)
    return {"percent": percent(net, data)}


@cache
def _data(seed: int, schedule: Schedule) -> Data:
    return shapes(seed, schedule.trained, schedule.tested)


# --- the page -------------------------------------------------------------------------------------


def show(rows: Sequence[Row], found: Sequence[Sequence[float]]) -> None:
    """Print the first row's accuracy, and paired differences to it."""
    heads = "branches", "accuracy, points", "ms", "times as fast", "M multiply-adds"
    table, first, base = Table(*heads, "k parameters", "paper"), rows[0], found[0]
    for row, percents in zip(rows, found, strict=True):
        told = f"{sum(base) / len(base):.2f} %"
        if row is not first:
            mean, half = interval([one - other for one, other in zip(percents, base, strict=True)])
            sure = len(base) > 1
            told = f"{mean:+.2f}" + (f" [{mean - half:+.2f}, {mean + half:+.2f}]" if sure else "")
        size = f"{row.multiply_adds / 1e6:.1f}", f"{row.parameters / 1e3:.0f}"
        table.row(row.name, told, row.ns / 1e6, first.ns / row.ns, *size, row.theirs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    args = options(
        *(__doc__, arguments, ("table", str), ("--folder", Path("build/papers"), "of trainings")),
        *(("--seeds", 3), ("--workers", len(os.sched_getaffinity(0))), *SCHEDULE.words),
        table=TABLES,
    )
    schedule = Schedule.of_words(args)
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = list(TABLES[args.table]())
    found = accuracies(rows, args.folder, args.seeds, schedule, args.workers)
    print(f"{args.seeds} seeds, {schedule.trained} images, {schedule.epochs} epochs")
    show(rows, found)


if __name__ == "__main__":
    main()
