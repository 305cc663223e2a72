"""The result of a scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.simulate import Simulation


@dataclass(frozen=True)
class Result:
    """A schedule."""

    scheduler: str  # the name of the scheduler
    # the problem that was scheduled: the given one, or that problem with operators split into parts
    problem: Problem
    placement: tuple[int, ...]  # the processor of each operator
    # the operators of each processor, in the order in which they run
    order: tuple[tuple[int, ...], ...]
    # predicted nanoseconds at which each operator begins to receive its inputs
    start: tuple[int, ...]
    finish: tuple[int, ...]  # predicted nanoseconds at which its result is written
    makespan: int  # the last finish
    runtime_ns: int  # the duration of scheduling
    proved: bool = False  # whether the scheduler proved that no schedule is faster
    pieces: tuple[str, ...] = ()  # how a solver ended with each piece of the network (`ilp.py`)

    @property
    def sequence(self) -> tuple[int, ...]:
        """All operators by start: a topological order that keeps every processor's order."""
        rank = {op: i for queue in self.order for i, op in enumerate(queue)}
        topological = {op: i for i, op in enumerate(self.problem.sequence)}
        return tuple(
            sorted(rank, key=lambda op: (self.start[op], self.finish[op], topological[op]))
        )


Scheduler: TypeAlias = Callable[[Problem], Result]


def result_of(
    scheduler: str,
    simulation: Simulation,
    began_ns: int,  # `time.perf_counter_ns` when scheduling began
    *,
    optimal: bool = False,  # whether it is proved that no schedule is faster
) -> Result:
    """The result of a complete simulation."""
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
