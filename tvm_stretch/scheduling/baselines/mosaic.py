"""MOSAIC (Han et al. 2019): a linear network, cut into slices, each slice on one processor.

    conv1 conv2 | conv3 add conv4 | fc        slices run one after the other
       cpu      |      opencl     | cpu

Dynamic programming over (operator, processor of its slice); a cut costs the transfer of every
tensor that crosses it.  An operator that the slice's processor does not support starts a new slice.
"""

from __future__ import annotations

import time

from tvm_stretch.scheduling.problem import Problem
from tvm_stretch.scheduling.result import Result, result_of
from tvm_stretch.scheduling.simulate import Simulation


def schedule_mosaic(problem: Problem) -> Result:
    """The best slices; nothing runs at the same time as anything else."""
    began = time.perf_counter_ns()
    simulation = Simulation(problem)
    now = 0
    for operator, processor in zip(problem.sequence, _slices(problem), strict=True):
        simulation.free[processor] = now
        now = simulation.append(operator, processor)
    return result_of("MOSAIC", simulation, began)


def _slices(problem: Problem) -> list[int]:
    """The processor of each operator of the sequence."""
    processors = range(len(problem.processors))
    crossing = _crossing_tensors(problem)
    infinite = float("inf")
    best: list[float] = [0.0 for _ in processors]
    choices: list[list[int]] = []
    for position, operator in enumerate(problem.sequence):
        enter = [
            min(
                (best[p] + sum(problem.transfer_ns[t][p][q] for t in crossing[position]), p)
                for p in processors
            )
            for q in processors
        ]
        costs = problem.operators[operator].costs
        best = [
            infinite if cost is None else before + cost
            for (before, _), cost in zip(enter, costs, strict=True)
        ]
        choices.append([p for _, p in enter])
    processor = min(processors, key=best.__getitem__)
    placement: list[int] = []
    for choice in reversed(choices):
        placement.append(processor)
        processor = choice[processor]
    return placement[::-1]


def _crossing_tensors(problem: Problem) -> list[list[int]]:
    """Per position of the sequence, the tensors written before it and read at or after it."""
    position = {op: i for i, op in enumerate(problem.sequence)}
    crossing: list[list[int]] = [[] for _ in problem.sequence]
    for index, tensor in enumerate(problem.tensors):
        last = max((position[c] for c in tensor.consumers), default=0)
        for place in range(position[tensor.producer] + 1, last + 1):
            crossing[place].append(index)
    return crossing
