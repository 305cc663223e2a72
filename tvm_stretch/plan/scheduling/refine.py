"""Local search: from a schedule to one that is at least as fast.

The search counts steps instead of time, so a problem has the same answer on every machine.
"""

from __future__ import annotations

from tvm_stretch.plan.scheduling.native_search import improve
from tvm_stretch.plan.scheduling.simulate import Simulation

# Steps are operators simulated in trials; 20 to 40 ns each.
_STEPS_PER_OPERATOR, _MOST_STEPS = 5_000, 1_500_000
# Delays that the search accepts at first, in mean operator costs: a small graph needs larger ones
# to leave a local optimum, and has time for them.
_HEAT_OF_ALL, _LEAST_HEAT, _MOST_HEAT = 30.0, 0.1, 3.0


def refine(simulation: Simulation) -> Simulation:
    """Improve a complete schedule by a short search; the result is at least as fast."""
    count = len(simulation.problem.operators)
    return anneal(simulation, min(_MOST_STEPS, _STEPS_PER_OPERATOR * count), cooled=0.25)


def anneal(simulation: Simulation, steps: int, *, cooled: float = 1.0, seed: int = 0) -> Simulation:
    """Like `refine`, with this number of steps and this share of the usual heat."""
    problem = simulation.problem
    count = len(problem.operators)
    mean = sum(map(problem.mean_cost, range(count))) / max(1, count)
    heat = min(_MOST_HEAT, max(_LEAST_HEAT, _HEAT_OF_ALL / max(1, count)))
    return improve(simulation, steps=steps, heat=cooled * heat * mean, seed=seed)
