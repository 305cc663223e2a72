"""An independent check of schedules, which shares no code with simulator and schedulers."""

from __future__ import annotations

from fractions import Fraction

from tvm_stretch.errors import ScheduleError
from tvm_stretch.scheduling.problem import Job, Problem
from tvm_stretch.scheduling.result import Result


def check_schedule(problem: Problem, result: Result) -> None:
    """Raise an error unless the result is a schedule of the problem that runs as predicted.

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
        result.lower_bound <= result.makespan,
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


def _check_split(problem: Problem, parts: Problem) -> None:
    """Check that ``parts`` is the network of ``problem`` with some operators in shares."""
    _require(
        (problem.processors, problem.transfers, problem.caching)
        == (parts.processors, parts.transfers, parts.caching),
        "expected the same processors and transfers for the parts, got others",
    )
    parts_of: dict[str, list[int]] = {operator.name: [] for operator in problem.operators}
    for index, part in enumerate(parts.operators):
        name = part.whole or part.name
        _require(name in parts_of, f"expected a part of an operator, got {part.name} of {name}")
        parts_of[name].append(index)
    for operator in problem.operators:
        _check_shares(problem, operator, [parts.operators[i] for i in parts_of[operator.name]])
    _check_part_tensors(problem, parts, parts_of)


def _check_shares(problem: Problem, whole: Job, parts: list[Job]) -> None:
    """Check that a part takes at least its share of the whole's time on each processor."""
    total = sum(part.share for part in parts)
    _require(total == 1, f"expected shares of {whole.name} that sum to 1, got {total}")
    _require(
        len(parts) == 1 or whole.splittable,
        f"expected {whole.name} whole, got it in {len(parts)} parts",
    )
    for part in parts:
        for processor, (cost, full) in enumerate(zip(part.costs, whole.costs, strict=True)):
            if cost is None:
                continue
            _require(full is not None, f"expected {part.name} where {whole.name} is supported")
            assert full is not None
            launch = min(full, problem.launch[processor]) if problem.launch else 0
            least = launch + (full - launch) * part.share
            _require(
                cost >= least,
                f"expected at least {float(least):.0f} ns for {part.name}, got {cost}",
            )


def _check_part_tensors(problem: Problem, parts: Problem, parts_of: dict[str, list[int]]) -> None:
    """Check that a part reads each part of the whole's inputs, or recomputes those it lacks."""
    sizes: dict[tuple[int, int], int] = {}  # bytes that one part reads of another
    for tensor in parts.tensors:
        for reader in tensor.consumers:
            pair = (tensor.producer, reader)
            sizes[pair] = sizes.get(pair, 0) + tensor.bytes
    needed: dict[tuple[int, int], Fraction] = {}
    for tensor in problem.tensors:
        for source in parts_of[problem.operators[tensor.producer].name]:
            for reader in (
                r for c in tensor.consumers for r in parts_of[problem.operators[c].name]
            ):
                share = parts.operators[source].share * tensor.bytes
                needed[source, reader] = needed.get((source, reader), Fraction(0)) + share
    for (source, reader), size in needed.items():
        if (source, reader) in sizes:
            _require(
                sizes[source, reader] >= size,
                f"expected {float(size):.0f} bytes from {parts.operators[source].name} to "
                f"{parts.operators[reader].name}, got {sizes[source, reader]}",
            )
        else:
            _check_recomputed(problem, parts, parts_of, source, reader)


def _check_recomputed(
    problem: Problem, parts: Problem, parts_of: dict[str, list[int]], source: int, reader: int
) -> None:
    """Check that a part that does not read another's result reads one that recomputed it."""
    producer = parts.operators[source].whole
    share, supported = parts.operators[reader].share, _only_processor(parts.operators[reader])
    twin = [
        part
        for part in (parts.operators[i] for i in parts_of.get(producer, []))
        if _only_processor(part) == supported and part.share == share
    ]
    whole = {op.name: op for op in problem.operators}
    full = whole[producer].costs[supported] if producer in whole else None
    launch = problem.launch[supported] if problem.launch else 0
    more = min(Fraction(1), share + whole[parts.operators[reader].whole or producer].halo)
    _require(
        len(twin) == 1
        and full is not None
        and (twin[0].costs[supported] or 0) >= min(launch, full) + max(0, full - launch) * more,
        f"expected {parts.operators[reader].name} to read {parts.operators[source].name} "
        "or all that it needs of it from a part on its own processor",
    )


def _only_processor(part: Job) -> int:
    return next(p for p, cost in enumerate(part.costs) if cost is not None)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ScheduleError(f"{message}; the scheduler is at fault")
