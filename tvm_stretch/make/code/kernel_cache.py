"""Generated code of kernels, kept between compilations.

    find(key) -> None; store(key, code); find(key) -> code

Two layers: this process's memory, and a folder. A file of the folder is one entry:

    magic | digest of key and code | code

An entry appears complete or not at all, and one that is damaged, or was written for another key,
is treated as missing. So any number of processes may share the folder, and any may be killed. The
digest does not prevent forgery: code is only read from folders and files that no other user may
write to (`base/files.py`).

The folder is ``$TVM_STRETCH_CACHE_DIR/kernels``, by default ``tvm_stretch/kernels`` in the user's
cache; the empty string means none. If it grows beyond `_FOLDER_BYTES`, the entries that were not
used for longest are removed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections import OrderedDict
from pathlib import Path

from tvm_stretch.base.files import (
    TEMPORARY,
    cache_folder,
    is_ours,
    make_folder,
    open_regular,
    remove_abandoned,
    replace_whole,
)

_MAGIC = b"TVMSTRK1"
_DIGEST_BYTES = 20
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES
_MEMORY_BYTES = 2**27
_MOST_REMEMBERED = 2**22
"""Larger entries, such as whole networks, are read from the folder each time."""
_FOLDER_BYTES = 2**29


def digest(*parts: bytes) -> bytes:
    """A digest of the parts and of their boundaries."""
    state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


class KernelCache:
    """See the module docstring; it is thread-safe."""

    def __init__(self, folder: Path | None) -> None:
        """Use `folder`, which is created when needed; None keeps code in memory only."""
        self.folder = folder
        self._memory: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0
        self._tidied = False
        self._lock = threading.Lock()

    def find(self, key: bytes) -> bytes | None:
        """The code that was stored under this key."""
        with self._lock:
            code = self._memory.get(key)
            if code is not None:
                self._memory.move_to_end(key)
                return code
        code = self._read(key)
        if code is not None:
            self._remember(key, code)
        return code

    def store(self, key: bytes, code: bytes) -> None:
        """Keep `code`; a folder that is not writable is no error."""
        self._remember(key, code)
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._write(self.folder, key, code)

    def _remember(self, key: bytes, code: bytes) -> None:
        if len(code) > _MOST_REMEMBERED:
            return
        with self._lock:
            self._bytes += len(code) - len(self._memory.pop(key, b""))
            self._memory[key] = code
            while self._bytes > _MEMORY_BYTES:
                self._bytes -= len(self._memory.popitem(last=False)[1])

    def _read(self, key: bytes) -> bytes | None:
        if self.folder is None:
            return None
        path = self.folder / key.hex()
        try:
            with open_regular(path, os.O_NOFOLLOW) as file:
                if not is_ours(os.fstat(file.fileno())):
                    return None
                entry = file.read(_FOLDER_BYTES)
        except OSError:
            return None
        code = entry[_HEADER_BYTES:]
        if entry[:_HEADER_BYTES] != _MAGIC + digest(key, code):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # marks it as used
        return code

    def _write(self, folder: Path, key: bytes, code: bytes) -> None:
        make_folder(folder)
        if not self._tidied:
            self._tidied = True
            _tidy(folder)
        replace_whole(folder / key.hex(), _MAGIC + digest(key, code) + code, mode=0o644)


def _tidy(folder: Path) -> None:
    """Remove temporary files of killed processes and, if the folder is too large, old entries."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            if path.suffix == TEMPORARY:
                remove_abandoned(path)
                continue
            status = path.lstat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    if total <= _FOLDER_BYTES:
        return
    for _, size, path in sorted(entries):
        path.unlink(missing_ok=True)
        total -= size
        if total <= _FOLDER_BYTES // 2:
            return


def kernel_cache() -> KernelCache:
    """The cache of this process for the folder that the environment names at present."""
    return cache_of("kernels")


def cache_of(part: str) -> KernelCache:
    """As `kernel_cache`, for another folder in the user's cache."""
    return _cache_of(cache_folder(part))


@functools.cache
def _cache_of(folder: Path | None) -> KernelCache:
    return KernelCache(folder)
