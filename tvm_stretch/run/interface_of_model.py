"""The inputs that callers give by position or name, and the outputs as they get them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.make.lowering.executor_graph import Graph
from tvm_stretch.run.values import PresentAll, TensorInfo, outputs_type, shortened, true_sizes


class InterfaceOfModel:
    """A graph's inputs and outputs, for its callers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def infos(self, ports: Literal["inputs", "outputs"], number: int) -> tuple[TensorInfo, ...]:
        """Name, shape and dtype of each port of the length of a plan."""
        graph = self._graph
        now = getattr(graph.with_length(number) if graph.lengths else graph, ports)
        infos = []
        for place, port in enumerate(now):
            tensors = [graph.tensors[getattr(own, ports)[place].tensor] for own in graph.lengths]
            shapes = tuple(dict.fromkeys(tensor.shape for tensor in tensors))
            tensor = graph.tensors[port.tensor]
            several = shapes if len(shapes) > 1 else ()
            infos.append(TensorInfo(port.name, tensor.shape, tensor.dtype, several))
        return tuple(infos)

    def by_name(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The inputs of a call, in the order of the graph."""
        names = [port.name for port in self._graph.inputs]
        if len(args) > len(names):
            raise InputError(
                f"expected {len(names)} inputs {names}, got {len(args)}; leave out the others"
            )
        mapping: Mapping[str, object] = {}
        if len(args) == 1 and isinstance(args[0], Mapping):
            mapping, args = args[0], ()
        given = dict(zip(names, args, strict=False))
        for name, value in [*mapping.items(), *kwargs.items()]:
            if name not in names or name in given:
                problem = "twice" if name in given else "an unknown one"
                raise InputError(
                    f"expected each of the inputs {names} once, got {name!r} ({problem}); "
                    "give every input by position or by name, or all in one dictionary"
                )
            given[name] = value
        missing = [name for name in names if name not in given]
        if missing:
            raise InputError(f"expected the inputs {names}, got none for {missing}; give them all")
        return {name: given[name] for name in names}

    def presented(self, present: PresentAll, outputs: Sequence[tvm.runtime.Tensor]) -> Any:
        """The outputs as a caller gets them."""
        results = shortened(present(outputs), self._sizes)
        return self.named(results)

    def named(self, results: Sequence[Any]) -> Any:
        """The first outputs, by their names; a single one alone."""
        if len(results) == 1:
            return results[0]
        return outputs_type(self._output_names[: len(results)])(*results)

    @functools.cached_property
    def _sizes(self) -> dict[int, tuple[int, int]]:
        return true_sizes(self._output_names)

    @functools.cached_property
    def _output_names(self) -> tuple[str, ...]:
        """Outputs that tell sizes follow the others."""
        return tuple(port.name for port in self._graph.outputs)
