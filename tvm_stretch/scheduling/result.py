"""What a scheduler answers, and the check that it is an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tvm_stretch.scheduling.bounds import critical_path, lower_bound
from tvm_stretch.scheduling.problem import Problem
from tvm_stretch.scheduling.simulate import Simulation

Status: TypeAlias = Literal["optimal", "feasible"]


@dataclass(frozen=True)
class Result:
    """A schedule.

    Attributes:
        scheduler: who made it.
        problem: what was scheduled: the problem given, or that problem with operators split
            into parts (`tvm_stretch.scheduling.baselines.split`).
        placement: the processor of each operator.
        order: the operators of each processor, in the order in which they run.
        start: predicted nanoseconds at which each operator begins to receive what it reads.
        finish: predicted nanoseconds at which its result is there.
        makespan: the last finish.
        runtime_ns: what scheduling took.
        proved: whether the scheduler knows that nothing is faster.
        pieces: how a solver ended with each piece of the network (`baselines/ilp.py`).
    """

    scheduler: str
    problem: Problem
    placement: tuple[int, ...]
    order: tuple[tuple[int, ...], ...]
    start: tuple[int, ...]
    finish: tuple[int, ...]
    makespan: int
    runtime_ns: int
    proved: bool = False
    pieces: tuple[str, ...] = ()

    @property
    def lower_bound(self) -> int:
        """No schedule of `problem` takes less."""
        if self.proved:
            return self.makespan
        if any(operator.whole for operator in self.problem.operators):
            return critical_path(self.problem)  # the better bound is for networks that are whole
        return lower_bound(self.problem)

    @property
    def status(self) -> Status:
        """Optimal if proved or as low as the bound, else feasible."""
        return "optimal" if self.lower_bound == self.makespan else "feasible"

    @property
    def gap(self) -> float:
        """How far above the lower bound the schedule is, as a share of the schedule."""
        return 1 - self.lower_bound / self.makespan if self.makespan else 0.0

    @property
    def sequence(self) -> tuple[int, ...]:
        """All operators by start: a topological order that holds every processor's order."""
        rank = {op: i for queue in self.order for i, op in enumerate(queue)}
        topological = {op: i for i, op in enumerate(self.problem.sequence)}
        return tuple(
            sorted(rank, key=lambda op: (self.start[op], self.finish[op], topological[op]))
        )


Scheduler: TypeAlias = Callable[[Problem], Result]


def result_of(
    scheduler: str, simulation: Simulation, began_ns: int, *, optimal: bool = False
) -> Result:
    """The result that a complete simulation stands for.

    Args:
        scheduler: who made it.
        simulation: holds every operator.
        began_ns: `time.perf_counter_ns` when scheduling began.
        optimal: whether it is proved that nothing is faster.
    """
    problem = simulation.problem
    indices = range(len(problem.operators))
    return Result(
        scheduler=scheduler,
        problem=problem,
        placement=tuple(simulation.placement[i] for i in indices),
        order=tuple(map(tuple, simulation.order)),
        start=tuple(simulation.start[i] for i in indices),
        finish=tuple(simulation.finish[i] for i in indices),
        makespan=max(simulation.finish.values(), default=0),
        runtime_ns=time.perf_counter_ns() - began_ns,
        proved=optimal,
    )
