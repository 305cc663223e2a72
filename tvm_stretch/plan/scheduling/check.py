"""An independent check of schedules, which shares no code with simulator and schedulers."""

from __future__ import annotations

from tvm_stretch.plan.scheduling.check_parts import check_parts, require
from tvm_stretch.plan.scheduling.problem import Problem
from tvm_stretch.plan.scheduling.result import Result


def check_schedule(problem: Problem, result: Result) -> None:
    """Raise an error unless the result is a schedule of the problem that runs as predicted.

    Operators that the problem calls splittable may be scheduled in parts.

    Raises:
        ScheduleError: names the first rule that the result breaks.
    """
    if result.problem is not problem and result.problem != problem:
        require(
            any(operator.whole for operator in result.problem.operators),
            "expected a Result for the problem that was given, got one for another",
        )
        check_parts(problem, result.problem)
        problem = result.problem
    _check_placement(problem, result)
    received = _receive_times(problem, result)
    for processor, queue in enumerate(result.order):
        _check_queue(problem, result, processor, queue, received)
    _check_dependencies(problem, result)
    require(
        result.makespan == max(result.finish, default=0),
        f"expected the last finish {max(result.finish, default=0)} for makespan, "
        f"got {result.makespan}",
    )


def _check_placement(problem: Problem, result: Result) -> None:
    count = len(problem.operators)
    for name, values in (
        ("placement", result.placement),
        ("start", result.start),
        ("finish", result.finish),
    ):
        require(len(values) == count, f"expected {count} values for {name}, got {len(values)}")
    listed = sorted(op for queue in result.order for op in queue)
    require(listed == list(range(count)), "expected every operator once for order, got others")
    for operator, processor in enumerate(result.placement):
        name = problem.operators[operator].name
        require(
            0 <= processor < len(problem.processors)
            and problem.operators[operator].costs[processor] is not None,
            f"expected a processor that supports {name}, got {processor}",
        )
        require(
            operator in result.order[processor],
            f"expected {name} in the queue of processor {processor}, got it in another",
        )


def _receive_times(problem: Problem, result: Result) -> list[int]:
    """The time each operator spends receiving: per tensor, the first reader in the queue pays."""
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
    """Check that operators run one at a time, in order, each for its cost."""
    free = 0
    for operator in queue:
        name = problem.operators[operator].name
        require(
            result.start[operator] >= free,
            f"expected {name} to start when its processor is free at {free}, "
            f"got {result.start[operator]}",
        )
        cost = problem.operators[operator].costs[processor]
        assert cost is not None
        free = result.finish[operator]
        expected = result.start[operator] + received[operator] + cost
        require(free == expected, f"expected {name} to finish at {expected}, got {free}")


def _check_dependencies(problem: Problem, result: Result) -> None:
    for tensor in problem.tensors:
        for reader in tensor.consumers:
            require(
                result.start[reader] >= result.finish[tensor.producer],
                f"expected {problem.operators[reader].name} to start after {tensor.name} is "
                f"written at {result.finish[tensor.producer]}, got {result.start[reader]}",
            )
