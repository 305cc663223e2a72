"""Checks that a problem is another one with some operators in parts."""

from __future__ import annotations

from fractions import Fraction

from tvm_stretch.base.errors import ScheduleError
from tvm_stretch.plan.scheduling.problem import Job, Problem


def require(holds: bool, message: str) -> None:
    """Raise an error unless a rule holds."""
    if not holds:
        raise ScheduleError(f"{message}; the scheduler is at fault")


def check_parts(problem: Problem, parts: Problem) -> None:
    """Check that ``parts`` is the network of ``problem`` with some operators in shares.

    Raises:
        ScheduleError: names the first rule that the parts break.
    """
    require(
        (problem.processors, problem.transfers, problem.caching)
        == (parts.processors, parts.transfers, parts.caching),
        "expected the same processors and transfers for the parts, got others",
    )
    parts_of: dict[str, list[int]] = {operator.name: [] for operator in problem.operators}
    for index, part in enumerate(parts.operators):
        name = part.whole or part.name
        require(name in parts_of, f"expected a part of an operator, got {part.name} of {name}")
        parts_of[name].append(index)
    for operator in problem.operators:
        _check_shares(problem, operator, [parts.operators[i] for i in parts_of[operator.name]])
    _check_part_tensors(problem, parts, parts_of)


def _check_shares(problem: Problem, whole: Job, parts: list[Job]) -> None:
    """Check that a part takes at least its share of the whole's time on each processor."""
    total = sum(part.share for part in parts)
    require(total == 1, f"expected shares of {whole.name} that sum to 1, got {total}")
    require(
        len(parts) == 1 or whole.splittable,
        f"expected {whole.name} whole, got it in {len(parts)} parts",
    )
    for part in parts:
        for processor, (cost, full) in enumerate(zip(part.costs, whole.costs, strict=True)):
            if cost is None:
                continue
            require(full is not None, f"expected {part.name} where {whole.name} is supported")
            assert full is not None
            launch = min(full, problem.launch[processor]) if problem.launch else 0
            least = launch + (full - launch) * part.share
            require(
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
            require(
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
    require(
        len(twin) == 1
        and full is not None
        and (twin[0].costs[supported] or 0) >= min(launch, full) + max(0, full - launch) * more,
        f"expected {parts.operators[reader].name} to read {parts.operators[source].name} "
        "or all that it needs of it from a part on its own processor",
    )


def _only_processor(part: Job) -> int:
    return next(p for p, cost in enumerate(part.costs) if cost is not None)
