"""Compute how much memory was touched before a kernel, which decides where its operands lie.

    node 0 writes t0, node 1 reads and writes 1 MB, node 2 reads t0  ->  reuse of node 2: 1 MB

All nodes together are a round: the bytes that are touched before a kernel reads its weights again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from tvm_stretch.make.lowering.executor_graph import Graph, Node, Tensor
from tvm_stretch.targets.kernels.features import Features

_FLUSHED_BYTES = 1 << 30
"""Bytes of a round after which all caches are empty."""

_WEIGHTS = ("constant", "prepared")


def in_place(
    graph: Graph,
    kernels: Mapping[str, Features],
    flushed: bool = False,
    once: bool = False,
) -> list[Features | None]:
    """The features of each node of a graph, with the bytes that are touched in between.

    Args:
        graph: the nodes in the order in which they run.
        kernels: features by name of kernel; nodes of other kernels get None.
        flushed: whether the caches are emptied before every run.
        once: whether bytes that several nodes touch count once in a round. The cache of a GPU keeps
            a network of 25 MB whose nodes touch 130.
    """
    touched = _Touched(graph)
    reuse = [touched.node(node) for node in graph.nodes]
    total = _different_bytes(graph) if once else touched.now
    total = _FLUSHED_BYTES if flushed else total
    return [
        replace(kernels[node.kernel], round_bytes=total, reuse_bytes=distance)
        if node.kernel in kernels
        else None
        for node, distance in zip(graph.nodes, reuse, strict=True)
    ]


def _different_bytes(graph: Graph) -> int:
    """How many different bytes the nodes touch."""
    windows = defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    for number in {i for node in graph.nodes for i in (*node.inputs, *node.outputs)}:
        tensor = graph.tensors[number]
        windows[tensor.kind, tensor.buffer].append((tensor.offset, tensor.offset + tensor.bytes))
    total = 0
    for own in windows.values():
        reached = 0
        for begin, end in sorted(own):
            total += max(0, end - max(begin, reached))
            reached = max(reached, end)
    return total


class _Touched:
    """When bytes were last read or written; the clock counts the bytes that kernels touch.

    Tensors are windows on memory, and several may share bytes.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors
        self.now = 0
        self._log: list[tuple[tuple[str, int], int, int, int]] = []

    def node(self, node: Node) -> int:
        """Run a node; returns how long ago its inputs were touched, on average."""
        inputs = list(dict.fromkeys(node.inputs))
        read = [self.tensors[i] for i in inputs if self.tensors[i].kind not in _WEIGHTS]
        size = sum(tensor.bytes for tensor in read)
        distance = sum(self._distance(tensor) for tensor in read)
        written = [self.tensors[i] for i in dict.fromkeys(node.outputs)]
        self.now += sum(self.tensors[i].bytes for i in inputs) + sum(t.bytes for t in written)
        for tensor in (*read, *written):
            end = tensor.offset + tensor.bytes
            self._log.append(((tensor.kind, tensor.buffer), tensor.offset, end, self.now))
        return round(distance / size) if size else 0

    def _distance(self, tensor: Tensor) -> int:
        """Bytes of the tensor times how long ago they were touched; 0 for the caller's tensors."""
        memory, begin = (tensor.kind, tensor.buffer), tensor.offset
        end = begin + tensor.bytes
        left, total = tensor.bytes, 0
        for where, start, stop, when in reversed(self._log):
            if where == memory and (common := min(stop, end) - max(start, begin)) > 0:
                common = min(common, left)
                total += common * (self.now - when)
                left -= common
                if not left:
                    break
        return total
