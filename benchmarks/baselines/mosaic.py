"""MOSAIC (Han et al. 2019): a linear network, cut into slices, each slice on one processor.

    conv1 conv2 | conv3 add conv4 | fc        slices run one after the other
       cpu      |      opencl     | cpu

Dynamic programming over (last operator, processor) of a slice; the cost of a slice is its operators
and the transfers of all tensors from earlier slices, as if the slice before held them all. An
operator that the slice's processor does not support starts a new slice. The network is linearised
in program order, so branches run one after the other.
"""

from __future__ import annotations

import heapq
import time

import numpy as np
import numpy.typing as npt

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation

_NEVER = np.iinfo(np.int64).max // 4

Array = npt.NDArray[np.int64]


def schedule_mosaic(problem: Problem) -> Result:
    """Schedule the best slices; operators never run at the same time."""
    began = time.perf_counter_ns()
    simulation = Simulation(problem)
    sequence = _program_order(problem)
    now = 0
    for operator, processor in zip(sequence, _slices(problem, sequence), strict=True):
        simulation.free[processor] = now
        now = simulation.append(operator, processor)
    return result_of("MOSAIC", simulation, began)


def _program_order(problem: Problem) -> list[int]:
    """A topological order that keeps to the operators' positions where possible."""
    waiting = [len(before) for before in problem.predecessors]
    heap = [operator for operator, count in enumerate(waiting) if count == 0]
    order = []
    while heap:
        order.append(heapq.heappop(heap))
        for successor in problem.successors[order[-1]]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(heap, successor)
    return order


def _slices(problem: Problem, sequence: list[int]) -> list[int]:
    """The processor of each operator of the sequence."""
    processors = range(len(problem.processors))
    table = _Table(problem, sequence)
    for place in range(len(sequence)):
        table.extend(place)
    processor = min(processors, key=lambda p: int(table.least[p, -1]))
    placement: list[int] = []
    while len(placement) < len(sequence):
        end = len(sequence) - len(placement)
        begin, before = table.choices[end, processor]
        placement += [processor] * (end - begin)
        processor = before
    return placement[::-1]


class _Table:
    """The least time of the first operators, by the processor of the last slice.

    Attributes:
        least: the time by processor and number of operators.
        choices: by number of operators and processor, where the last slice begins, and the
            processor of the slice before.
    """

    def __init__(self, problem: Problem, sequence: list[int]) -> None:
        self.problem, self.sequence = problem, sequence
        count, length = len(problem.processors), len(sequence)
        self.least: Array = np.full((count, length + 1), _NEVER)
        self.least[:, 0] = 0
        self.choices: dict[tuple[int, int], tuple[int, int]] = {}
        self._inside: Array = np.zeros((count, length), np.int64)  # cost of the slice, by its begin
        self._received: Array = np.zeros((count, count, length), np.int64)
        self._known: dict[int, int] = {}  # by tensor, its last writer's or reader's position

    def extend(self, place: int) -> None:
        """Take the next operator into every slice that may end with it."""
        problem, operator = self.problem, self.sequence[place]
        for t in problem.reads[operator]:
            first = self._known[t] + 1  # slices that begin earlier hold it
            for p, row in enumerate(problem.transfer_ns[t]):
                for q, transfer in enumerate(row):
                    self._received[p, q, first : place + 1] += transfer
            self._known[t] = place
        for t in problem.writes[operator]:
            self._known[t] = place
        for q, cost in enumerate(problem.operators[operator].costs):
            if cost is None:
                self._inside[q, : place + 1] = _NEVER
                continue
            self._inside[q, : place + 1] = np.minimum(_NEVER, self._inside[q, : place + 1] + cost)
            before = self.least[:, : place + 1] + self._received[:, q, : place + 1]
            before[q, 1:] = _NEVER  # that would be the same slice
            total = before.min(axis=0) + self._inside[q, : place + 1]
            begin = int(total.argmin())
            self.least[q, place + 1] = min(_NEVER, int(total[begin]))
            self.choices[place + 1, q] = begin, int(before[:, begin].argmin())
