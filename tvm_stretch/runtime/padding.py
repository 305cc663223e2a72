"""Inputs of a size between the lengths of a model: padded to the next one, and outputs cut.

    tokens (1, 50), mask (1, 50)   ->   (1, 64), (1, 64)   ->   run   ->   (1, 64, 384)[:, :50]

The compiler has shown that padding changes nothing that is left (`analysis/padding.py`), if masks
are padded with the value that hides it. Other inputs repeat their last position, so padding has no
numbers that the network never sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm

from tvm_stretch.errors import InputError
from tvm_stretch.lowering.executor_graph import Graph, Port
from tvm_stretch.runtime.values import to_numpy, to_tensor

Growth = list[tuple[str, int]]
"""For each axis the name of the dimension with which it grows, and how many times as fast."""


class Room:
    """A length of a model, and how its inputs and outputs grow: found once for all runs."""

    def __init__(self, graph: Graph, number: int) -> None:
        """Take the length at a position of a graph with lengths and spans."""
        self.graph = graph
        self.length = graph.lengths[number]
        self.inputs = _growth(graph, number, "inputs")
        self.outputs = _growth(graph, number, "outputs")

    def padding_for(self, shapes: Mapping[str, Sequence[int]]) -> Padding | None:
        """What inputs of these shapes, by name, lack to the length; None if they do not fit."""
        missing = dict[str, int]()
        for port, growth in zip(self.length.inputs, self.inputs, strict=True):
            wanted, got = self.graph.tensors[port.tensor].shape, shapes[port.name]
            if len(wanted) != len(got) or 0 in got:
                return None
            for most, size, (name, slope) in zip(wanted, got, growth, strict=True):
                count, rest = divmod(most - size, slope) if slope else (0, most - size)
                if rest or missing.setdefault(name, count) != count:
                    return None
        for span in self.graph.spans:
            most = self.length.sizes.get(span.name, 0)
            if not span.low <= most - missing.get(span.name, 0) <= most:
                return None
        return Padding(self, missing)


@dataclass(frozen=True)
class Padding:
    """The positions that inputs lack to a length."""

    room: Room
    missing: Mapping[str, int]  # for each dimension that may have any size

    @property
    def count(self) -> int:
        """How many positions are missing in all."""
        return sum(self.missing.values())

    def padded(self, name: str, value: object) -> tvm.runtime.Tensor:
        """An input with padding.

        Raises:
            InputError: it is no tensor of the input's type, or a mask that hides everything.
        """
        graph, inputs = self.room.graph, self.room.length.inputs
        place = next(i for i, port in enumerate(inputs) if port.name == name)
        spec, growth = graph.tensors[inputs[place].tensor], self.room.inputs[place]
        widths = [(0, slope * self.missing.get(axis, 0)) for axis, slope in growth]
        own = tuple(size - more for size, (_, more) in zip(spec.shape, widths, strict=True))
        array = to_numpy(to_tensor(name, value, replace(spec, shape=own)))
        for axis, ((dimension, _), (_, more)) in enumerate(zip(growth, widths, strict=True)):
            spans = [span for span in graph.spans if span.name == dimension]
            fill = spans[0].masks.get(name) if spans else None
            if fill is not None and name in spans[0].hiding:
                _require_shown(name, array != fill, fill, axis)
            width = [(0, 0)] * array.ndim
            width[axis] = (0, more)
            if fill is None:
                array = np.pad(array, width, mode="edge")
            else:
                array = np.pad(array, width, constant_values=fill)
        return tvm.runtime.tensor(np.ascontiguousarray(array))

    def cut(self, place: int, output: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
        """An output without what padding made of it."""
        counts = [
            size - slope * self.missing.get(name, 0)
            for size, (name, slope) in zip(output.shape, self.room.outputs[place], strict=True)
        ]
        if counts == [*output.shape]:
            return output
        return tvm.runtime.tensor(np.ascontiguousarray(to_numpy(output)[tuple(map(slice, counts))]))


def _require_shown(name: str, shown: np.ndarray, fill: int, axis: int) -> None:
    """Refuse a mask that hides a whole row: padding would count as much as what it hides."""
    if not shown.any(axis=axis).all():
        raise InputError(
            f"expected a position that counts in each row of the mask {name!r}, got a row of "
            f"{fill}; show at least one, or give inputs of a length in Model.lengths"
        )


def _growth(graph: Graph, number: int, side: str) -> list[Growth]:
    """How the axes of ports grow: as lengths that differ in one dimension only show."""
    length = graph.lengths[number]
    ports: Sequence[Port] = getattr(length, side)
    found = [[("", 0)] * len(graph.tensors[port.tensor].shape) for port in ports]
    for span in graph.spans:
        rest = {**length.sizes, span.name: 0}
        for other in graph.lengths:
            more = other.sizes.get(span.name, 0) - length.sizes.get(span.name, 0)
            if more and {**other.sizes, span.name: 0} == rest:
                break
        else:
            continue
        for i, pair in enumerate(zip(ports, getattr(other, side), strict=True)):
            shapes = [graph.tensors[port.tensor].shape for port in pair]
            for axis, (size, grown) in enumerate(zip(*shapes, strict=True)):
                if grown != size:
                    found[i][axis] = (span.name, (grown - size) // more)
    return found
