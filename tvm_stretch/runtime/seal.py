"""The end of an artifact: a fingerprint of everything before it.

    model.so  =  shared library  +  magic, size and fingerprint of the library

The system's loader ignores bytes after a library, but trusts everything inside it: damage would
crash the process, at the latest when a kernel runs. So damage is looked for before loading.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

import tvm

from tvm_stretch.errors import ArtifactError
from tvm_stretch.runtime.autoload import load_native_library

_MAGIC = b"TVMSTRS1"
_SEAL = struct.Struct("<8sqq")


def seal(path: Path) -> None:
    """Append the fingerprint to a library."""
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(_SEAL.pack(_MAGIC, size, _fingerprint(path, size)))


def require_seal(file: BinaryIO, name: str) -> tuple[int, int]:
    """Size and fingerprint of the library, as the end of the file says."""
    size = file.seek(0, os.SEEK_END) - _SEAL.size
    file.seek(max(size, 0))
    magic, sealed, fingerprint = _SEAL.unpack(file.read().rjust(_SEAL.size, b"\0"))
    if magic != _MAGIC:
        raise ArtifactError(
            f"expected an artifact of tvm_stretch for {name}, got a library without the end that "
            "Model.export writes; export it again, and do not strip it"
        )
    if sealed != size:
        raise _damaged(name)
    return sealed, fingerprint


def check_seal(path: Path, name: str) -> None:
    """Refuse a file that is not what `seal` has seen.

    Args:
        path: the file, which must not change meanwhile.
        name: what the user calls it.

    Raises:
        ArtifactError: it is damaged, truncated, or was never sealed.
        RunError: there is no memory to look at it.
    """
    with path.open("rb") as file:
        size, fingerprint = require_seal(file, name)
    if fingerprint != _fingerprint(path, size):
        raise _damaged(name)


def _damaged(name: str) -> ArtifactError:
    return ArtifactError(
        f"expected the bytes that were exported for {name}, got damaged ones; "
        "copy or export it again"
    )


def _fingerprint(path: Path, size: int) -> int:
    load_native_library()
    return tvm.get_global_func("tvm_stretch.fingerprint_file")(str(path), size)
