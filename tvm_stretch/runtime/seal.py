"""The end of an artifact: a fingerprint of everything before it.

    model.so  =  shared library  +  magic, size and fingerprint of the library

The system's loader ignores what stands behind a library. It also believes whatever stands in it, so
damage would crash the process, at the latest when a kernel runs: it is found before that.
"""

from __future__ import annotations

import struct
from pathlib import Path

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


def check_seal(path: Path) -> None:
    """Refuse a file that is not what `seal` has seen.

    Raises:
        ArtifactError: it is damaged, truncated, or was never sealed.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2) - _SEAL.size
        file.seek(max(size, 0))
        end = file.read()
    magic, sealed, fingerprint = _SEAL.unpack(end.rjust(_SEAL.size, b"\0"))
    if magic != _MAGIC:
        raise ArtifactError(
            f"expected an artifact of tvm_stretch for {path}, got a library without the end that "
            "Model.export writes; export it again, and do not strip it"
        )
    if sealed != size or fingerprint != _fingerprint(path, size):
        raise ArtifactError(
            f"expected the bytes that were exported for {path}, got damaged ones; "
            "copy or export it again"
        )


def _fingerprint(path: Path, size: int) -> int:
    load_native_library()
    return tvm.get_global_func("tvm_stretch.fingerprint_file")(str(path), size)
