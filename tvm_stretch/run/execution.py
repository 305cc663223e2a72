"""Where the operators of a plan really run: told from the graph that is executed, not by the plan.

    plan    r1 opencl: conv1, relu1, join           graph   r1 opencl: kernel "conv1 + relu1"
            r2 cpu: conv2                    and            r2 opencl: kernel "conv2"
        -> 1 of 4 operators fell back: conv2 from cpu to opencl

Nodes say which operators they compute, or help. An operator without a kernel is a view, or was
computed once when the model was loaded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.plan.plan import Execution, Stray

NOWHERE = "nowhere"
"""Where the kernels of an operator ran that a run left out."""


def find_execution(
    planned: Mapping[str, str], graph: Graph, ran: Collection[int] | None = None
) -> Execution:
    """Compare a plan with the graph that runs.

    Args:
        planned: the processor of each operator.
        graph: its regions, each on a processor, and their kernels.
        ran: the nodes that a traced run executed; None for all of them.
    """
    found: dict[str, set[str]] = {}
    for region in graph.regions:
        processor = graph.processors[region.processor].name
        for node in region.nodes:
            where = processor if ran is None or node in ran else NOWHERE
            for operator in graph.nodes[node].provenance.served:
                found.setdefault(operator, set()).add(where)
    strays = tuple(
        Stray(operator, processor, where)
        for operator, processor in planned.items()
        for where in sorted(found.get(operator, set()) - {processor})
    )
    without = tuple(operator for operator in planned if operator not in found)
    return Execution(len(planned), strays, without)
