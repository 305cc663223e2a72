"""The bytes of a file, in memory that no other process can change.

    copy = PrivateCopy.of_file(path)
    copy.path       # where the system's loader finds it, as long as the copy lives
    copy.name       # what it is called in messages
    copy.read()

What a path leads to may be replaced, overwritten or cut off at any time, and a process ends
(SIGBUS) when it runs code of a file that has become shorter. So an artifact is copied first, then
checked, then opened; and these bytes are what a loaded model exports.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from tvm_stretch.base.errors import ArtifactError, RunError
from tvm_stretch.base.files import open_regular, reason_of

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_NO_ROOM = (errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EMFILE, errno.ENFILE)


class PrivateCopy:
    """A file of memory, gone with its last owner.

    Attributes:
        name: the path that it was read from, or what else messages should call it.
        size: its bytes.
    """

    def __init__(self, name: str, write: Callable[[BinaryIO], object], size: int) -> None:
        """Make it of what `write` writes."""
        self.name = name
        self.size = size
        self._file = -1
        try:
            self._file = os.memfd_create("artifact", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with open(self._file, "wb", closefd=False) as file:
                write(file)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, _SEALS)
        except (OSError, MemoryError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_ROOM:
                raise
            raise RunError(
                f"expected {size} bytes of free memory for {name}, got none ({error}); free some"
            ) from error

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> PrivateCopy:
        """A copy of bytes that are in memory already."""
        return cls(name, lambda file: file.write(data), len(data))

    @classmethod
    def of_file(cls, path: Path, check: Callable[[BinaryIO, str], object]) -> PrivateCopy:
        """A copy of a file, unless `check`, which sees it first, refuses it."""
        try:
            with open_regular(path) as file:
                check(file, str(path))
                size = file.seek(0, os.SEEK_END)
                return cls(str(path), lambda copy: _send(file, copy), size)
        except OSError as error:
            raise ArtifactError(
                f"expected a readable file for the artifact, got {reason_of(error)}; check the path"
            ) from error

    @property
    def path(self) -> Path:
        """Where this process can open it."""
        return Path(f"/proc/self/fd/{self._file}")

    def read(self) -> bytes:
        """The bytes of the file."""
        return self.path.read_bytes()

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _send(source: BinaryIO, target: BinaryIO) -> None:
    """Copy a file in the kernel, which saves the copy through this process."""
    place = 0
    while sent := os.sendfile(target.fileno(), source.fileno(), place, 1 << 30):
        place += sent
