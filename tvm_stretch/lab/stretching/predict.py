"""Predicts a design's latency by simulating its branches as the executor runs them.

cpu     [stem][64 -> 80, 3 blocks ....][144 -> ..
opencl        [64 -> 64, 3 blocks ...] [144 -> ..
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm_stretch.lab.stretching.block_layers import Layer, channels_of, count, outside_layers
from tvm_stretch.lab.stretching.segments import Run
from tvm_stretch.lab.stretching.tables import Pricing
from tvm_stretch.network.operators import Operators
from tvm_stretch.plan.design import Design, StretchedSegment
from tvm_stretch.plan.scheduling.problem import Job, Problem, Tensor
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence


@dataclass(frozen=True)
class Chain:
    """The runs of a network and the operators between them."""

    operators: Operators  # the operators of the network
    runs: tuple[Run, ...]  # the runs, in order
    # operators before the first run, between two runs, and after the last one
    between: tuple[tuple[str, ...], ...]

    @staticmethod
    def cut(operators: Operators, runs: Sequence[Run]) -> Chain:
        """Assign each operator outside of the runs to its gap."""
        position = {m.name: i for i, r in enumerate(runs) for b in r.blocks for m in b.members}
        names: list[list[str]] = [[] for _ in range(len(runs) + 1)]
        current = 0
        for operator in operators:
            if operator.name in position:
                current = position[operator.name] + 1
            else:
                names[current].append(operator.name)
        return Chain(operators, tuple(runs), tuple(map(tuple, names)))

    def outside(self) -> list[Layer]:
        """The layers of the original network that belong to no run."""
        return outside_layers(self.operators, [n for names in self.between for n in names], {})

    def layers(self) -> list[Layer]:
        """All layers of the original network."""
        return [*self.outside(), *(layer for run in self.runs for layer in run.original())]


@dataclass(frozen=True)
class Figures:
    """The predictions of a design."""

    ns: int  # predicted latency
    multiply_adds: int  # multiply-adds of the whole network
    parameters: int  # parameters of the whole network
    busy: tuple[int, ...]  # nanoseconds that each processor works


def predict(chain: Chain, design: Design, pricing: Pricing, home: int) -> Figures:
    """Simulate a design.

    Args:
        design: its segments are runs of the chain.
        home: the place of the processor that runs operators outside of branches.
    """
    timeline = Timeline(chain, pricing, home)
    segments = {segment.start: segment for segment in design.segments}
    for index, names in enumerate(chain.between):
        timeline.outside(names)
        if index < len(chain.runs):
            timeline.run(chain.runs[index], segments.get(chain.runs[index].start))
    return timeline.figures()


@dataclass
class Timeline:
    """Jobs in execution order; `heads` are the jobs whose results the next one reads."""

    chain: Chain
    pricing: Pricing
    home: int
    layers: list[Layer] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    placement: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    heads: tuple[int, ...] = ()
    widths: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        operators = self.chain.operators
        size = sum(operators.bytes(name) for name in operators.params)
        self.heads = (self._add("inputs", 0, 0.0, (), size),)

    def _add(self, name: str, place: int, ns: float, reads: tuple[int, ...], size: int) -> int:
        places = range(len(self.pricing.costs.processors))
        costs = tuple(round(ns) if p == place else None for p in places)
        self.jobs.append(Job(f"{len(self.jobs)} {name}", costs))
        self.placement.append(place)
        self.reads.append(reads)
        self.bytes.append(size)
        return len(self.jobs) - 1

    def _job(self, name: str, place: int, layers: Sequence[Layer], size: int, alone: bool) -> int:
        self.layers += layers
        ns = self.pricing.nanoseconds(layers, place, together=not alone)
        return self._add(name, place, ns, self.heads, size)

    def outside(self, names: Sequence[str]) -> None:
        """Add operators outside of runs as one job; the other processors wait for it anyway."""
        layers = outside_layers(self.chain.operators, names, self.widths)
        if layers:
            last = names[-1]
            size = self._size(last, channels_of(self.chain.operators, last, self.widths))
            self.heads = (self._job(last, self.home, layers, size, alone=True),)

    def run(self, run: Run, segment: StretchedSegment | None) -> None:
        """Add a run: its branches if it is stretched, else one job."""
        read = channels_of(self.chain.operators, run.start, self.widths)
        if segment is None:
            whole = run.first_layers(read, run.width, "concat", 1)
            whole += run.other_layers(run.depth, run.width)
            size = self._size(run.end, run.width)
            self.heads = (self._job(run.end, self.home, whole, size, alone=True),)
            self.widths[run.end] = run.width
            return
        names = [processor.name for processor in self.pricing.costs.processors]
        widths = [branch.width for branch in segment.branches]
        out = run.out_width(widths, segment.merge)
        branches = []
        for index, branch in enumerate(segment.branches):
            own = branch.width if segment.merge == "concat" else out // len(widths)
            layers, place = run.layers(segment, index, read), names.index(branch.processor)
            branches.append((str(branch), place, layers, self._size(run.end, own)))
        self.branches(branches)
        self.widths[run.end] = out

    def branches(self, branches: Sequence[tuple[str, int, Sequence[Layer], int]]) -> None:
        """Add jobs that read the same: name, place, layers and bytes of the result of each."""
        self.heads = tuple(self._job(*branch, alone=len(branches) == 1) for branch in branches)

    def _size(self, name: str, channels: int) -> int:
        shape = self.chain.operators.shape(name)
        if len(shape) < 2:
            return 0
        return self.chain.operators.bytes(name) * channels // shape[1]

    def figures(self) -> Figures:
        """Simulate all jobs."""
        simulation = self._simulate()
        busy = tuple(
            sum(simulation.problem.cost(operator, place) for operator in queue)
            for place, queue in enumerate(simulation.order)
        )
        work, size = count(self.layers)
        return Figures(max(simulation.finish.values()), work, size, busy)

    def _simulate(self) -> Simulation:
        self._add("outputs", 0, 0.0, self.heads, 0)
        readers: dict[int, list[int]] = {i: [] for i in range(len(self.jobs))}
        for reader, read in enumerate(self.reads):
            for producer in read:
                readers[producer].append(reader)
        tensors = [
            Tensor(f"t{producer}", self.bytes[producer], producer, tuple(after))
            for producer, after in readers.items()
            if after
        ]
        names = tuple(processor.name for processor in self.pricing.costs.processors)
        transfers = tuple(map(tuple, self.pricing.costs.transfers()))
        problem = Problem(names, tuple(self.jobs), tuple(tensors), transfers)
        return run_sequence(problem, self.placement, range(len(self.jobs)))
