"""The shapes of runs whose inputs the executor pads to a length of the model, and cuts again.

    tokens (1, 50)   ->   (1, 64)   ->   run   ->   (1, 64, 384)   ->   (1, 50, 384)

`run/native/padding.cc` does so; here stands which sizes it takes and which shapes it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tvm_stretch.make.lowering.executor_graph import Graph, Tensor


def shortened(graph: Graph, number: int, shapes: Mapping[str, Sequence[int]]) -> Graph | None:
    """The graph of a length with the shapes of a run whose inputs, by name, are smaller.

    None if the executor cannot pad these inputs to the length.
    """
    own, missing = graph.with_length(number), dict[str, int]()
    for port in own.inputs:
        wanted, got = graph.tensors[port.tensor].shape, shapes[port.name]
        if len(wanted) != len(got):
            return None
        for axis, (most, size) in enumerate(zip(wanted, got, strict=True)):
            rest = most - size
            for span in graph.spans:
                if step := span.inputs[port.name][axis]:
                    rest -= step * missing.setdefault(span.name, rest // step)
            if rest:
                return None
    for span in graph.spans:
        size = graph.lengths[number].sizes[span.name]
        if not span.low <= size - missing.get(span.name, 0) <= size:
            return None
    tensors = list(graph.tensors)
    for port in own.inputs:
        steps = {span.name: span.inputs[port.name] for span in graph.spans}
        tensors[port.tensor] = _smaller(tensors[port.tensor], steps, missing)
    for place, port in enumerate(own.outputs):
        steps = {span.name: span.outputs[place] for span in graph.spans}
        tensors[port.tensor] = _smaller(tensors[port.tensor], steps, missing)
    return replace(own, tensors=tuple(tensors))


def _smaller(
    tensor: Tensor, steps: Mapping[str, Sequence[int]], missing: Mapping[str, int]
) -> Tensor:
    """A port's tensor without the missing positions of each dimension."""
    shape = list(tensor.shape)
    for name, step in steps.items():
        for axis, one in enumerate(step):
            shape[axis] -= one * missing.get(name, 0)
    return replace(tensor, shape=tuple(shape))
