"""Content-addressed uploads: a device receives only files that it does not have.

    stored(device, path, ".so", "it")    "0a1b...9f.so", which `tvm_stretch.store_path` finds there

Pieces are deflated if that shortens them clearly, which holds for code but not for weights. Our
server keeps the files after the session, TVM's Python server only during it (native/store.cc).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import tvm

from tvm_stretch.base.files import open_regular
from tvm_stretch.base.progress import count
from tvm_stretch.run.autoload import load_native_library

PIECE = 4 << 20
"""Bytes per call: a slow connection can send them within the timeout."""


_SAMPLE, _WORTH_DEFLATING = 64 << 10, 0.8


class Asks(Protocol):
    """Calls the functions of a device."""

    def call(self, what: str, function: str, *arguments: Any) -> Any:
        """Call a global function on the device."""


def stored(device: Asks, path: Path, ending: str, what: str) -> tuple[str, int]:
    """Upload a file unless the device has it.

    Returns:
        Its name there, and the number of bytes that were sent.

    Raises:
        DeviceError: the device refuses the file, for example because its disk is full.
        OSError: the file cannot be read here.
    """
    with open_regular(path) as file:
        name = _digest(file.read) + ending
        if device.call("to take an upload", "tvm_stretch.store_has", name):
            return name, 0
        file.seek(0)
        size = path.stat().st_size
        pieces, sent = max(1, -(-size // PIECE)), 0
        inflates = device.call("to take an upload", "tvm_stretch.store_inflates")
        for number in range(pieces):
            count(f"sending {what}: piece", number + 1, pieces)
            sent += _send(device, name, number * PIECE, file.read(PIECE), inflates)
    load_native_library()
    total = tvm.get_global_func("tvm_stretch.fingerprint_file")(str(path), 0, size)
    device.call("to take an upload", "tvm_stretch.store_finish", name, size, total)
    return name, sent


def _send(device: Asks, name: str, offset: int, piece: bytes, inflates: bool) -> int:
    """Send one piece, and return the number of bytes that were sent."""
    sample = piece[len(piece) // 2 :][:_SAMPLE]
    if inflates and len(zlib.compress(sample, 1)) < _WORTH_DEFLATING * len(sample):
        packed = zlib.compress(piece, 9)
        given = (name, offset, len(piece), bytearray(packed))
        device.call("to take an upload", "tvm_stretch.store_put_deflated", *given)
        return len(packed)
    device.call("to take an upload", "tvm_stretch.store_put", name, offset, bytearray(piece))
    return len(piece)


def _digest(read: Callable[[int], bytes]) -> str:
    digest = hashlib.sha256()
    while piece := read(PIECE):
        digest.update(piece)
    return digest.hexdigest()
