"""The lengths of a model: the sizes of named dimensions for which it was compiled.

model = ts.compile("bert.onnx", lengths={"n": [64, 128]})
model(tokens)                  # (1, 64) or (1, 128): the shapes of the inputs choose
model.lengths                  # ({"n": 64}, {"n": 128})
model.length_for(n=50)         # {"n": 64}: what to pad to
model(tokens)                  # (1, 50), if n is a ts.Length: padded to (1, 64), and cut
model.use("n=128")             # what benchmark(), profile() and timeline() measure

The executor pads inputs to a length, and cuts outputs (`run/native/padding.cc`); here stands which
sizes it takes and which shapes it answers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.named_arguments import is_count
from tvm_stretch.make.lowering.executor_graph import Graph, Tensor


class LengthsOfModel(tuple[dict[str, int], ...]):
    """The sizes of named dimensions for which a model was compiled; empty if there are no names."""

    def __new__(cls, graph: Graph) -> LengthsOfModel:
        """For `Model.lengths`."""
        lengths = super().__new__(cls, (dict(length.sizes) for length in graph.lengths))
        lengths._graph = graph
        return lengths

    _graph: Graph

    def roomy(self, **sizes: int) -> dict[str, int]:
        """The smallest length with room for these sizes: what to pad inputs to.

        Padding keeps the answer only if the network masks or ignores the padding.

        Raises:
            InputError: a name is unknown, a size is below 1, or no length is that large.
        """
        names = [*self._graph.lengths[0].sizes] if self._graph.lengths else []
        wrong = [name for name, size in sizes.items() if name not in names or not is_count(size)]
        if wrong:
            raise InputError(
                f"expected sizes of at least 1 for some of {names} for length_for, got "
                f"{sizes}; lengths lists what there is"
            )
        roomy = [own for own in self if all(own[n] >= size for n, size in sizes.items())]
        if not roomy:
            raise InputError(
                f"expected at most one of the lengths {self._names}, got {sizes}; compile "
                "the model with that length"
            )
        return min(roomy, key=lambda own: [own[name] for name in sorted(names)])

    @property
    def _names(self) -> str:
        return "; ".join(length.name for length in self._graph.lengths)

    @functools.cached_property
    def _graphs(self) -> Sequence[Graph]:
        """The graph with the ports of each length; the graph itself if it has no lengths."""
        graph = self._graph
        return [graph.with_length(i) for i in range(len(graph.lengths))] or [graph]

    def graph_for(self, inputs: Sequence[object], steps: int = 0, present: int = 0) -> Graph:
        """The graph with the ports of a run whose inputs, in the graph's order, these are.

        Args:
            inputs: the arrays.
            steps: how many steps `Model.run_steps` is asked for; 0 for one run.
            present: the length that is kept if the inputs fit it.

        Raises:
            InputError: no length has such inputs.
        """
        graphs = self._graphs
        if len(graphs) == 1 and not self._graph.spans:
            return graphs[0]  # `to_tensor` names the fault
        shapes = {
            port.name: tuple(getattr(value, "shape", ()))
            for port, value in zip(self._graph.inputs, inputs, strict=True)
        }
        for own in (*graphs[present : present + 1], *graphs):
            if all(_fits(shapes[name], room, steps) for name, room in _shapes(own)):
                return own
        smallest = sorted(
            range(len(graphs)), key=lambda i: prod(self._graph.lengths[i].sizes.values())
        )
        for number in smallest if self._graph.spans and not steps else ():
            if (shorter := _shortened(self._graph, number, shapes)) is not None:
                return shorter
        got = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
        roomy = [
            self._graph.lengths[number].name
            for number, own in enumerate(graphs)
            if all(_has_room(shapes[name], room) for name, room in _shapes(own))
        ]
        advice = f"pad them to {roomy[0]}, or " if roomy and not steps else ""
        for span in self._graph.spans:
            got += f" ({span.name} may be {span.low} to {span.high}, the same in all inputs)"
        raise InputError(
            f"expected inputs of one of the lengths {self._names}, got {got}; {advice}"
            "compile the model with that length"
        )


def _shapes(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    return [(port.name, graph.tensors[port.tensor].shape) for port in graph.inputs]


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...], steps: int) -> bool:
    return shape == wanted or (steps > 0 and shape == (steps, *wanted))


def _has_room(shape: tuple[int, ...], room: tuple[int, ...]) -> bool:
    return len(shape) == len(room) and all(0 < s <= r for s, r in zip(shape, room, strict=True))


def _shortened(graph: Graph, number: int, shapes: Mapping[str, Sequence[int]]) -> Graph | None:
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
