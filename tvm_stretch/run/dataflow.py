"""Which kernel reads what which other one wrote, and how much of the arena is in use meanwhile.

The graph has no edges: its tensors are windows on memory, and several may look at the same bytes.
So its nodes are gone through in an order in which they could run, and every byte remembers who
wrote it last:

    n0 writes [0, 64)      n1 writes [64, 96)      n2 reads [0, 96)   ->  n2 comes after n0 and n1
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tvm_stretch.make.lowering.executor_graph import Graph, Tensor

_NOBODY = -1
_Memory = tuple[str, int]


def running_order(graph: Graph) -> list[int]:
    """All nodes, in the order in which one processor alone would run the regions."""
    return [node for region in graph.regions for node in region.nodes]


def find_edges(graph: Graph) -> dict[int, list[int]]:
    """For each node those whose results it reads, smallest first; inputs and weights have none."""
    sizes: dict[_Memory, int] = {}
    for tensor in graph.tensors:
        memory = (tensor.kind, tensor.buffer)
        sizes[memory] = max(sizes.get(memory, 0), tensor.offset + tensor.bytes)
    written = ("arena", "output")
    owners = {
        memory: np.full(size, _NOBODY, "int32")
        for memory, size in sizes.items()
        if memory[0] in written
    }
    edges = {}
    for node in running_order(graph):
        call = graph.nodes[node]
        found: set[int] = set()
        for tensor in (graph.tensors[i] for i in call.inputs):
            if tensor.kind in written and 0 not in tensor.shape:
                found.update(np.unique(_window(owners[tensor.kind, tensor.buffer], tensor)))
        for tensor in (graph.tensors[i] for i in call.outputs):
            if 0 not in tensor.shape:
                _window(owners[tensor.kind, tensor.buffer], tensor)[...] = node
        edges[node] = sorted(int(other) for other in found - {_NOBODY, node})
    return edges


def _window(owner: np.ndarray, tensor: Tensor) -> np.ndarray:
    """The first byte of every element of the tensor, as a view on the memory's owners."""
    strides = _element_strides(tensor)
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    item = tensor.bytes // span
    steps = tuple(stride * item * owner.itemsize for stride in strides)
    return np.lib.stride_tricks.as_strided(owner[tensor.offset :], tensor.shape, steps)


def _element_strides(tensor: Tensor) -> tuple[int, ...]:
    """Elements from one to the next in each direction."""
    if tensor.strides:
        return tensor.strides
    return tuple(math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape)))


def arena_use(graph: Graph, edges: dict[int, list[int]]) -> list[int]:
    """Bytes of the arena that hold something still needed while each node runs, in running order.

    A result is needed from the node that writes it to the last one that reads it.
    """
    order = running_order(graph)
    last = {node: step for step, node in enumerate(order)}
    for step, node in enumerate(order):
        for source in edges[node]:
            last[source] = max(last[source], step)
    windows: list[list[tuple[int, int]]] = [[] for _ in order]
    for step, node in enumerate(order):
        for lived in windows[step : last[node] + 1]:
            lived.extend(_arena_windows(graph, node))
    return [_covered(lived) for lived in windows]


def _arena_windows(graph: Graph, node: int) -> Iterator[tuple[int, int]]:
    for tensor in (graph.tensors[i] for i in graph.nodes[node].outputs):
        if tensor.kind == "arena":
            yield tensor.offset, tensor.offset + tensor.bytes


def _covered(windows: list[tuple[int, int]]) -> int:
    total = reached = 0
    for start, end in sorted(windows):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
