"""An independent check of schedules: shares no code with the simulator or any scheduler."""

from __future__ import annotations

from tvm_stretch.errors import ScheduleError
from tvm_stretch.scheduling.problem import Problem
from tvm_stretch.scheduling.result import Result


def check_schedule(problem: Problem, result: Result) -> None:
    """Raise unless the result is a schedule of the problem that can be run as predicted.

    Raises:
        ScheduleError: names the first rule that the result breaks.
    """
    if result.problem is not problem and result.problem != problem:
        _check_split(problem, result.problem)
    scheduled = result.problem
    _check_placement(scheduled, result)
    received = _receive_times(scheduled, result)
    for processor, queue in enumerate(result.order):
        _check_queue(scheduled, result, processor, queue, received)
    _check_dependencies(scheduled, result)
    _require(
        result.makespan == max(result.finish, default=0),
        f"expected the last finish {max(result.finish, default=0)} for makespan, "
        f"got {result.makespan}",
    )
    _require(
        result.lower_bound <= result.makespan or scheduled is not problem,
        f"expected at most the makespan {result.makespan} for lower_bound, "
        f"got {result.lower_bound}",
    )


def _check_placement(problem: Problem, result: Result) -> None:
    count = len(problem.operators)
    for name, values in (
        ("placement", result.placement),
        ("start", result.start),
        ("finish", result.finish),
    ):
        _require(len(values) == count, f"expected {count} values for {name}, got {len(values)}")
    listed = sorted(op for queue in result.order for op in queue)
    _require(listed == list(range(count)), "expected every operator once for order, got others")
    for operator, processor in enumerate(result.placement):
        name = problem.operators[operator].name
        _require(
            0 <= processor < len(problem.processors)
            and problem.operators[operator].costs[processor] is not None,
            f"expected a processor that supports {name}, got {processor}",
        )
        _require(
            operator in result.order[processor],
            f"expected {name} in the queue of processor {processor}, got it in another",
        )


def _receive_times(problem: Problem, result: Result) -> list[int]:
    """What each operator spends on receiving: per tensor, the first reader in the queue pays."""
    received = [0] * len(problem.operators)
    for tensor in problem.tensors:
        source = result.placement[tensor.producer]
        for processor, queue in enumerate(result.order):
            readers = [op for op in queue if op in tensor.consumers]
            if processor == source:
                continue
            for reader in readers[:1] if problem.caching else readers:
                received[reader] += problem.transfers[source][processor](tensor.bytes)
    return received


def _check_queue(
    problem: Problem,
    result: Result,
    processor: int,
    queue: tuple[int, ...],
    received: list[int],
) -> None:
    """One operator at a time, in order, each for as long as it takes."""
    free = 0
    for operator in queue:
        name = problem.operators[operator].name
        _require(
            result.start[operator] >= free,
            f"expected {name} to start when its processor is free at {free}, "
            f"got {result.start[operator]}",
        )
        cost = problem.operators[operator].costs[processor]
        assert cost is not None
        free = result.finish[operator]
        expected = result.start[operator] + received[operator] + cost
        _require(free == expected, f"expected {name} to finish at {expected}, got {free}")


def _check_dependencies(problem: Problem, result: Result) -> None:
    for tensor in problem.tensors:
        for reader in tensor.consumers:
            _require(
                result.start[reader] >= result.finish[tensor.producer],
                f"expected {problem.operators[reader].name} to start after {tensor.name} is "
                f"written at {result.finish[tensor.producer]}, got {result.start[reader]}",
            )


def _check_split(problem: Problem, split: Problem) -> None:
    """Whether ``split`` computes the same network, some operators in parts.

    Parts of ``conv`` are called ``conv@1/3``, ``conv@2/3``: the share of the work.
    """
    from tvm_stretch.scheduling.split import parts_by_operator

    _require(
        (problem.processors, problem.transfers, problem.caching)
        == (split.processors, split.transfers, split.caching),
        "expected the same processors and transfers after splitting, got others",
    )
    parts = parts_by_operator(problem, split)
    for index, operator in enumerate(problem.operators):
        shares = sum(share for _, share in parts[index])
        _require(shares == 1, f"expected shares of {operator.name} that sum to 1, got {shares}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ScheduleError(f"{message}; the scheduler is at fault")
