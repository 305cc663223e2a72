"""Inputs that a model keeps from run to run: a cache of keys, a position, the state of a filter.

model.states["position"]          # its value now
model.states["token"] = prompt    # the next run reads this
model.run_steps(64)               # 64 runs in C++; outputs of all steps
model.reset()                     # all states are as before the first run
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import tvm

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path, write_whole, writing
from tvm_stretch.make.lowering.executor_graph import Graph, Tensor
from tvm_stretch.network.states import Sample
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
        self._longer: dict[tuple[str, tuple[int, ...]], Tensor] = {}  # those of other lengths
        for port in (port for length in graph.lengths for port in length.held):
            spec = graph.tensors[port.tensor]
            self._longer[port.name, spec.shape] = spec
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
        spec, (axis, grown) = self._spec(name), self._grown.get(name, (0, 0))
        if not grown:
            spec = self._longer.get((name, tuple(getattr(value, "shape", ()))), spec)
        tensor = to_tensor(name, value, spec)
        if grown:  # rows that the next run replaces
            rows = [(grown, 0) if place == axis else (0, 0) for place in range(len(tensor.shape))]
            tensor = tvm.runtime.tensor(np.pad(tensor.numpy(), rows))
        self._module["set_input"](name, tensor)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all states to a file (.npz), to go on from there later.

        Args:
            path: the file; it appears complete or not at all.

        Raises:
            InputError: the folder does not exist.
        """
        written = io.BytesIO()
        np.savez(written, **self)  # type: ignore[arg-type]
        with writing("the states", InputError):
            write_whole(as_path(path, "the states"), written.getvalue())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Let the next run read the states that `save` wrote, of this network or an equal one.

        Args:
            path: the file.

        Raises:
            InputError: it is missing or damaged, or has other states.
        """
        try:
            with np.load(as_path(path, "the states"), allow_pickle=False) as found:
                values = dict(found)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(
                f"expected states that save wrote for load, got {path}: {error}; write them again"
            ) from error
        if set(values) != set(self):
            raise InputError(
                f"expected states {[*self]} for load, got {[*values]}; they are of another network"
            )
        for name, value in values.items():
            self[name] = value

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


def fed_values(values: object, graph: Graph) -> tvm.runtime.Tensor:
    """Indices as a tensor of the type of the states that are chosen from scores.

    Raises:
        InputError: they are no integers, or no state is chosen.
    """
    dtype, array = chosen_type(graph), np.asarray(values)
    if array.dtype.kind not in "iu" or not array.size:
        raise InputError(
            f"expected indices for feed, got {array.dtype}{[*array.shape]}; see docs/states.md"
        )
    return tvm.runtime.tensor(np.ascontiguousarray(array, dtype).ravel())


def chosen_type(graph: Graph) -> str:
    """The type of the state that is chosen from scores.

    Raises:
        InputError: no state is chosen.
    """
    for port, state in zip(graph.held, graph.states, strict=True):
        if state.output < len(graph.outputs):
            return graph.tensors[port.tensor].dtype
    raise InputError(
        "expected a state that Greedy or Sample chooses, got a model without one; see "
        "docs/states.md"
    )


def stop_values(stop: Iterable[int]) -> list[int]:
    """The values at which a loop ends.

    Raises:
        InputError: they are no integers.
    """
    values = [*stop] if isinstance(stop, Iterable) else [stop]
    if not isinstance(stop, Iterable) or not all(isinstance(v, int | np.integer) for v in values):
        raise InputError(f"expected a list of integers for stop, got {stop!r:.100}; see run_steps")
    return [int(value) for value in values]


def changed_sampling(
    graph: Graph, now: Mapping[str, float], changes: Mapping[str, float]
) -> dict[str, float]:
    """The numbers of the executor's ``set_sampling``.

    Raises:
        InputError: one is out of its range, or the model draws nothing.
    """
    drawn = [state.sampling for state in graph.states if state.scores >= 0]
    if not drawn:
        raise InputError(
            "expected a model with a Sample for set_sampling, got one without; compile it with "
            "states={'token': ts.Sample('logits')}"
        )
    try:
        return Sample("", **{**drawn[0], **now, **changes}).sampling  # type: ignore[arg-type]
    except TypeError as error:
        raise InputError(
            f"expected some of {[*drawn[0]]} for set_sampling, got {[*changes]}; see ts.Sample"
        ) from error


def one_or_more(name: str, value: object, spec: Tensor, steps: int) -> tvm.runtime.Tensor:
    """An input that is the same in each of several steps, or has a part for each."""
    if steps and len(getattr(value, "shape", ())) == len(spec.shape) + 1:
        spec = replace(spec, shape=(steps, *spec.shape))
    return to_tensor(name, value, spec)
