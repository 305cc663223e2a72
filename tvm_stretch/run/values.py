"""What callers give and get: any array for an input, results of the same kind.

model(numpy.ndarray)  ->  numpy.ndarray          no copy, neither way, where memory allows it
model(torch.Tensor)   ->  torch.Tensor           the same through DLPack; so do JAX and others
two outputs           ->  Outputs(boxes=…, scores=…)
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi

from tvm_stretch.base.errors import InputError, RunError
from tvm_stretch.make.lowering.executor_graph import Tensor

if TYPE_CHECKING:
    import torch

    class Answer(np.ndarray, torch.Tensor):  # type: ignore[misc, override]  # none is both
        """What a type checker takes an answer for, whose kind only the model's user knows.

        It is an array of the kind that the caller gave (NumPy's, PyTorch's), or a named tuple of
        several. A union of these would make each caller ask which one came.
        """

        def __getattr__(self, name: str) -> Answer: ...
else:
    Answer = object


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model."""

    name: str
    shape: tuple[int, ...]  # of a model with several lengths, that of the next run
    dtype: str
    shapes: tuple[tuple[int, ...], ...] = ()  # all that it may have, if there are several

    def __str__(self) -> str:
        """`x: float32[1, 3, 224, 224]`, `tokens: int64[1, 64|128]`."""
        sizes = [sorted(set(sizes)) for sizes in zip(*(self.shapes or (self.shape,)), strict=True)]
        return f"{self.name}: {self.dtype}[{', '.join('|'.join(map(str, s)) for s in sizes)}]"


def to_tensor(name: str, value: object, spec: Tensor) -> tvm.runtime.Tensor:
    """`value` as a tensor for input `name`, without a copy where possible."""
    if not hasattr(value, "__dlpack__"):
        raise InputError(
            f"expected a NumPy array or a DLPack tensor for input {name!r}, got "
            f"{type(value).__name__}; wrap it with numpy.asarray"
        )
    got = (_name_of(value.dtype), value.shape) if isinstance(value, np.ndarray) else None
    if got is None:
        tensor = _from_dlpack(name, value)
        got = (str(tensor.dtype), tuple(tensor.shape))
    if got != (spec.dtype, spec.shape):
        raise InputError(
            f"expected {_describe(spec.dtype, spec.shape)} for input {name!r}, got "
            f"{_describe(*got)}; convert it, or compile the model for that shape"
        )
    if isinstance(value, np.ndarray):
        return _from_numpy(value)
    if tensor.device.dlpack_device_type() != tvm.cpu().dlpack_device_type():
        raise InputError(
            f"expected a tensor in the CPU's memory for input {name!r}, got {tensor.device}; "
            "copy it to the CPU"
        )
    return tensor


# NumPy makes a name anew for each call, which takes a third of the time to bind an input
_name_of = functools.lru_cache(maxsize=64)(str)


def _from_dlpack(name: str, value: Any) -> tvm.runtime.Tensor:
    try:
        # DLPack cannot say that PyTorch has yet to change the sign.
        value = value.resolve_neg() if hasattr(value, "resolve_neg") else value
        return tvm_ffi.from_dlpack(value, require_contiguous=False)
    except Exception as error:  # each framework raises its own
        raise InputError(
            f"expected a tensor that can be shared by DLPack for input {name!r}, got "
            f"{error}; detach it or copy it to the CPU"
        ) from error


def _from_numpy(array: np.ndarray) -> tvm.runtime.Tensor:
    try:
        return tvm_ffi.from_dlpack(array, require_contiguous=False)
    except (BufferError, RuntimeError, TypeError, ValueError):
        # Read-only arrays and dtypes that NumPy does not share by DLPack.
        with taking_memory(array.nbytes):
            return tvm.runtime.tensor(array)


@contextlib.contextmanager
def taking_memory(bytes_: int) -> Iterator[None]:
    """Turn the errors of Python and TVM for too little memory into ours.

    Raises:
        RunError: there is not enough memory.
    """
    refusal = RunError(
        f"expected {bytes_} bytes of free memory, got none; free some, or compile the model "
        "for smaller inputs"
    )
    if bytes_ >= 2**63:  # TVM would take the remainder of a division by 2**64
        raise refusal
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "bad_alloc" not in str(error):
            raise
        raise refusal from error


def _describe(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}{list(shape)}"


Present = Callable[[tvm.runtime.Tensor], Any]
"""Makes an output what its caller expects."""

PresentAll = Callable[[Sequence[tvm.runtime.Tensor]], list[Any]]
"""The same for all outputs of a run."""


def like(values: Sequence[object]) -> Present:
    """What makes outputs arrays of the kind of the first input; NumPy's without inputs."""
    first = values[0] if values else None
    if first is None or isinstance(first, np.ndarray):
        return to_numpy
    if isinstance(first, tvm_ffi.Tensor):
        return lambda tensor: tensor
    if hasattr(first, "__array_namespace__"):
        return first.__array_namespace__().from_dlpack
    library = sys.modules.get(type(first).__module__.partition(".")[0])
    return getattr(library, "from_dlpack", lambda tensor: tensor)


def to_numpy(tensor: tvm.runtime.Tensor) -> np.ndarray:
    """The tensor as an array, without a copy where possible."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):  # bfloat16: NumPy only knows it through ml_dtypes
        return tensor.numpy()


_SIZE = re.compile(r"(.+):size(\d+)")


def true_sizes(names: Sequence[str]) -> dict[int, tuple[int, int]]:
    """The output and axis of each size, by the place of the output that tells it.

    Rows of `boxes` that count are as many as the number in `boxes:size0`.
    """
    matches = ((place, _SIZE.fullmatch(name)) for place, name in enumerate(names))
    return {
        place: (names.index(match[1]), int(match[2]))
        for place, match in matches
        if match and match[1] in names
    }


def shortened(results: list[Any], sizes: Mapping[int, tuple[int, int]]) -> list[Any]:
    """The results at their true sizes, without those that tell sizes; TVM's tensors stay whole."""
    if not sizes or isinstance(results[0], tvm_ffi.Tensor):
        return results
    for place, (output, axis) in sizes.items():
        cut = slice(int(results[place][0]))
        results[output] = results[output][(slice(None),) * axis + (cut,)]
    return [result for place, result in enumerate(results) if place not in sizes]


@functools.lru_cache(maxsize=256)
def outputs_type(names: tuple[str, ...]) -> Callable[..., tuple[Any, ...]]:
    """The named tuple of several outputs; what cannot be a name in Python has ``_`` for it."""
    fields = [re.sub(r"\W", "_", name) for name in names]
    fields_of = namedtuple("Outputs", fields, rename=True)  # type: ignore[misc]
    return type("Outputs", (fields_of,), {"__slots__": (), "__reduce__": _as_tuple})


def _as_tuple(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """For `pickle`: another process could not look the class up."""
    return tuple, (tuple(outputs),)
