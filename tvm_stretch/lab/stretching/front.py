"""Latency over capacity: designs with more or fewer multiply-adds and parameters (figure 12).

ms
20 |                         *  unstretched, on the fastest processor
15 |               o  o  o
10 |     o  o  o                  designs; no design is both faster and larger
+-------------------------- share of the original's capacity
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import log10

from tvm_stretch.base.compiling import uncollected
from tvm_stretch.base.errors import PlanError
from tvm_stretch.base.files import as_path, write_whole, writing
from tvm_stretch.base.progress import step
from tvm_stretch.lab.stretching.block_layers import block_layers, count
from tvm_stretch.lab.stretching.design_rules import Rules, space_of_table_2
from tvm_stretch.lab.stretching.design_search import Search
from tvm_stretch.lab.stretching.judge import Candidate, Task, candidate_of
from tvm_stretch.lab.stretching.predict import Chain, predict
from tvm_stretch.lab.stretching.segments import Run, cut_runs, join_runs
from tvm_stretch.plan.design import Design

CAPACITIES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)
"""Capacities to search designs for, as shares of the original's; see `Rules.capacity`."""

_APART = 0.03
"""The least difference between the capacities of two designs."""

_Place = Callable[[float, float], tuple[float, float]]

_WIDTH, _HEIGHT, _LEFT, _TOP = 520, 300, 56, 24


@dataclass(frozen=True)
class Front:
    """The Pareto front: designs such that no other one is both faster and larger.

    Attributes:
        points: the candidates, the smallest first, or the least accurate first.
        original: multiply-adds and parameters of the unstretched network.
        alone_ns: its latency on the fastest processor.
        accuracy: its accuracy beside designs that were trained (`AccuracyTarget`); None if designs
            are compared by capacity.
    """

    points: tuple[Candidate, ...]
    original: tuple[int, int]
    alone_ns: int
    accuracy: float | None = None

    @property
    def what(self) -> str:
        """The other axis, beside latency."""
        return "capacity" if self.accuracy is None else "accuracy"

    def share(self, candidate: Candidate) -> float:
        """Accuracy, or capacity as a share of the original's: of multiply-adds and parameters."""
        if self.accuracy is not None:
            return candidate.accuracy or 0.0
        work, size = self.original
        return min(candidate.multiply_adds / work, candidate.parameters / size)

    def __str__(self) -> str:
        """A table in Markdown."""
        rows = [
            f"| {self.share(point):.2f} | {point.ns / 1e6:.2f} | "
            f"x{self.alone_ns / point.ns:.2f} | {str(point.design).replace(' | ', ' + ')} |"
            for point in self.points
        ]
        head = (f"| {self.what} | ms | gain | design |", "| --- | --- | --- | --- |")
        whole = 1.0 if self.accuracy is None else self.accuracy
        return "\n".join(
            (*head, f"| {whole:.2f} | {self.alone_ns / 1e6:.2f} | x1.00 | as it is |", *rows)
        )

    def svg(self) -> str:
        """The picture: a dot for each design, a star for the unstretched network."""
        dots = [(self.share(point), point.ns / 1e6) for point in self.points]
        star = (1.0 if self.accuracy is None else self.accuracy, self.alone_ns / 1e6)
        right, high = (1.1 * max(values) for values in zip(*dots, star, strict=True))

        def place(x: float, y: float) -> tuple[float, float]:
            across, up = x / right, y / high
            return round(_LEFT + across * _WIDTH, 1), round(_TOP + (1 - up) * _HEIGHT, 1)

        parts = list(_axes(place, right, high, self.what))
        line = " ".join(f"{x},{y}" for x, y in (place(*dot) for dot in dots))
        parts.append(f'<polyline points="{line}" fill="none" stroke="#36c"/>')
        for point, dot in zip(self.points, dots, strict=True):
            x, y = place(*dot)
            design = html.escape(str(point.design))
            label = f"<title>{point.ns / 1e6:.2f} ms, {dot[0]:.2f}: {design}</title>"
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#36c">{label}</circle>')
        x, y = place(*star)
        label = f"<title>as it is: {star[1]:.2f} ms</title>"
        parts.append(_text(x, y + 7, f"★{label}", 'font-size="22" fill="#c30"'))
        size = f'width="{_LEFT + _WIDTH + 20}" height="{_TOP + _HEIGHT + 48}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
        return "\n".join(
            (head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n")
        )

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write the picture as SVG; the file appears complete or not at all."""
        with writing("the picture", PlanError):
            write_whole(as_path(path, "the picture"), self.svg())


def _axes(place: _Place, right: float, high: float, what: str) -> Iterator[str]:
    """The two axes with their numbers."""
    corners = " ".join(f"{x},{y}" for x, y in (place(0, high), place(0, 0), place(right, 0)))
    yield f'<polyline points="{corners}" fill="none" stroke="#666"/>'
    for tenth in range(2, int(10 * right) + 1, 2):
        x, y = place(tenth / 10, 0)
        yield _text(x, y + 18, f"{tenth / 10:.1f}")
    for part in range(1, 6):
        x, y = place(0, high * part / 5)
        yield _text(x - 26, y + 4, f"{high * part / 5:.3g}")
    x, y = place(right / 2, 0)
    yield _text(x, y + 38, f"{what}, of the original's" if what == "capacity" else what)
    x, y = place(0, high)
    yield _text(x, y - 8, "predicted ms")


def _text(x: float, y: float, text: str, rest: str = 'font-size="12" fill="#333"') -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" {rest}>{text}</text>'


def find_front(task: Task, places: Sequence[int], rules: Rules, merge: str | None) -> Front:
    """Search for designs of several capacities.

    Args:
        task: the network.
        places: the places of processors that may get branches.
        rules: the rules that prune designs; each search sets another capacity.
        merge: how branches are merged; by default as each block suggests.
    """
    original = count(task.chain.layers())
    every: dict[Candidate, None] = {}
    for capacity in CAPACITIES:
        step()
        candidates, _ = find_candidates(task, places, replace(rules, capacity=capacity), merge)
        every.update(dict.fromkeys(candidate for candidate in candidates if candidate.kept))
    front = Front((), original, task.fastest_alone_ns)
    return replace(front, points=_thinned(every, front.share))


def front_of_trained(task: Task, candidates: Iterable[Candidate], accuracy: float) -> Front:
    """The designs that are trained such that no other one is both faster and more accurate."""
    trained = [one for one in candidates if one.accuracy is not None]
    front = Front((), count(task.chain.layers()), task.fastest_alone_ns, accuracy)
    return replace(front, points=_thinned(trained, front.share, apart=0.0))


def _thinned(
    every: Iterable[Candidate], share: Callable[[Candidate], float], apart: float = _APART
) -> tuple[Candidate, ...]:
    """The Pareto front, with only the fastest of designs that are nearly as large."""
    best: list[Candidate] = []
    for candidate in sorted(every, key=lambda c: (-share(c), c.ns)):
        if not best or candidate.ns < best[-1].ns:
            best.append(candidate)
    points: list[Candidate] = []
    for candidate in reversed(best):
        if not points or share(candidate) > share(points[-1]) + apart:
            points.append(candidate)
    return tuple(points)


MOST_SIMULATED = 20


@uncollected()
def find_candidates(
    task: Task, able: Sequence[int], rules: Rules, merge: str | None
) -> tuple[list[Candidate], dict[str, float]]:
    """Candidates for each set of processors, and the number of designs after each rule.

    Args:
        able: the places of processors that may get branches.
        merge: how branches are merged; by default as each block suggests.
    """
    blocks = sum(run.depth for run in task.chain.runs)
    space = {"all of them (table 2)": space_of_table_2(blocks, len(able))}
    sets = [s for size in (2, 3) for s in combinations(able, size)]
    segmentations = _segmentations(task, able, rules)
    by_design: dict[Design, Candidate] = {}
    for runs in segmentations:
        own = replace(task, chain=Chain.cut(task.chain.operators, runs))
        for places in sets:
            step()
            search = Search(runs, task.pricing, places, task.home, rules, merge)
            share = MOST_SIMULATED // (len(segmentations) * len(sets))
            designs, left = search.best(max(1, share))
            if runs is segmentations[0] and len(places) == min(3, len(able)):
                space.update(left)
            for design in designs:
                step()
                figures = predict(own.chain, design, own.pricing, own.home)
                by_design.setdefault(design, candidate_of(task, design, figures))
    space["simulated"] = log10(max(1, len(by_design)))
    return list(by_design.values()), space


def _segmentations(task: Task, able: Sequence[int], rules: Rules) -> list[tuple[Run, ...]]:
    """The stages; cut further where equation 4 allows it; joined where fewer points are enough."""
    runs, costs = task.chain.runs, task.pricing.costs
    latency = {}
    for block in (block for run in runs for block in run.blocks):
        layers = block_layers(block, block.channels(block.start), block.width)
        alone = (task.pricing.nanoseconds(layers, place, together=False) for place in able)
        latency[block.end] = round(min(alone))
    cut = cut_runs(runs, latency, lambda size: costs.meeting(able, size), rules.alpha)
    segmentations = [runs] if len(cut) == len(runs) else [runs, cut]
    joined: tuple[Run, ...] | None = runs
    while rules.meetings is not None and joined is not None and len(joined) > rules.meetings:
        joined = join_runs(joined, latency)
        segmentations += [joined] if joined else []
    return segmentations
