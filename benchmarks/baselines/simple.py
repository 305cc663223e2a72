"""The simplest schedulers: one processor for all, and branch and bound for small graphs."""

from __future__ import annotations

import time

from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence

LARGEST = 12


def schedule_exhaustive(problem: Problem) -> Result:
    """Find the optimal schedule by branch and bound over every placement and every order.

    Raises:
        ScheduleError: the problem has more than `LARGEST` operators.
    """
    if len(problem.operators) > LARGEST:
        raise ScheduleError(
            f"expected at most {LARGEST} operators for the exhaustive scheduler, "
            f"got {len(problem.operators)}; use another scheduler"
        )
    began = time.perf_counter_ns()
    search = _Search(problem)
    search.extend(Simulation(problem))
    return result_of("exhaustive", search.best, began, optimal=True)


class _Search:
    """Grows simulations in the order of starts, so that each schedule is visited once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.best = Simulation(problem)
        self.makespan: float = 0 if not problem.operators else float("inf")
        self.tails = [0] * len(problem.operators)  # least time from an operator's finish to the end
        for operator in reversed(problem.sequence):
            for after in problem.successors[operator]:
                least = problem.cost(after, problem.fastest(after)) + self.tails[after]
                self.tails[operator] = max(self.tails[operator], least)

    def extend(self, simulation: Simulation, latest_start: int = 0) -> None:
        """Try every operator that may start next, on every processor."""
        problem = self.problem
        open_operators = [
            op
            for op in range(len(problem.operators))
            if op not in simulation.finish
            and all(p in simulation.finish for p in problem.predecessors[op])
        ]
        if not open_operators:
            self._keep(simulation)
        for operator in open_operators:
            for processor in problem.supported[operator]:
                start = max(simulation.free[processor], simulation.ready(operator))
                bound = simulation.finish_on(operator, processor) + self.tails[operator]
                if start >= latest_start and bound < self.makespan:
                    longer = simulation.copy()
                    longer.append(operator, processor)
                    self.extend(longer, start)

    def _keep(self, simulation: Simulation) -> None:
        makespan = max(simulation.finish.values(), default=0)
        if makespan < self.makespan:
            self.best, self.makespan = simulation, makespan


# --- one processor --------------------------------------------------------------------------------


def schedule_single(problem: Problem) -> Result:
    """Schedule on the best single processor; others run what it does not support."""
    began = time.perf_counter_ns()
    simulations = [_all_on(problem, p) for p in range(len(problem.processors))]
    best = min(simulations, key=lambda t: max(t.finish.values(), default=0))
    return result_of("single", best, began)


def _all_on(problem: Problem, processor: int) -> Simulation:
    placement = [
        processor if processor in supported else problem.fastest(operator)
        for operator, supported in enumerate(problem.supported)
    ]
    return run_sequence(problem, placement, problem.sequence)
