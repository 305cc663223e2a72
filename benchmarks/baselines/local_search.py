"""Simulated annealing in C++ (`native/`), for benchmarks: plans of a compile gain 0.6 % by it.

The search counts steps instead of time, so a problem has the same answer on every machine. Its
library is compiled when it is first asked for.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence

Array = npt.NDArray[np.int64]

# Delays that the search accepts at first, in mean operator costs: a small graph needs larger ones
# to leave a local optimum, and has time for them.
_HEAT_OF_ALL, _LEAST_HEAT, _MOST_HEAT = 30.0, 0.1, 3.0


def anneal(simulation: Simulation, steps: int, *, cooled: float = 1.0, seed: int = 0) -> Simulation:
    """A schedule that is at least as fast.

    Args:
        simulation: a complete schedule to start from.
        steps: how many operators the search may simulate in its trials; 20 to 40 ns each.
        cooled: the share of the usual heat.
    """
    problem = simulation.problem
    if not problem.operators:
        return simulation
    count = len(problem.operators)
    mean = sum(map(problem.mean_cost, range(count))) / count
    heat = cooled * mean * min(_MOST_HEAT, max(_LEAST_HEAT, _HEAT_OF_ALL / count))
    placement, sequence, _ = searched(simulation, steps=steps, heat=heat, seed=seed)
    found = run_sequence(problem, placement, sequence)
    return min(found, simulation, key=lambda t: max(t.finish.values()))


def searched(
    simulation: Simulation, *, steps: int, heat: float, seed: int = 0
) -> tuple[list[int], list[int], int]:
    """Placement, sequence and last finish that the search found, by its own simulator.

    That simulator tries a change in 20 to 40 ns an operator and keeps no times that a caller could
    read; a test compares it with `Simulation`, by which every answer is simulated again.
    """
    sequence = sorted(simulation.finish, key=_Position(simulation).__getitem__)
    placement = np.array([simulation.placement[i] for i in range(len(sequence))], dtype=np.int64)
    order = np.array(sequence, dtype=np.int64)
    arrays = _arrays(simulation.problem)
    search = _library().tvm_stretch_improve_schedule
    search.restype = ctypes.c_int64
    pointers = [_pointer(a) if isinstance(a, np.ndarray) else ctypes.c_int64(a) for a in arrays]
    makespan = search(
        *pointers,
        ctypes.c_int64(steps),
        ctypes.c_double(heat),
        ctypes.c_uint64(seed),
        _pointer(placement),
        _pointer(order),
    )
    return placement.tolist(), order.tolist(), int(makespan)


class _Position(dict[int, int]):
    """A topological position of each operator that keeps every processor's order."""

    def __init__(self, simulation: Simulation) -> None:
        heads = [0] * len(simulation.order)
        predecessors = simulation.problem.predecessors
        while len(self) < len(simulation.finish):
            for processor, queue in enumerate(simulation.order):
                while heads[processor] < len(queue):
                    operator = queue[heads[processor]]
                    if any(p not in self for p in predecessors[operator]):
                        break
                    self[operator] = len(self)
                    heads[processor] += 1


@lru_cache(maxsize=4)
def _arrays(problem: Problem) -> tuple[Array | int, ...]:
    """The arguments of the C function, in its order, up to `caching`."""
    costs = [[-1 if c is None else c for c in op.costs] for op in problem.operators]
    return (
        len(problem.operators),
        len(problem.processors),
        np.array(costs, dtype=np.int64).ravel(),
        len(problem.tensors),
        np.array([tensor.producer for tensor in problem.tensors], dtype=np.int64),
        np.array(problem.transfer_ns, dtype=np.int64).ravel(),
        *_lists(problem.reads),
        *_lists(problem.predecessors),
        *_lists(problem.successors),
        int(problem.caching),
    )


def _lists(values: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """The index where each list begins, and the lists concatenated."""
    begin = [0, *accumulate(map(len, values))]
    flat = [value for row in values for value in row]
    return np.array(begin, dtype=np.int64), np.array(flat, dtype=np.int64)


def _pointer(array: Array) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))


@cache
def _library() -> ctypes.CDLL:
    sources = sorted(map(str, (Path(__file__).parent / "native").glob("*.cc")))
    options = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/libscheduling.so"
        command = [os.environ.get("CXX", "c++"), *options, *sources, "-o", library]
        subprocess.run(command, check=True)
        return ctypes.CDLL(library, ctypes.RTLD_LOCAL)
