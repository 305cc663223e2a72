"""All constants of a network in one blob, equal constants once.

    | the network's own: w0, w1, b0, .. | others: the bias of a part, ..

The network's own constants come first, in its order, even if a plan splits the layers that read
them: a part of a layer reads a part of its weights. So all plans of a network have the same weights
except for a few bytes, and share them, in one artifact or on one device.
"""

from __future__ import annotations

import hashlib

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.make.lowering.memory_plan import align
from tvm_stretch.network.emitting.weights import half_weights
from tvm_stretch.network.expressions import ALIGNMENT, tensor_bytes

_WORTH_FINDING = 1 << 10  # bytes of a part


class WeightsBlob:
    """Collects constants; `add` returns the offset of each.

    Attributes:
        bytes: of all constants.
        own_bytes: of the constants of the network itself, independently of its plan.
    """

    def __init__(self, network: tvm.IRModule | None = None, halves: bool = False) -> None:
        """Begin with the constants of `main` of a network to which no plan was applied.

        With ``halves``, weights that float16 holds are stored so (`weights.py`).
        """
        self.bytes = 0
        self._parts: list[tuple[int, np.ndarray]] = []
        self._offsets: dict[tuple[int, bytes], int] = {}
        self._rows: dict[int, list[tuple[int, np.ndarray]]] = {}  # by row size in bytes
        self._halves = half_weights(network) if network is not None and halves else {}
        if network is not None:
            relax.analysis.post_order_visit(network["main"].body, self._add_own)
        self.own_bytes = self.bytes

    def _add_own(self, expr: relax.Expr) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            self.add(self._halves.get(expr, expr).value)

    def add(self, value: tvm.runtime.Tensor) -> int:
        """Offset of the bytes of `value`; equal constants and parts of constants are shared."""
        data = tensor_bytes(value)
        key = (data.nbytes, hashlib.blake2b(data.data, digest_size=16).digest())
        if key not in self._offsets:
            rows = data.reshape(value.shape[0], -1) if data.size and len(value.shape) > 1 else None
            present = None if rows is None else self._find(rows)
            self._offsets[key] = self._append(data, rows) if present is None else present
        return self._offsets[key]

    def _append(self, data: np.ndarray, rows: np.ndarray | None) -> int:
        offset = self.bytes
        self._parts.append((offset, data))
        if rows is not None:
            self._rows.setdefault(rows.shape[1], []).append((offset, rows))
        self.bytes = align(offset + data.nbytes, ALIGNMENT)
        return offset

    def _find(self, part: np.ndarray) -> int | None:
        """Offset of these rows inside another constant that contains them in sequence."""
        count, width = part.shape
        for offset, rows in self._rows.get(width, []) if part.nbytes >= _WORTH_FINDING else []:
            begins = (rows[:, :ALIGNMENT] == part[0, :ALIGNMENT]).all(axis=1)
            for row in np.flatnonzero(begins):
                start = offset + int(row) * width
                if start % ALIGNMENT == 0 and np.array_equal(rows[row : row + count], part):
                    return start
        return None

    def tensor(self) -> tvm.runtime.Tensor:
        """The blob, as one aligned tensor of bytes."""
        blob = np.zeros(self.bytes + ALIGNMENT, np.uint8)
        blob = blob[-blob.ctypes.data % ALIGNMENT :][: self.bytes]
        for offset, data in self._parts:
            blob[offset : offset + data.nbytes] = data
        return tvm.runtime.from_dlpack(blob)


class UnreadWeights(WeightsBlob):
    """Only counts constants, for callers that need the kernels alone."""

    def add(self, value: tvm.runtime.Tensor) -> int:
        """Number every constant separately."""
        self.bytes += 1
        return self.bytes
