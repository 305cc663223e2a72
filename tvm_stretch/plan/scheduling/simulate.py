"""Runs a schedule of a problem, given a placement and an order on each processor.

The times are those of `clock.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.plan.scheduling.clock import Clock, Written
from tvm_stretch.plan.scheduling.problem import Problem


@dataclass
class Simulation:
    """A schedule that grows one operator at a time, each at the end of its processor's queue."""

    problem: Problem
    placement: dict[int, int] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    order: list[list[int]] = field(init=False)
    clock: Clock = field(init=False)  # its tensors are the problem's by number

    def __post_init__(self) -> None:
        count, problem = len(self.problem.processors), self.problem
        self.order = [[] for _ in range(count)]
        self.clock = Clock([0] * count, problem.hand_over, {}, caching=problem.caching)

    def copy(self) -> Simulation:
        """A copy that can grow independently."""
        twin = Simulation(self.problem, dict(self.placement), dict(self.start), dict(self.finish))
        twin.order = [list(queue) for queue in self.order]
        twin.clock = self.clock.copy()
        return twin

    @property
    def free(self) -> list[int]:
        """When each processor has done what it was given."""
        return self.clock.free

    @property
    def received(self) -> set[tuple[int, int]]:
        """The tensors that were received, each with its receiver."""
        tensors = range(len(self.problem.tensors))
        return {(t, p) for t in tensors for w in self.clock.tensors.get(t, []) for p in w.holders}

    def ready(self, operator: int) -> int:
        """The time at which all inputs of the operator are written."""
        return self.clock.when(self.problem.reads[operator])

    def to_receive(self, operator: int, processor: int) -> list[int]:
        """The tensors that the processor would have to receive for the operator."""
        written = self.clock.tensors
        return [t for t in self.problem.reads[operator] if not written[t][0].is_on(processor)]

    def receive_ns(self, operator: int, processor: int) -> int:
        """The time to receive the tensors of `to_receive`."""
        return sum(self.transfer_to(t, processor) for t in self.to_receive(operator, processor))

    def transfer_to(self, tensor: int, processor: int) -> int:
        """The time to receive a tensor that is written already."""
        source = self.placement[self.problem.tensors[tensor].producer]
        return self.problem.transfer_ns[tensor][source][processor]

    def finish_on(self, operator: int, processor: int) -> int:
        """The time at which the operator would finish as the processor's next one."""
        ns = self.problem.cost(operator, processor)
        return self.clock.times(processor, ns, self._inputs(operator))[1]

    def append(self, operator: int, processor: int) -> int:
        """Run the operator as the processor's next one, and return its finish time."""
        ns = self.problem.cost(operator, processor)
        begin, end = self.clock.occupy(processor, ns, self._inputs(operator))
        for t in self.problem.writes[operator]:
            self.clock.tensors[t] = [Written(processor, end, self.problem.tensors[t].bytes)]
        self.start[operator] = begin
        self.placement[operator] = processor
        self.finish[operator] = end
        self.order[processor].append(operator)
        return end

    def _inputs(self, operator: int) -> list[Written]:
        return [self.clock.tensors[t][0] for t in self.problem.reads[operator]]


def simulate(
    problem: Problem, placement: Sequence[int], order: Sequence[Iterable[int]]
) -> Simulation:
    """Run every processor's queue as early as possible."""
    simulation = Simulation(problem)
    queues = [list(queue) for queue in order]
    heads = [0] * len(queues)
    done = 0
    moved = True
    while moved:
        moved = False
        for processor, queue in enumerate(queues):
            while heads[processor] < len(queue):
                operator = queue[heads[processor]]
                if any(p not in simulation.finish for p in problem.predecessors[operator]):
                    break
                if placement[operator] != processor or operator in simulation.finish:
                    raise ScheduleError(
                        f"expected operator {operator} once, on processor {placement[operator]}, "
                        f"got it on {processor}; correct the order"
                    )
                simulation.append(operator, processor)
                heads[processor] += 1
                done += 1
                moved = True
    if done != len(problem.operators):
        raise ScheduleError(
            f"expected {len(problem.operators)} operators to run, got {done}; the orders of the "
            "processors wait for each other or leave operators out"
        )
    return simulation


def run_sequence(problem: Problem, placement: Sequence[int], sequence: Iterable[int]) -> Simulation:
    """Run the operators in one topological order over all processors."""
    simulation = Simulation(problem)
    for operator in sequence:
        simulation.append(operator, placement[operator])
    return simulation
