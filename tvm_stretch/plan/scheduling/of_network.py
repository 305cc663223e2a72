"""Converts a network to a scheduling problem, and a schedule to processors of operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import relax

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.operator_graph import Group, OperatorGraph
from tvm_stretch.plan.scheduling.problem import Job, Problem, Tensor, TransferCost
from tvm_stretch.plan.scheduling.result import Result

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


def processors_of(graph: OperatorGraph, result: Result) -> dict[str, str]:
    """The processor of every operator by a schedule of `problem_of`, for `form_regions`.

    A view runs on the processor of its first reader, or else on that of its source.
    """
    names = result.problem.processors
    placed = {
        job.name: names[processor]
        for job, processor in zip(result.problem.operators, result.placement, strict=True)
    }
    processors = {op.name: placed[g.name] for g in graph.groups for op in g.operators}
    views = [op for op in graph.operators if op.name not in processors]
    for view in reversed(views):
        readers = (processors[r] for r in graph.operators.readers[view.name] if r in processors)
        processors[view.name] = next(readers, "")
    for view in views:
        sources = (processors[name] for name in view.inputs if processors.get(name))
        processors[view.name] = processors[view.name] or next(sources, names[0])
    return {
        op.name: processors[op.name]
        for op in graph.operators
        if isinstance(op.binding.value, relax.Call)
    }


def _costs_of(group: Group, costs: GroupCosts) -> tuple[int | None, ...]:
    try:
        return tuple(costs(group) if callable(costs) else costs[group.name])
    except KeyError:
        raise InputError(
            f"expected costs of the kernel {group.name} ({group.anchor.kind}), got none; "
            "measure it or leave it to a cost model"
        ) from None
