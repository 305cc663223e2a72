"""Judges a design: its latency, its capacity, and the rule that would prune it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tvm import relax

from tvm_stretch.base.errors import PlanError, UnsupportedError
from tvm_stretch.lab.stretching.block_layers import channels_of, count
from tvm_stretch.lab.stretching.design_rules import Rules, judge
from tvm_stretch.lab.stretching.predict import Chain, Figures, predict
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.lab.stretching.tables import Pricing, gain_of_width, slimness
from tvm_stretch.network.operators import Operators
from tvm_stretch.network.properties.block_widths import BlockWidths
from tvm_stretch.network.properties.repeated_blocks import detect_blocks
from tvm_stretch.passes.duplicate_and_scale import blocks_of_segment, check_segment
from tvm_stretch.plan.design import Branch, Design, StretchedSegment
from tvm_stretch.targets.processor import Processor


@dataclass(frozen=True)
class Candidate:
    """A design with its predictions.

    Attributes:
        design: the design.
        ns: predicted latency.
        multiply_adds: multiply-adds of the whole network.
        parameters: parameters of the whole network.
        rule: the rule that prunes it, empty if none does.
        what: a description, empty if there is none.
        accuracy: the share of the tests that it classifies correctly, trained in a supernet; None
            if it was not trained (`ts.stretching.AccuracyTarget`).
    """

    design: Design
    ns: int
    multiply_adds: int
    parameters: int
    rule: str = ""
    what: str = ""
    accuracy: float | None = None

    @property
    def kept(self) -> bool:
        """Whether no rule prunes it."""
        return not self.rule

    def __str__(self) -> str:
        return (
            f"{self.ns / 1e6:9.3f} ms {self.multiply_adds / 1e6:9.1f} M multiply-adds "
            f"{self.parameters / 1e6:7.2f} M parameters  {self.what or self.design}"
            + ("" if self.accuracy is None else f"  right in {self.accuracy:.1%}")
            + (f"  pruned: {self.rule}" if self.rule else "")
        )


class Candidates(tuple[Candidate, ...]):
    """Candidates, the fastest first; those that a rule pruned come last."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))


@dataclass(frozen=True, eq=False)
class Task:
    """The network to stretch, with its costs."""

    chain: Chain  # the network in stages
    pricing: Pricing  # the costs of its layers
    home: int  # the place of the processor that runs operators outside of branches

    def meetings(self, design: Design) -> tuple[int, str]:
        """The number of meeting points, and an end of a stage that is none; empty if all are."""
        ends = {run.end: None for run in self.chain.runs}
        blocks = detect_blocks(self.chain.operators)
        inside = {
            block.output
            for segment in design.segments
            for block in blocks_of_segment(blocks, segment)[:-1]
        }
        points = ({*ends} - inside) | {segment.end for segment in design.segments}
        return len(points), next((end for end in ends if end in inside), "")

    def alone_ns(self, place: int) -> int:
        """The latency of the unstretched network on one processor."""
        kernels = self.pricing.nanoseconds(self.chain.layers(), place, together=False)
        return round(kernels) + self.pricing.costs.regions[place]

    @cached_property
    def fastest_alone_ns(self) -> int:
        """The latency on the fastest processor that supports the whole network."""
        operators = self.chain.operators
        processors = enumerate(self.pricing.costs.processors)
        return min(self.alone_ns(place) for place, p in processors if runs_all(p, operators))


def runs_all(processor: Processor, operators: Operators) -> bool:
    """Whether a processor supports the network once batch normalisations are folded."""
    return why_not_all(processor, operators) is None


def why_not_all(processor: Processor, operators: Operators) -> str | None:
    """The first reason why a processor does not support the network, or None."""
    for operator in operators:
        call = operator.binding.value
        if operator.kind != "nn.batch_norm" and isinstance(call, relax.Call):
            reason = processor.why_not(call)
            if reason:
                return f"{operator.name}: {reason}"
    return None


def candidate_of(
    task: Task, design: Design, figures: Figures, rule: str = "", what: str = ""
) -> Candidate:
    """A candidate with its predictions, pruned if it is slower than one processor."""
    if not rule and figures.ns > task.fastest_alone_ns:
        rule = f"slower than one processor alone ({task.fastest_alone_ns / 1e6:.3f} ms)"
    return Candidate(design, figures.ns, figures.multiply_adds, figures.parameters, rule, what)


def refuse_unknown(design: Design, task: Task) -> None:
    """Raise PlanError if a branch names an unknown processor."""
    names = [processor.name for processor in task.pricing.costs.processors]
    for name in design.processors:
        if name not in names:
            raise PlanError(
                f"expected one of the processors {names} for the branches of the design, got "
                f"{name!r}; rename it"
            )


def judge_design(task: Task, rules: Rules, design: Design, what: str = "") -> Candidate:
    """Simulate a design and apply the rules.

    Raises:
        PlanError: it does not fit the network, or names an unknown processor.
    """
    refuse_unknown(design, task)
    runs = _runs_of(task.chain.operators, design)
    for listed in design.segments:
        check_segment(listed, runs[listed.start].blocks)
    chain = Chain.cut(task.chain.operators, list(runs.values()))
    figures = predict(chain, design, task.pricing, task.home)
    widths: dict[str, int] = {}
    broken: list[str] = []
    segments = {segment.start: segment for segment in design.segments}
    for run in runs.values():
        read, widths[run.end] = channels_of(chain.operators, run.start, widths), run.width
        segment = segments.get(run.start)
        if segment is not None:
            widths[run.end] = run.out_width([b.width for b in segment.branches], segment.merge)
            why = _broken_rule(task, rules, run, segment, read)
            broken += [f"segment {design.segments.index(segment) + 1}: {why}"] if why else []
    rule = broken[0] if broken else _structure(task, rules, design)
    return candidate_of(task, design, figures, rule, what)


def _structure(task: Task, rules: Rules, design: Design) -> str:
    """Why a design has too few meeting points for the rules; empty if it has enough."""
    count, joined = task.meetings(design)
    if rules.meetings is None:
        return f"structure ({joined} ends a stage and no segment)" if joined else ""
    return f"meeting points (at least {rules.meetings})" if count < rules.meetings else ""


def _runs_of(operators: Operators, design: Design) -> dict[str, Run]:
    """The design's segments and all other blocks in the network's order, by the value they read."""
    blocks = detect_blocks(operators)
    segment_of = {}
    for segment in design.segments:
        for block in blocks_of_segment(blocks, segment):
            if block.output in segment_of:
                raise PlanError(
                    f"expected segments that share no block, got {block.output!r} in two of them; "
                    "correct the design"
                )
            segment_of[block.output] = segment.start
    runs: dict[str, Run] = {}
    for block in blocks:
        start = segment_of.get(block.output)
        try:
            ties = BlockWidths(operators, [operators[name] for name in block.operators])
        except UnsupportedError:
            if start is not None:
                raise
            continue
        begin = start or ties.start
        before = runs[begin].blocks if begin in runs else ()
        runs[begin] = Run(operators, (*before, ties))
    return runs


def _broken_rule(task: Task, rules: Rules, run: Run, segment: StretchedSegment, read: int) -> str:
    """The first rule that the branches of a segment break."""
    if len(segment.branches) < 2:
        return ""
    pricing, costs = task.pricing, task.pricing.costs
    names = [processor.name for processor in costs.processors]
    places = [names.index(branch.processor) for branch in segment.branches]
    if any(
        b.depth < rules.least_ratio * run.depth or b.width < rules.least_ratio * run.width
        for b in segment.branches
    ):
        return f"bounds (depth and width of at least {rules.least_ratio:g})"
    originals = [
        np.asarray([pricing.nanoseconds(run.original(), p, together=False), *count(run.original())])
        for p in places
    ]
    alone = min(float(original[0]) for original in originals)
    meeting = costs.meeting(places, task.chain.operators.bytes(run.end))
    if not _is_stage(task, run) and meeting > rules.alpha * alone:
        return f"equation 4 (a meeting costs at most {rules.alpha:g} of its segment)"
    branches, shapes = [], []
    for index, place in enumerate(places):
        own = segment.branches[index]
        slim = slimness(np.asarray([own.depth]), np.asarray([own.width]), run)
        shapes.append((gain_of_width(run, pricing, place), slim))
        layers = run.layers(segment, index, read)
        row = (pricing.nanoseconds(layers, place), *count(layers))
        branches.append(tuple(np.asarray([value], "float64") for value in row))
    judged = judge(branches, originals, rules, meeting, shapes)
    return next((rule for rule, keeps in judged.keeps.items() if not keeps.all()), "")


def _is_stage(task: Task, run: Run) -> bool:
    """Whether a run begins and ends with stages."""
    starts, ends = zip(*((stage.start, stage.end) for stage in task.chain.runs), strict=True)
    return run.start in starts and run.end in ends


def simple_designs(
    task: Task, able: Sequence[int], merge: str | None
) -> Iterator[tuple[str, Design]]:
    """The simple designs that NN-Stretch compares with (tables 8 and 9)."""
    names = [task.pricing.costs.processors[place].name for place in able[:3]]
    runs = task.chain.runs

    def design(depth: float, width: float) -> Design:
        return Design(
            tuple(
                StretchedSegment(
                    run.start,
                    run.end,
                    tuple(
                        Branch(name, scaled(run.depth, depth), run.rounded(width)) for name in names
                    ),
                    merge or run.merge,
                )
                for run in runs
            )
        )

    def scaled(depth: int, ratio: float) -> int:
        return max(1, round(depth * ratio))

    yield "branches as deep and wide as it is", design(1, 1)
    yield "branches of half the depth", design(0.5, 1)
    yield "branches of half the width", design(1, 0.5)
