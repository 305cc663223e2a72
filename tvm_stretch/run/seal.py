"""The end of an artifact: a fingerprint of what the system's loader and the executor trust.

    model.so  =  shared library  +  magic, size, where the weights are, fingerprint of the rest

The system's loader ignores bytes after a library, but trusts everything inside it: damage would
crash the process, at the latest when a kernel runs. So damage is looked for before loading. The
weights are left out: they are most of the file, and the executor compares them with a fingerprint
of their own while it prepares them.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO, NamedTuple

import tvm

from tvm_stretch.base.elf import find_section
from tvm_stretch.base.errors import ArtifactError
from tvm_stretch.run.autoload import load_native_library

_MAGIC = b"TVMSTRS2"
_SEAL = struct.Struct("<8sqqqq")
SEAL_BYTES = _SEAL.size

WEIGHTS_SECTION = ".tvm_stretch_weights"
WEIGHTS_HEADER = struct.Struct("<8sQ48x")  # magic and bytes; `WeightsHeader` in program.cc


class _Seal(NamedTuple):
    size: int  # of the file without the seal
    weights: int  # where they start
    weights_size: int
    fingerprint: int = 0

    def measured(self, path: Path) -> _Seal:
        load_native_library()
        measure = tvm.get_global_func("tvm_stretch.seal_fingerprint")
        return self._replace(fingerprint=measure(str(path), *self[:3]))


def seal(path: Path) -> None:
    """Append the seal to a library, or to the data of a network."""
    size = path.stat().st_size
    with path.open("rb") as file:
        place, count = find_section(file, WEIGHTS_SECTION)
    weights = (place + WEIGHTS_HEADER.size, count - WEIGHTS_HEADER.size) if count else (0, 0)
    own = _Seal(size, *weights).measured(path)
    with path.open("ab") as file:
        file.write(_SEAL.pack(_MAGIC, *own))


def require_seal(file: BinaryIO, name: str) -> _Seal:
    """What the end of the file says."""
    size = file.seek(0, os.SEEK_END) - _SEAL.size
    file.seek(max(size, 0))
    magic, *fields = _SEAL.unpack(file.read().rjust(_SEAL.size, b"\0"))
    if magic != _MAGIC:
        raise ArtifactError(
            f"expected an artifact of tvm_stretch for {name}, got a library without the end that "
            "this version's Model.export writes; export it again, and do not strip it"
        )
    own = _Seal(*fields)
    if own.size != size or not 0 <= own.weights <= own.weights + own.weights_size <= size:
        raise _damaged(name)
    return own


def check_seal(
    path: Path,  # the file, which must not change meanwhile
    name: str,  # what the user calls it
) -> None:
    """Refuse a file that is not what `seal` has seen, but for an artifact's weights.

    Raises:
        ArtifactError: it is damaged, truncated, or was never sealed.
        RunError: there is no memory to look at it.
    """
    with path.open("rb") as file:
        own = require_seal(file, name)
    if own != own.measured(path):
        raise _damaged(name)


def _damaged(name: str) -> ArtifactError:
    return ArtifactError(
        f"expected the bytes that were exported for {name}, got damaged ones; "
        "copy or export it again"
    )
