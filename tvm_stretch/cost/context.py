"""What ran before a kernel decides in which memory it finds what it reads.

    node 0 writes t0, node 1 writes t1, node 2 reads t0  ->  reuse of node 2: the bytes of node 1

All nodes together are a round: so much is touched before a kernel reads its weights again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from tvm_stretch.cost.features import Features
from tvm_stretch.lowering.graph import Graph, Node

_FLUSHED_BYTES = 1 << 30
"""The round of a kernel before which all caches were emptied."""

AnyFeatures = TypeVar("AnyFeatures", bound=Features)


def in_place(
    graph: Graph, kernels: Mapping[str, Features], flushed: bool = False
) -> list[Features | None]:
    """The kernel of each node of a graph, with what is touched between them.

    Args:
        graph: the nodes, in the order they run.
        kernels: features by name of kernel; nodes of other kernels get None.
        flushed: the caches are emptied before every run.
    """
    now, last_write, reuse = 0, dict[int, int](), list[int]()
    for node in graph.nodes:
        reuse.append(max((now - last_write[i] for i in node.inputs if i in last_write), default=0))
        now += _bytes(graph, node)
        last_write |= dict.fromkeys(node.outputs, now)
    total = _FLUSHED_BYTES if flushed else now
    return [
        replace(kernels[node.kernel], round_bytes=total, reuse_bytes=distance)
        if node.kernel in kernels
        else None
        for node, distance in zip(graph.nodes, reuse, strict=True)
    ]


def in_round(kernels: Iterable[AnyFeatures]) -> list[AnyFeatures]:
    """Kernels that run in turns: as `in_place`, where only the kernels are known."""
    listed = list(kernels)
    total = sum(kernel.total_bytes for kernel in listed)
    return [replace(kernel, round_bytes=total) for kernel in listed]


def _bytes(graph: Graph, node: Node) -> int:
    return sum(graph.tensors[i].bytes for i in {*node.inputs, *node.outputs})
