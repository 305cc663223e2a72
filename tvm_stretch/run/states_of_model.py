"""Inputs that a model keeps from run to run: a cache of keys, a position, the state of a filter.

model.states["position"]          # its value now
model.states["token"] = prompt    # the next run reads this
model.run_steps(64)               # 64 runs in C++; outputs of all steps
model.reset()                     # all states are as before the first run
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.make.lowering.executor_graph import Graph, Tensor
from tvm_stretch.run.plans_of_model import Executor
from tvm_stretch.run.values import to_tensor


class States(Mapping[str, np.ndarray]):
    """The states of a model by name. Reading copies; an assignment holds for the next run."""

    def __init__(
        self,
        module: Executor,
        graph: Graph,
    ) -> None:
        """For `Model.states`."""
        self._module = module
        self._specs: dict[str, Tensor] = {}
        self._grown: dict[str, tuple[int, int]] = {}  # axis and rows, if a run appends to it
        for port, state in zip(graph.held, graph.states, strict=True):
            spec = graph.tensors[port.tensor]
            if state.grown:
                self._grown[port.name] = state.axis, state.grown
                shape = list(spec.shape)
                shape[state.axis] -= state.grown
                spec = replace(spec, shape=tuple(shape))
            self._specs[port.name] = spec

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


def one_or_more(name: str, value: object, spec: Tensor, steps: int) -> tvm.runtime.Tensor:
    """An input that is the same in each of several steps, or has a part for each."""
    if steps and len(getattr(value, "shape", ())) == len(spec.shape) + 1:
        spec = replace(spec, shape=(steps, *spec.shape))
    return to_tensor(name, value, spec)
