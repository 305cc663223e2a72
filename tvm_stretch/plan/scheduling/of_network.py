"""Converts a network to a scheduling problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.operator_graph import ANCHORS, Group, OperatorGraph
from tvm_stretch.network.operators import POINTWISE, Operator
from tvm_stretch.network.properties.branch_spans import why_not_by_rows, window
from tvm_stretch.plan.scheduling.problem import Job, Problem, Tensor, TransferCost

# Operators whose output channels can be computed in shares.
_SPLITTABLE = (*ANCHORS, *POINTWISE)

GroupCosts = Mapping[str, Sequence[int | None]] | Callable[[Group], Sequence[int | None]]


def problem_of(
    graph: OperatorGraph,  # the network's kernels
    processors: Sequence[str],  # their names
    costs: GroupCosts,  # nanoseconds on each processor by group, None where unsupported
    transfers: Sequence[Sequence[TransferCost]],  # the costs of each pair of processors
    *,
    caching: bool = True,  # whether processors keep tensors that they received
) -> Problem:
    """The scheduling problem of a network.

    The caller's inputs and outputs belong to the first processor: the operators ``inputs`` and
    ``outputs`` run there at no cost.
    """
    at_home = (0, *[None] * (len(processors) - 1))
    names = ["inputs", *(group.name for group in graph.groups), "outputs"]
    jobs = [Job("inputs", at_home), *(Job(g.name, _costs_of(g, costs)) for g in graph.groups)]
    jobs.append(Job("outputs", at_home))
    index = dict.fromkeys(graph.inputs, 0) | {n: i for i, n in enumerate(names) if i > 0}
    readers: dict[str, set[int]] = {}
    reads = [*((index[g.name], g.reads) for g in graph.groups), (len(names) - 1, graph.outputs)]
    for reader, read in reads:
        for tensor in read:
            if tensor in index:  # others are constant
                readers.setdefault(tensor, set()).add(reader)
    tensors = [
        Tensor(name, graph.operators.bytes(name), index[name], tuple(sorted(after)))
        for name, after in readers.items()
    ]
    return Problem(
        tuple(processors),
        tuple(jobs),
        tuple(tensors),
        tuple(map(tuple, transfers)),
        caching,
    )


def _costs_of(group: Group, costs: GroupCosts) -> tuple[int | None, ...]:
    try:
        return tuple(costs(group) if callable(costs) else costs[group.name])
    except KeyError:
        raise InputError(
            f"expected costs of the kernel {group.name} ({group.anchor.kind}), got none; "
            "measure it or leave it to a cost model"
        ) from None


def splittable(
    problem: Problem,  # as `problem_of` makes it
    graph: OperatorGraph,  # the network's kernels
    launch: Sequence[int] = (),  # the fixed nanoseconds of every kernel, by processor
) -> Problem:
    """The problem of a network, whose schedulers may split operators by channels."""
    groups = {group.name: group for group in graph.groups}

    def marked(job: Job) -> Job:
        group = groups.get(job.name)
        if group is None or not group.anchor.kind.startswith(_SPLITTABLE):
            return job
        pointwise = all(operator.kind in POINTWISE for operator in group.operators)
        halo = Fraction(0) if pointwise else _halo(group.anchor)
        return replace(job, splittable=True, pointwise=pointwise, halo=halo)

    return replace(problem, operators=tuple(map(marked, problem.operators)), launch=tuple(launch))


def _halo(operator: Operator) -> Fraction:
    """How far beyond a band of rows the operator reads, as a share of the rows of its input."""
    if why_not_by_rows(operator) is not None:
        return Fraction(1)
    sliding = window(operator)
    if sliding is None:
        return Fraction(0)
    return Fraction((sliding.extent - 1) // 2, operator.arg_shapes[0][2])
