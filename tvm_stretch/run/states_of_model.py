"""Inputs that a model keeps from run to run: a cache of keys, a position, the state of a filter.

model.states["position"]          # its value now
model.states["token"] = prompt    # the next run reads this
model.run_steps(64)               # 64 runs in C++; outputs of all steps
model.reset()                     # all states are as before the first run
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.make.lowering.executor_graph import Graph, Tensor
from tvm_stretch.run.measures_of_model import MeasuresOfModel
from tvm_stretch.run.plans_of_model import Executor
from tvm_stretch.run.values import PresentAll, taking_memory, to_tensor


class States(Mapping[str, np.ndarray]):
    """The states of a model by name. Reading copies; an assignment holds for the next run."""

    def __init__(
        self,
        module: Executor,
        specs: Mapping[str, Tensor],
        grown: Mapping[str, tuple[int, int]],  # axis and rows of those that a run appends to
    ) -> None:
        """For `StatesOfModel.states`."""
        self._module = module
        self._specs = specs
        self._grown = grown

    def __getitem__(self, name: str) -> np.ndarray:
        """A copy of the state, as the next run would read it."""
        self._spec(name)
        value: np.ndarray = self._module["state"](name).numpy()
        axis, grown = self._grown.get(name, (0, 0))
        return np.split(value, [grown], axis)[1].copy() if grown else value

    def __setitem__(self, name: str, value: object) -> None:
        """Let the next run read this value."""
        tensor = to_tensor(name, value, self._spec(name))
        axis, grown = self._grown.get(name, (0, 0))
        if grown:  # rows that the next run replaces
            rows = [(grown, 0) if place == axis else (0, 0) for place in range(len(tensor.shape))]
            tensor = tvm.runtime.tensor(np.pad(tensor.numpy(), rows))
        self._module["set_input"](name, tensor)

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._specs)

    def __len__(self) -> int:
        """How many states there are."""
        return len(self._specs)

    def __repr__(self) -> str:
        """Names, types and shapes."""
        return f"States({', '.join(f'{n}: {s.dtype}{[*s.shape]}' for n, s in self._specs.items())})"

    def _spec(self, name: str) -> Tensor:
        if name not in self._specs:
            raise InputError(
                f"expected one of the states {list(self._specs)}, got {name!r}; states are "
                "declared when compiling: states={'past.*': 'present.*'}"
            )
        return self._specs[name]


class StatesOfModel(MeasuresOfModel):
    """What a `Model` does with its states."""

    @functools.cached_property
    def states(self) -> States:
        """The inputs that the model keeps from run to run, of ``ts.compile(..., states=)``."""
        graph = self.graph
        specs, grown = {}, {}
        for port, state in zip(graph.held, graph.states, strict=True):
            spec = graph.tensors[port.tensor]
            if state.grown:
                grown[port.name] = state.axis, state.grown
                shape = list(spec.shape)
                shape[state.axis] -= state.grown
                spec = replace(spec, shape=tuple(shape))
            specs[port.name] = spec
        self._load()
        return States(self.module, specs, grown)

    def reset(self) -> None:
        """Set all states to what they were before the first run: zeros, or values of buffers."""
        self._load()
        self.module["reset"]()

    def run_steps(self, count: int, /, *args: object, **kwargs: object) -> Any:
        """Run the network several times, without Python in between.

        Args:
            count: how many times.
            args: inputs by position, as for a call; an input that differs from step to step has
                one more dimension, the first, with a part for each step.
            kwargs: inputs by name.

        Returns:
            The outputs as of a call, with one more dimension, the first: that of the steps.

        Raises:
            InputError: as for a call; the states are those of the last step that succeeded.
        """
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count < 2**63:
            raise InputError(
                f"expected 1 to 2**63 - 1 for count, got {count!r}; run at least one step"
            )
        present, inputs = self._bind(args, kwargs, steps=count)
        graph = self._graph_for(inputs, steps=count)
        results = present(self._run_steps(count, inputs, graph))
        return results[0] if len(results) == 1 else self._outputs_type(*results)

    def _run_steps(
        self, count: int, inputs: Sequence[tvm.runtime.Tensor], graph: Graph
    ) -> list[tvm.runtime.Tensor]:
        """The outputs of all steps, whose ports are those of ``graph``."""
        outputs = []
        for spec in (graph.tensors[port.tensor] for port in graph.outputs):
            with taking_memory(count * spec.bytes):
                outputs.append(tvm.runtime.empty((count, *spec.shape), spec.dtype))
        self._load()
        self.module["run_steps"](count, *inputs, *outputs)
        return outputs

    @abc.abstractmethod
    def _bind(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], steps: int = 0
    ) -> tuple[PresentAll, list[tvm.runtime.Tensor]]:
        """What makes arrays of outputs, and the inputs in the order of the graph, checked."""

    @property
    @abc.abstractmethod
    def _outputs_type(self) -> Any:
        """Makes a named tuple of outputs."""


def one_or_more(name: str, value: object, spec: Tensor, steps: int) -> tvm.runtime.Tensor:
    """An input that is the same in each of several steps, or has a part for each."""
    if steps and len(getattr(value, "shape", ())) == len(spec.shape) + 1:
        spec = replace(spec, shape=(steps, *spec.shape))
    return to_tensor(name, value, spec)
