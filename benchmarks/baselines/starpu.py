"""StarPU's scheduler DMDAR: dequeue model, data aware, ready.

When the last predecessor of an operator finishes, the operator is queued at the processor that is
expected to finish it first, transfers included.  An idle processor takes the operator from its
queue that misses the fewest bytes.

StarPU updates its expectation at every event: when an operator begins, its end is known exactly,
and only queued operators are estimated. A tensor that a queued operator requested counts as on its
way, so the next reader gets it for free.
"""

from __future__ import annotations

import heapq
import time

from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result, result_of
from tvm_stretch.plan.scheduling.simulate import Simulation


def schedule_starpu(problem: Problem) -> Result:
    """Run the network in virtual time with StarPU's decisions."""
    began = time.perf_counter_ns()
    return result_of("StarPU", _Run(problem).run(), began)


class _Run:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.simulation = Simulation(problem)
        self.waiting = [len(before) for before in problem.predecessors]
        self.queues: list[list[int]] = [[] for _ in problem.processors]
        self.queued_ns = [0] * len(problem.processors)  # expected time of each queue
        self.expected: dict[int, int] = {}  # of each queued operator, with transfers
        self.requested: set[tuple[int, int]] = set()  # tensors and their destinations
        self.running: list[tuple[int, int, int]] = []  # finish, operator, processor
        self.busy: set[int] = set()

    def run(self) -> Simulation:
        """Process events in the order of time: an operator finishes, its successors are queued."""
        for operator in self.problem.sequence:
            if self.waiting[operator] == 0:
                self.push(operator, 0)
        self.pop_idle()
        while self.running:
            now, operator, processor = heapq.heappop(self.running)
            self.busy.discard(processor)
            for successor in self.problem.successors[operator]:
                self.waiting[successor] -= 1
                if self.waiting[successor] == 0:
                    self.push(successor, now)
            self.pop_idle()
        return self.simulation

    def push(self, operator: int, now: int) -> None:
        """Queue an operator at the processor that is expected to finish it first."""

        def end(processor: int) -> int:
            begin = max(self.simulation.free[processor], now) + self.queued_ns[processor]
            return begin + self._expected_ns(operator, processor)

        best = min(self.problem.supported[operator], key=end)
        self.expected[operator] = self._expected_ns(operator, best)
        self.queued_ns[best] += self.expected[operator]
        if self.problem.caching:
            missing = self.simulation.to_receive(operator, best)
            self.requested.update((tensor, best) for tensor in missing)
        self.queues[best].append(operator)

    def _expected_ns(self, operator: int, processor: int) -> int:
        """The time to compute, and to receive tensors that are neither there nor on their way."""
        missing = self.simulation.to_receive(operator, processor)
        return self.problem.cost(operator, processor) + sum(
            self.simulation.transfer_to(tensor, processor)
            for tensor in missing
            if (tensor, processor) not in self.requested
        )

    def pop_idle(self) -> None:
        """Let every idle processor take the operator with the fewest bytes to receive."""
        for processor, queue in enumerate(self.queues):
            if processor in self.busy or not queue:
                continue
            operator = min(queue, key=lambda op: self._missing_bytes(op, processor))
            queue.remove(operator)
            self.queued_ns[processor] -= self.expected.pop(operator)
            finish = self.simulation.append(operator, processor)
            heapq.heappush(self.running, (finish, operator, processor))
            self.busy.add(processor)

    def _missing_bytes(self, operator: int, processor: int) -> int:
        missing = self.simulation.to_receive(operator, processor)
        return sum(self.problem.tensors[t].bytes for t in missing)
