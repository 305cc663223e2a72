"""The input of a scheduler: operators, tensors, processors and their costs.

    conv ──t0──> relu ──t1──> add        operators in any order, tensors with their bytes
      └──────────t0───────────^          one tensor may be read by several operators

Times are integer nanoseconds. Schedulers, the simulator and the checker share these rules:

* A processor runs its operators one after the other, in the order of the schedule.
* An operator starts when its processor is free and all tensors that it reads are written.
* Before it computes, it receives each tensor that another processor wrote; the receiving processor
  is busy meanwhile (HOPE, equation 1).  With tensor caching a processor receives a tensor once.
* Inputs and outputs of the network belong to one processor: ``Job("outputs", (0, None))``
  is an operator of no cost that only the first processor supports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tvm_stretch.base.errors import ScheduleError


@dataclass(frozen=True)
class Job:
    """An operator of a problem: one of the network, or one fused kernel."""

    name: str  # its name in plans and messages; unique
    # nanoseconds on each processor; None where the processor does not support it
    costs: tuple[int | None, ...]
    # whether its output can be computed in shares, each on another processor
    splittable: bool = False
    # whether each element depends only on the elements at the same index, so a share needs only
    # the same share of each input
    pointwise: bool = False
    # rows that it reads beyond those of a band, as a share of all rows; 1 if all of them
    halo: Fraction = Fraction(0)
    whole: str = ""  # name of the operator that this is a part of, if a scheduler split one
    share: Fraction = Fraction(1)  # its share of the whole's work


@dataclass(frozen=True)
class Tensor:
    """An operator's result and its readers."""

    name: str
    bytes: int
    producer: int
    consumers: tuple[int, ...]


@dataclass(frozen=True)
class TransferCost:
    """Nanoseconds to receive a number of bytes: measured points, linear between and beyond them."""

    points: tuple[tuple[int, int], ...] = ((0, 0),)

    def __call__(self, size: int) -> int:
        """The cost of ``size`` bytes."""
        if len(self.points) == 1:
            return self.points[0][1]
        right = bisect_left(self.points, (size, -1))
        right = min(max(right, 1), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[right - 1], self.points[right]
        return max(0, y0 + (y1 - y0) * (size - x0) // (x1 - x0))


FREE = TransferCost()


def linear_transfer(fixed_ns: int, bytes_per_us: int) -> TransferCost:
    """The cost of a transfer with a fixed cost and a bandwidth."""
    megabyte = 1_000_000
    return TransferCost(((0, fixed_ns), (megabyte, fixed_ns + megabyte * 1000 // bytes_per_us)))


@dataclass(frozen=True)
class Problem:
    """A network and the processors to run it on.

    Attributes:
        processors: their names.
        operators: in any order; everything else refers to them by position.
        tensors: the tensors between operators.
        transfers: ``transfers[p][q]``, the cost of receiving on ``q`` what ``p`` wrote.
        caching: whether a processor keeps tensors that it received.
        launch: the fixed nanoseconds of every kernel, by processor; this part of the operators'
            costs does not shrink when an operator is split.
    """

    processors: tuple[str, ...]
    operators: tuple[Job, ...]
    tensors: tuple[Tensor, ...]
    transfers: tuple[tuple[TransferCost, ...], ...]
    caching: bool = True
    launch: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a problem that has no schedule."""
        self._check_processors()
        for operator in self.operators:
            self._check_costs(operator)
        self._check_unique("operator", (operator.name for operator in self.operators))
        for tensor in self.tensors:
            self._check_tensor(tensor)
        if len(self.sequence) != len(self.operators):
            stuck = sorted(set(range(len(self.operators))) - set(self.sequence))
            raise ScheduleError(
                "expected an acyclic graph for tensors, got a cycle through "
                f"{_names(self.operators[i].name for i in stuck)}; remove it"
            )

    def _check_processors(self) -> None:
        count = len(self.processors)
        if count == 0:
            raise ScheduleError("expected a processor for processors, got none; name at least one")
        self._check_unique("processor", self.processors)
        if len(self.transfers) != count or any(len(row) != count for row in self.transfers):
            raise ScheduleError(
                f"expected {count} rows of {count} costs for transfers, got rows of "
                f"{[len(row) for row in self.transfers]}; give one cost per pair of processors"
            )
        for cost in (cost for row in self.transfers for cost in row):
            sizes = [size for size, _ in cost.points]
            if not sizes or sizes != sorted(set(sizes)) or min(ns for _, ns in cost.points) < 0:
                raise ScheduleError(
                    "expected points of rising size and costs of at least 0 for transfers, "
                    f"got {cost.points}; measure again"
                )
        if self.launch and (len(self.launch) != count or min(self.launch) < 0):
            raise ScheduleError(
                f"expected {count} times of at least 0 for launch, got {self.launch}; "
                "give one per processor"
            )

    def _check_costs(self, operator: Job) -> None:
        if len(operator.costs) != len(self.processors):
            raise ScheduleError(
                f"expected {len(self.processors)} costs for {operator.name}, got "
                f"{len(operator.costs)}; give one per processor, None where unsupported"
            )
        if all(cost is None for cost in operator.costs):
            raise ScheduleError(
                f"expected a processor that supports {operator.name}, got none of "
                f"{_names(self.processors)}; replace the operator or add a processor"
            )
        for cost in operator.costs:
            if cost is not None and (not isinstance(cost, int) or cost < 0):
                raise ScheduleError(
                    f"expected integer nanoseconds of at least 0 for {operator.name}, "
                    f"got {cost!r}; measure again"
                )

    def _check_tensor(self, tensor: Tensor) -> None:
        numbers = range(len(self.operators))
        for index in (tensor.producer, *tensor.consumers):
            if index not in numbers:
                raise ScheduleError(
                    f"expected operators 0 to {len(numbers) - 1} for tensor {tensor.name}, "
                    f"got {index}; correct its producer or consumers"
                )
        if tensor.bytes < 0:
            raise ScheduleError(
                f"expected at least 0 bytes for tensor {tensor.name}, got {tensor.bytes}; "
                "correct it"
            )
        self._check_unique(f"consumer of {tensor.name}", tensor.consumers)

    @staticmethod
    def _check_unique(what: str, values: Iterable[object]) -> None:
        seen: set[object] = set()
        for value in values:
            if value in seen:
                raise ScheduleError(f"expected each {what} once, got {value!r} twice; rename one")
            seen.add(value)

    # Derived views, each computed once.

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """The tensors each operator reads."""
        reads: list[list[int]] = [[] for _ in self.operators]
        for index, tensor in enumerate(self.tensors):
            for consumer in tensor.consumers:
                reads[consumer].append(index)
        return tuple(map(tuple, reads))

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """The tensors each operator writes."""
        writes: list[list[int]] = [[] for _ in self.operators]
        for index, tensor in enumerate(self.tensors):
            writes[tensor.producer].append(index)
        return tuple(map(tuple, writes))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The operators each operator waits for."""
        return tuple(
            tuple(sorted({self.tensors[t].producer for t in tensors})) for tensors in self.reads
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The operators that wait for each operator."""
        successors: list[list[int]] = [[] for _ in self.operators]
        for operator, before in enumerate(self.predecessors):
            for predecessor in before:
                successors[predecessor].append(operator)
        return tuple(map(tuple, successors))

    @cached_property
    def sequence(self) -> tuple[int, ...]:
        """A topological order; shorter than ``operators`` if there is a cycle."""
        waiting = [len(before) for before in self.predecessors]
        order = [i for i, count in enumerate(waiting) if count == 0]
        for operator in order:
            for successor in self.successors[operator]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    order.append(successor)
        return tuple(order)

    @cached_property
    def supported(self) -> tuple[tuple[int, ...], ...]:
        """The processors that support each operator."""
        return tuple(
            tuple(p for p, cost in enumerate(operator.costs) if cost is not None)
            for operator in self.operators
        )

    @cached_property
    def transfer_ns(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """``transfer_ns[t][p][q]``: receiving tensor ``t``, written on ``p``, on ``q``."""
        of_size = {
            size: tuple(
                tuple(0 if p == q else cost(size) for q, cost in enumerate(row))
                for p, row in enumerate(self.transfers)
            )
            for size in {tensor.bytes for tensor in self.tensors}
        }
        return tuple(of_size[tensor.bytes] for tensor in self.tensors)

    def hand_over(self, source: int, receiver: int, size: int) -> int:
        """Nanoseconds to receive a number of bytes that another processor wrote."""
        return self.transfers[source][receiver](size)

    def cost(self, operator: int, processor: int) -> int:
        """Nanoseconds of an operator on a processor that supports it."""
        cost = self.operators[operator].costs[processor]
        if cost is None:
            raise ScheduleError(
                f"expected a processor that supports {self.operators[operator].name}, "
                f"got {self.processors[processor]}; place it elsewhere"
            )
        return cost

    def fastest(self, operator: int) -> int:
        """The processor on which an operator is fastest."""
        return min(self.supported[operator], key=lambda p: self.cost(operator, p))

    def mean_cost(self, operator: int) -> float:
        """The mean cost over the processors that support the operator."""
        supported = self.supported[operator]
        return sum(self.cost(operator, p) for p in supported) / len(supported)


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")
