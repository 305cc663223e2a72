"""Calls the local search in C++ (`native/`) with a problem as arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.simulate import Simulation, run_sequence
from tvm_stretch.run.autoload import find_file

Array = npt.NDArray[np.int64]


def improve(simulation: Simulation, *, steps: int, heat: float, seed: int = 0) -> Simulation:
    """A schedule that is at least as fast.

    Args:
        simulation: a complete schedule to start from.
        steps: how many operators the search may simulate in its trials; this decides its duration.
        heat: nanoseconds of delay that the search accepts at first, to leave local optima.
    """
    problem = simulation.problem
    if not problem.operators:
        return simulation
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


def _arrays(problem: Problem) -> list[Array | int]:
    """The arguments of the C function, in its order, up to `caching`."""
    known: list[Array | int] | None = problem.__dict__.get("_native_arrays")
    if known is None:
        costs = [[-1 if c is None else c for c in op.costs] for op in problem.operators]
        known = [
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
        ]
        problem.__dict__["_native_arrays"] = known  # the problem is frozen, so this stays true
    return known


def _lists(values: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """The index where each list begins, and the lists concatenated."""
    begin = [0, *accumulate(map(len, values))]
    flat = [value for row in values for value in row]
    return np.array(begin, dtype=np.int64), np.array(flat, dtype=np.int64)


def _pointer(array: Array) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_int64))


@cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL(str(find_file("lib/libtvm_stretch_scheduling.so")), ctypes.RTLD_LOCAL)
