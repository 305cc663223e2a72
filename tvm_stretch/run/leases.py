"""Leases of processors between processes: a run holds a lock on a file for each of its processors.

    process A   [lock opencl]  run  [unlock]
    process B        waits ............ [lock opencl]  run  [unlock]

The kernel of the operating system frees the locks of a process that ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from tvm_stretch.base.errors import InputError
from tvm_stretch.base.files import as_path, cache_folder, reason_of


class Leases:
    """The leases in a folder; all processes that name it take turns."""

    def __init__(self, folder: object, processors: Iterable[str]) -> None:
        """Open a file for each processor.

        Args:
            folder: the folder; True for one in the user's cache.
            processors: names.

        Raises:
            InputError: there can be no files.
        """
        path = cache_folder("leases") if folder is True else as_path(folder, "the leases")
        if path is None:
            raise InputError("expected a folder for leases, got no usable cache; name a folder")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._files = {
                name: os.open(path / f"{quote(name, safe='')}.lock", flags, 0o600)
                for name in processors
            }
        except OSError as error:
            raise InputError(
                f"expected a folder for leases, got {path}: {reason_of(error)}; name one that "
                "this user may write to"
            ) from error

    @contextlib.contextmanager
    def held(self, processors: Iterable[str]) -> Iterator[None]:
        """Context in which no other process runs on these processors."""
        # all processes take them in one order, so none waits for one that waits for it
        own = [self._files[name] for name in sorted(processors)]
        try:
            for file in own:
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            for file in own:
                fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            os.close(self._files.popitem()[1])
