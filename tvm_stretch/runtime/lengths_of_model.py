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
from collections.abc import Mapping, Sequence
from math import prod

from tvm_stretch.errors import InputError
from tvm_stretch.lowering.executor_graph import Graph, Tensor
from tvm_stretch.runtime.padding import Padding, Room
from tvm_stretch.runtime.plans_of_model import PlansOfModel

Specs = Mapping[str, Tensor]
"""The inputs of one length."""


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
        wrong = [name for name, size in sizes.items() if name not in names or size < 1]
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
    def _specs_of_lengths(self) -> Sequence[Specs]:
        """The inputs of each length; those of the graph if it has no lengths."""
        graph = self.graph
        graphs = [graph.with_length(i) for i in range(len(graph.lengths))] or [graph]
        return [{port.name: own.tensors[port.tensor] for port in own.inputs} for own in graphs]

    @functools.cached_property
    def _rooms(self) -> Sequence[Room]:
        """What pads inputs to each length; empty if the model takes listed sizes only."""
        count = len(self.graph.lengths) if self.graph.spans else 0
        return [Room(self.graph, number) for number in range(count)]

    def _padding_for(self, number: int, inputs: Mapping[str, object]) -> Padding | None:
        """What pads these inputs to a length; None if they do not fit, or nothing is padded."""
        if not self._rooms:
            return None
        shapes = {name: tuple(getattr(value, "shape", ())) for name, value in inputs.items()}
        return self._rooms[number].padding_for(shapes)

    def _graph_for(self, inputs: Sequence[object], steps: int = 0) -> Graph:
        """The graph with the ports of the length that inputs, in the graph's order, have."""
        if not self.graph.lengths:
            return self.graph
        given = dict(zip(self._specs_of_lengths[0], inputs, strict=True))
        return self.graph.with_length(self._length_of(given, steps))

    def _length_of(self, inputs: Mapping[str, object], steps: int = 0) -> int:
        """The length whose inputs have these shapes.

        Args:
            inputs: all inputs by name.
            steps: as for `Model.run_steps`; 0 for one run.

        Raises:
            InputError: there is none.
        """
        lengths = self._specs_of_lengths
        if len(lengths) == 1:
            return 0  # `to_tensor` names the fault
        shapes = {name: tuple(getattr(value, "shape", ())) for name, value in inputs.items()}
        for number, specs in enumerate(lengths):
            if all(_fits(shapes[name], spec.shape, steps) for name, spec in specs.items()):
                return number
        smallest = sorted(
            range(len(lengths)), key=lambda i: prod(self.graph.lengths[i].sizes.values())
        )
        for number in smallest if self.graph.spans and not steps else ():
            if self._padding_for(number, inputs) is not None:
                return number
        got = ", ".join(f"{name}: {list(shape)}" for name, shape in shapes.items())
        roomy = [
            self.graph.lengths[number].name
            for number, specs in enumerate(lengths)
            if all(_has_room(shapes[name], spec.shape) for name, spec in specs.items())
        ]
        advice = f"pad them to {roomy[0]}, or " if roomy and not steps else ""
        for span in self.graph.spans:
            got += f" ({span.name} may be {span.low} to {span.high}, the same in all inputs)"
        raise InputError(
            f"expected inputs of one of the lengths {self._length_names}, got {got}; {advice}"
            "compile the model with that length"
        )


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...], steps: int) -> bool:
    return shape == wanted or (steps > 0 and shape == (steps, *wanted))


def _has_room(shape: tuple[int, ...], room: tuple[int, ...]) -> bool:
    return len(shape) == len(room) and all(0 < s <= r for s, r in zip(shape, room, strict=True))
