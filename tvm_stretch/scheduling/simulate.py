"""Simulates when each operator runs, given a placement and an order on each processor.

cpu     [conv1]······[recv conv2|add]
opencl  [recv conv1|conv2]

This is the simulator by which plans and schedules are predicted. Two others exist for speed, and
tests hold them to its times: `search/clock.py` continues from states of a search, and the local
search in C++ (`native/`) simulates only what a change moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tvm_stretch.errors import ScheduleError
from tvm_stretch.scheduling.problem import Problem


@dataclass
class Simulation:
    """A schedule that grows one operator at a time, each at the end of its processor's queue."""

    problem: Problem
    placement: dict[int, int] = field(default_factory=dict)
    start: dict[int, int] = field(default_factory=dict)
    finish: dict[int, int] = field(default_factory=dict)
    order: list[list[int]] = field(init=False)
    free: list[int] = field(init=False)
    received: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.order = [[] for _ in self.problem.processors]
        self.free = [0] * len(self.problem.processors)

    def copy(self) -> Simulation:
        """A copy that can grow independently."""
        twin = Simulation(self.problem, dict(self.placement), dict(self.start), dict(self.finish))
        twin.order = [list(queue) for queue in self.order]
        twin.free = list(self.free)
        twin.received = set(self.received)
        return twin

    def ready(self, operator: int) -> int:
        """The time at which all inputs of the operator are written."""
        return max((self.finish[p] for p in self.problem.predecessors[operator]), default=0)

    def to_receive(self, operator: int, processor: int) -> list[int]:
        """The tensors that the processor would have to receive for the operator."""
        tensors = self.problem.tensors
        return [
            t
            for t in self.problem.reads[operator]
            if self.placement[tensors[t].producer] != processor
            and (t, processor) not in self.received
        ]

    def receive_ns(self, operator: int, processor: int) -> int:
        """The time to receive the tensors of `to_receive`."""
        return sum(self.transfer_to(t, processor) for t in self.to_receive(operator, processor))

    def transfer_to(self, tensor: int, processor: int) -> int:
        """The time to receive a tensor that is written already."""
        source = self.placement[self.problem.tensors[tensor].producer]
        return self.problem.transfer_ns[tensor][source][processor]

    def finish_on(self, operator: int, processor: int) -> int:
        """The time at which the operator would finish as the processor's next one."""
        begin = max(self.free[processor], self.ready(operator))
        duration = self.receive_ns(operator, processor) + self.problem.cost(operator, processor)
        return begin + duration

    def append(self, operator: int, processor: int) -> int:
        """Run the operator as the processor's next one, and return its finish time."""
        begin = max(self.free[processor], self.ready(operator))
        received = self.to_receive(operator, processor)
        end = begin + self.problem.cost(operator, processor)
        end += sum(self.transfer_to(tensor, processor) for tensor in received)
        if self.problem.caching:
            self.received.update((tensor, processor) for tensor in received)
        self.start[operator] = begin
        self.placement[operator] = processor
        self.finish[operator] = self.free[processor] = end
        self.order[processor].append(operator)
        return end


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
