"""All on one processor; unsupported operators run on the fastest one that supports them."""

from __future__ import annotations

import time

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence


def schedule_single(problem: Problem) -> Result:
    """Schedule on the best single processor."""
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
