"""The lengths of a model: the sizes of named dimensions for which it was compiled.

model = ts.compile("bert.onnx", lengths={"n": [64, 128]})
model(tokens)                  # (1, 64) or (1, 128): the shapes of the inputs choose
model.lengths                  # ({"n": 64}, {"n": 128})
model.length_for(n=50)         # {"n": 64}: what to pad to
model(tokens)                  # (1, 50), if n is a ts.Length: padded to (1, 64), and cut
model.use("n=128")             # what benchmark(), profile() and timeline() measure
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.named_arguments import is_count
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.padding import shortened
from tvm_stretch.run.plans_of_model import PlansOfModel


class LengthsOfModel(PlansOfModel):
    """What a `Model` knows of its lengths."""

    @property
    def lengths(self) -> tuple[dict[str, int], ...]:
        """The sizes of named dimensions for which it was compiled; empty if there were no names."""
        return tuple(dict(length.sizes) for length in self.graph.lengths)

    def length_for(self, **sizes: int) -> dict[str, int]:
        """The smallest of `lengths` with room for these sizes: what to pad inputs to.

        Padding keeps the answer only if the network masks or ignores the padding.

        Raises:
            InputError: a name is unknown, a size is below 1, or no length is that large.
        """
        names = [*self.graph.lengths[0].sizes] if self.graph.lengths else []
        wrong = [name for name, size in sizes.items() if name not in names or not is_count(size)]
        if wrong:
            raise InputError(
                f"expected sizes of at least 1 for some of {names} for length_for, got "
                f"{sizes}; lengths lists what there is"
            )
        roomy = [own for own in self.lengths if all(own[n] >= size for n, size in sizes.items())]
        if not roomy:
            raise InputError(
                f"expected at most one of the lengths {self._length_names}, got {sizes}; compile "
                "the model with that length"
            )
        return min(roomy, key=lambda own: [own[name] for name in sorted(names)])

    @property
    def _length_names(self) -> str:
        return "; ".join(length.name for length in self.graph.lengths)

    @functools.cached_property
    def _graphs_of_lengths(self) -> Sequence[Graph]:
        """The graph with the ports of each length; the graph itself if it has no lengths."""
        graph = self.graph
        return [graph.with_length(i) for i in range(len(graph.lengths))] or [graph]

    def _graph_for(self, inputs: Sequence[object], steps: int = 0) -> Graph:
        """The graph with the ports of a run whose inputs, in the graph's order, these are.

        Args:
            inputs: the arrays.
            steps: as for `Model.run_steps`; 0 for one run.

        Raises:
            InputError: no length has such inputs.
        """
        graphs = self._graphs_of_lengths
        if len(graphs) == 1 and not self.graph.spans:
            return graphs[0]  # `to_tensor` names the fault
        shapes = {
            port.name: tuple(getattr(value, "shape", ()))
            for port, value in zip(self.graph.inputs, inputs, strict=True)
        }
        for own in graphs:
            if all(_fits(shapes[name], room, steps) for name, room in _shapes(own)):
                return own
        smallest = sorted(
            range(len(graphs)), key=lambda i: prod(self.graph.lengths[i].sizes.values())
        )
        for number in smallest if self.graph.spans and not steps else ():
            if (shorter := shortened(self.graph, number, shapes)) is not None:
                return shorter
        got = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
        roomy = [
            self.graph.lengths[number].name
            for number, own in enumerate(graphs)
            if all(_has_room(shapes[name], room) for name, room in _shapes(own))
        ]
        advice = f"pad them to {roomy[0]}, or " if roomy and not steps else ""
        for span in self.graph.spans:
            got += f" ({span.name} may be {span.low} to {span.high}, the same in all inputs)"
        raise InputError(
            f"expected inputs of one of the lengths {self._length_names}, got {got}; {advice}"
            "compile the model with that length"
        )


def _shapes(graph: Graph) -> list[tuple[str, tuple[int, ...]]]:
    return [(port.name, graph.tensors[port.tensor].shape) for port in graph.inputs]


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...], steps: int) -> bool:
    return shape == wanted or (steps > 0 and shape == (steps, *wanted))


def _has_room(shape: tuple[int, ...], room: tuple[int, ...]) -> bool:
    return len(shape) == len(room) and all(0 < s <= r for s, r in zip(shape, room, strict=True))
