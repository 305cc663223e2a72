"""All constants of a network in one piece of memory, equal ones once."""

from __future__ import annotations

import hashlib

import numpy as np
import tvm

from tvm_stretch.ir.views import ALIGNMENT
from tvm_stretch.lowering.memory_plan import align


class WeightsBlob:
    """Collects constants; `add` tells where each one will stand."""

    def __init__(self) -> None:
        self.bytes = 0
        self._parts: list[tuple[int, np.ndarray]] = []
        self._offsets: dict[tuple[int, bytes], int] = {}

    def add(self, value: tvm.runtime.Tensor) -> int:
        """Offset of the bytes of `value`; a constant with the same bytes shares it."""
        data = _as_bytes(value)
        key = (data.nbytes, hashlib.blake2b(data.data, digest_size=16).digest())
        if key not in self._offsets:
            self._offsets[key] = self.bytes
            self._parts.append((self.bytes, data))
            self.bytes = align(self.bytes + data.nbytes, ALIGNMENT)
        return self._offsets[key]

    def tensor(self) -> tvm.runtime.Tensor:
        """The blob, as one aligned tensor of bytes."""
        blob = np.zeros(self.bytes + ALIGNMENT, np.uint8)
        blob = blob[-blob.ctypes.data % ALIGNMENT :][: self.bytes]
        for offset, data in self._parts:
            blob[offset : offset + data.nbytes] = data
        return tvm.runtime.from_dlpack(blob)


def _as_bytes(value: tvm.runtime.Tensor) -> np.ndarray:
    try:
        array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):  # a dtype that NumPy does not know
        array = value.numpy()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


class UnreadWeights(WeightsBlob):
    """Only counts constants, for who wants to know the kernels."""

    def add(self, value: tvm.runtime.Tensor) -> int:
        """Every constant stands for itself."""
        self.bytes += 1
        return self.bytes
