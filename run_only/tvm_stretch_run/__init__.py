"""Runs exported models of tvm_stretch without the compiler: it needs NumPy alone.

import tvm_stretch_run as run
model = run.load("resnet18.so")
y = model(x)

It is the C interface (tvm_stretch.h) for Python. A process has either this package or TVM.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import threading
from collections import namedtuple
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Model", "RunError", "TensorInfo", "load"]

_STATUS = (
    "ok", "invalid", "bad artifact", "bad values", "run", "no memory", "device", "cancelled",
    "internal",
)  # fmt: skip
_ALIGNMENT = 64  # of memory that a run neither copies nor keeps


class RunError(RuntimeError):
    """A model could not be opened or run; the text says what to do.

    Attributes:
        status: "bad artifact", "no memory", ..: the names of TvmStretchStatus in tvm_stretch.h.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("dimensions", ctypes.c_size_t),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("bytes", ctypes.c_size_t),
    )


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


_NAMES = ("tvm_stretch_last_error", "tvm_stretch_plan_name", "tvm_stretch_length_name")
_COUNTS = tuple(f"tvm_stretch_{kind}_count" for kind in ("input", "output", "plan", "length"))


@cache
def _library() -> ctypes.CDLL:
    if "tvm_ffi" in sys.modules:
        raise RunError(
            "invalid",
            "expected a process without TVM for tvm_stretch_run, got one that imported it; "
            "use tvm_stretch.load there",
        )
    library = ctypes.CDLL(str(Path(__file__).with_name("libtvm_stretch_runtime.so")))
    for name in _NAMES:
        getattr(library, name).restype = ctypes.c_char_p
    for name in _COUNTS:
        getattr(library, name).restype = ctypes.c_size_t
    for name in ("tvm_stretch_input", "tvm_stretch_output"):
        getattr(library, name).restype = ctypes.POINTER(_Tensor)
    library.tvm_stretch_free.restype = None
    return library


def _call(name: str, *arguments: Any) -> None:
    if status := getattr(_library(), f"tvm_stretch_{name}")(*arguments):
        text = _library().tvm_stretch_last_error().decode()
        raise RunError(_STATUS[status] if status < len(_STATUS) else "internal", text)


class _Handle:
    """A model of the library, freed with its last user: a run holds it while others close it."""

    def __init__(self) -> None:
        self.pointer = ctypes.c_void_p()
        self.turn = threading.Lock()  # texts of the library are valid until its next call

    def __del__(self) -> None:
        if self.pointer and not sys.is_finalizing():
            _library().tvm_stretch_free(self.pointer)


def load(path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> Model:
    """Open an artifact, check all of its bytes, and prepare its weights.

    Args:
        path: what `Model.export` wrote. The file must not change until the model is closed.
        data: the network of an artifact that was exported without it: `Model.export(data=)`.

    Raises:
        RunError: the file is damaged, no artifact, or for another machine.
    """
    handle = _Handle()
    if data is None:
        _call("load", os.fsencode(path), ctypes.byref(handle.pointer))
    else:
        _call("load_with_data", os.fsencode(path), os.fsencode(data), ctypes.byref(handle.pointer))
    return Model(handle)


class Model:
    """A network that is ready to run; `load` makes it. Calls from several threads take turns."""

    def __init__(self, handle: _Handle) -> None:
        self._open: _Handle | None = handle

    def __call__(self, *inputs: np.ndarray) -> Any:
        """Run once.

        Args:
            inputs: arrays in the order of `inputs`, of exactly those shapes and types.

        Returns:
            The output, or a named tuple of them.

        Raises:
            RunError: an input is wrong, a processor failed, or the run was cancelled.
        """
        outputs = [_aligned(info) for info in self.outputs]
        self._call("run", *self._buffers(inputs), *_buffers_of(outputs))
        return self._answer(outputs)

    def trace(self, *inputs: np.ndarray) -> str:
        """Run once and record every kernel: JSON for https://ui.perfetto.dev."""
        outputs = [_aligned(info) for info in self.outputs]
        return self._text("trace", *self._buffers(inputs), *_buffers_of(outputs))

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """Describe the inputs; their shapes are those of the length in use."""
        return self._described("input")

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """Describe the outputs; their shapes are those of the length in use."""
        return self._described("output")

    @property
    def plans(self) -> tuple[str, ...]:
        """Names of the plans in the artifact."""
        return self._names("plan")

    @property
    def lengths(self) -> tuple[str, ...]:
        """Lengths that it was compiled for, as ``n=64``; one empty name if there is only one."""
        return self._names("length")

    def use_plan(self, number: int) -> None:
        """Compute all later runs by this plan."""
        self._call("use_plan", ctypes.c_size_t(number))

    def adapt(self) -> None:
        """Compute each run by the plan that is fastest at present."""
        self._call("adapt")

    def use_length(self, number: int) -> None:
        """Take inputs of this length from now on."""
        self._call("use_length", ctypes.c_size_t(number))

    def use_size(self, name: str, size: int) -> None:
        """Take inputs of this size of a named dimension from now on; others keep theirs.

        A size between the lengths is padded, if the network was compiled for any size.
        """
        self._call("use_size", name.encode(), ctypes.c_int64(size))

    def reset(self) -> None:
        """Set all states to zero."""
        self._call("reset")

    def set_cores(self, cores: str) -> None:
        """Choose the cores for the CPU's kernels, as ``0,4-7``; empty for any."""
        self._call("set_cores", cores.encode())

    def cancel(self) -> None:
        """Stop the run in progress, which ends with a `RunError`; any thread may call it."""
        handle = self._handle()
        _call("cancel", handle.pointer)

    def clone(self) -> Model:
        """Make a model with the same kernels and weights that runs at the same time."""
        handle = _Handle()
        self._call("clone", ctypes.byref(handle.pointer))
        return Model(handle)

    def statistics(self) -> dict[str, Any]:
        """Numbers of the last run, the plan of the next, lost processors, and bytes of memory."""
        return dict(json.loads(self._text("statistics")))

    def close(self) -> None:
        """Cancel a run in progress and free the model; later calls are refused."""
        if self._open is not None:
            self.cancel()
            self._open = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handle(self) -> _Handle:
        if (handle := self._open) is None:
            raise RunError("invalid", "expected an open model, got a closed one; load it again")
        return handle

    def _call(self, name: str, *arguments: Any) -> None:
        handle = self._handle()
        with handle.turn:
            _call(name, handle.pointer, *arguments)

    def _text(self, name: str, *arguments: Any) -> str:
        handle, text = self._handle(), ctypes.c_char_p()
        with handle.turn:
            _call(name, handle.pointer, *arguments, ctypes.byref(text))
            return (text.value or b"").decode()

    def _names(self, kind: str) -> tuple[str, ...]:
        handle = self._handle()
        count = getattr(_library(), f"tvm_stretch_{kind}_count")(handle.pointer)
        name = getattr(_library(), f"tvm_stretch_{kind}_name")
        return tuple(
            (name(handle.pointer, ctypes.c_size_t(i)) or b"").decode() for i in range(count)
        )

    def _described(self, kind: str) -> tuple[TensorInfo, ...]:
        handle = self._handle()
        count = getattr(_library(), f"tvm_stretch_{kind}_count")(handle.pointer)
        port = getattr(_library(), f"tvm_stretch_{kind}")
        tensors = [port(handle.pointer, ctypes.c_size_t(i)).contents for i in range(count)]
        return tuple(
            TensorInfo(t.name.decode(), tuple(t.shape[: t.dimensions]), t.type.decode())
            for t in tensors
        )

    def _buffers(self, inputs: tuple[np.ndarray, ...]) -> tuple[Any, ctypes.c_size_t]:
        infos = self.inputs
        if len(inputs) != len(infos):
            got = f"expected {len(infos)} inputs, got {len(inputs)}; see Model.inputs"
            raise RunError("invalid", got)
        for info, array in zip(infos, inputs, strict=True):
            got = (str(getattr(array, "dtype", None)), tuple(getattr(array, "shape", ())))
            if not isinstance(array, np.ndarray) or got != (info.dtype, info.shape):
                raise RunError(
                    "invalid",
                    f"expected a NumPy array {info.dtype}{list(info.shape)} for input "
                    f"{info.name!r}, got {type(array).__name__} {got[0]}{list(got[1])}; convert it",
                )
        return _buffers_of([np.ascontiguousarray(array) for array in inputs])

    def _answer(self, outputs: list[np.ndarray]) -> Any:
        if len(outputs) == 1:
            return outputs[0]
        names = [info.name for info in self.outputs]
        return namedtuple("Outputs", names, rename=True)(*outputs)


def _buffers_of(arrays: list[np.ndarray]) -> tuple[Any, ctypes.c_size_t]:
    """Pointers and sizes; the arrays live as long as the result."""
    buffers = (_Buffer * max(len(arrays), 1))()
    for buffer, array in zip(buffers, arrays, strict=False):
        buffer.data, buffer.bytes = array.ctypes.data, array.nbytes
    buffers.arrays = arrays
    return buffers, ctypes.c_size_t(len(arrays))


def _aligned(info: TensorInfo) -> np.ndarray:
    dtype = np.dtype(info.dtype)
    size = math.prod(info.shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(info.shape)
