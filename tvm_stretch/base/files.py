"""Writes files atomically and reads regular ones, in the user's cache and elsewhere.

Files that users do not edit are sealed: their first field is a fingerprint of all that follows, so
that damage is detected when a file is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tvm_stretch.base.errors import InputError, StretchError

# Checks that only this user can write to our caches, whose content is run as machine code.
#
#     /home/me/.cache/tvm_stretch/kernels   drwx------ me       trusted
#     /tmp/cache/kernels                    drwxrwxrwx nobody   not trusted, said once
#
# The rule is that of ssh for keys: a folder is trusted if only this user and root may write to it
# and
# to all folders above it. A sticky folder such as /tmp, in which users cannot remove each other's
# files, is safe above a folder of ours.


_LOG = logging.getLogger("tvm_stretch")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def why_not_trusted(folder: Path) -> str | None:
    """The reason why other users may write to a folder or one above it; None if they may not.

    Folders that do not exist yet are trusted, as we will make them for this user alone.
    """
    try:
        path = folder.resolve()  # symbolic links are checked at their target
        for place in (path, *path.parents):
            try:
                status = place.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if status.st_uid not in (os.geteuid(), 0):
                return f"{place} belongs to user {status.st_uid}"
            is_above_and_sticky = place != path and status.st_mode & stat.S_ISVTX
            if status.st_mode & _OTHERS_WRITE and not is_above_and_sticky:
                return f"others may write to {place} (mode {stat.S_IMODE(status.st_mode):o})"
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        return f"{folder} cannot be looked at ({error})"
    return None


def is_ours(file: os.stat_result) -> bool:
    """Whether only this user and root can have written a file."""
    return (
        stat.S_ISREG(file.st_mode)
        and file.st_uid in (os.geteuid(), 0)
        and not file.st_mode & _OTHERS_WRITE
    )


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, writable only by this user whatever the umask is."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(mode=0o755, exist_ok=True)


@functools.cache
def warn_not_trusted(reason: str) -> None:
    """Warn once in a process."""
    _LOG.warning(
        "expected a cache folder that only this user can write to, got none: %s; nothing is kept "
        "there or taken from there. Take the right to write from others (chmod go-w), or name "
        "another folder in TVM_STRETCH_CACHE_DIR",
        reason,
    )


_SEAL = re.compile(rb'\{"fingerprint": "([0-9a-f]{32})",')

TEMPORARY = ".tmp"
"""The suffix of incomplete files."""

MOST_BYTES = 2**28
"""The largest file that is read; plans and cost models have some megabytes at most."""

_MOST_LETTERS = 200
"""The longest name that becomes part of another name; file systems allow 255."""


def cache_folder(part: str) -> Path | None:
    """The folder of a part of our cache; None if there is none that can be trusted.

    It is in ``$TVM_STRETCH_CACHE_DIR``, which may be empty for no cache, or by default in the
    user's cache. A folder that other users may write to is not used, with one warning.
    """
    folder = named_folder(part)
    reason = why_not_trusted(folder) if folder is not None else None
    if reason is None:
        return folder
    warn_not_trusted(reason)
    return None


def named_folder(part: str) -> Path | None:
    """The folder by environment variables."""
    own = os.environ.get("TVM_STRETCH_CACHE_DIR")
    if own is not None:
        return Path(own) / part if own else None
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "tvm_stretch" / part
    home = os.environ.get("HOME")
    return Path(home) / ".cache" / "tvm_stretch" / part if home else None


def as_path(path: object, what: str) -> Path:
    """The path that a user gave."""
    if isinstance(path, str | os.PathLike):
        place = Path(path)
        if "\0" in str(place):
            raise InputError(
                f"expected the path of {what}, got {str(place)!r}; no path has a null character"
            )
        return place
    raise InputError(
        f"expected the path of {what}, got {type(path).__name__}; give a string or a pathlib.Path"
    )


def check_place(path: Path, what: str) -> None:
    """Refuse a path that cannot be written, before the work whose result it is for."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"expected a file in an existing folder for {what}, got {str(path)!r}; create the "
            "folder first, or name a file in it"
        )


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file to read it; devices and pipes, which may have no end, are an OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(errno.EINVAL, _KINDS.get(stat.S_IFMT(mode), "no regular file"), str(path))
    return os.fdopen(handle, "rb")


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
} | dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file; an OSError if it has more than ``most`` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"a file of more than {most} bytes", str(path))
    return content


def reason_of(error: OSError) -> str:
    """The system's error for a file, worded as the end of ``expected .., got``."""
    path = error.filename
    if error.errno == errno.ENOENT:
        return f"no file at {path}"
    reason = error.strerror or str(error)
    return f"{reason[:1].lower()}{reason[1:]}" + (f" at {path}" if path else "")


def read_text(path: Path, what: str, error: type[StretchError], encoding: str = "utf-8") -> str:
    """The content of a text file.

    Raises:
        StretchError: `error`, if the file cannot be read.
    """
    try:
        return read_whole(path).decode(encoding)
    except OSError as fault:
        raise error(f"expected {what}, got {reason_of(fault)}; check the path") from fault
    except UnicodeDecodeError as fault:
        raise error(f"expected {what}, got {fault}; check the path") from fault


def write_whole(path: Path, content: str | bytes) -> None:
    """Like `replace_whole`, for a user's path, which may be a link to a file.

    Pipes, terminals and what this process has open, such as `/dev/stdout`, are written to instead.
    """
    if _is_stream(path):
        with path.open("ab") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
    else:
        replace_whole(replaceable(path), content)


def replaceable(path: Path) -> Path:
    """The file that a user's path names, with links followed; it need not exist."""
    real = Path(os.path.realpath(path))
    mode = stat.S_IFREG
    with contextlib.suppress(FileNotFoundError):
        mode = real.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, _KINDS.get(stat.S_IFMT(mode), "no regular file"), str(path))
    return real


def _is_stream(path: Path) -> bool:
    """Whether a path names a pipe, a terminal or a file that a process has open."""
    mode = path.stat().st_mode if path.exists() else 0
    folder = os.path.realpath(path.parent)
    is_open = folder == "/dev" or folder.startswith("/proc/")
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or (is_open and stat.S_ISREG(mode))


def replace_whole(
    path: Path,  # the file; an existing one is replaced
    content: str | bytes,
    mode: int = 0o666,  # its permissions, restricted by the umask
) -> None:
    """Write a file atomically: to a temporary name, flushed, then renamed."""
    temporary = None
    try:
        with held(lambda: _new_beside(path, mode)) as (temporary, handle):
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.fsync(handle)
            temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # the name that the user knows
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _new_beside(path: Path, mode: int) -> tuple[Path, int]:
    """A new temporary file with an unpredictable name."""
    name = f".{path.name[:_MOST_LETTERS]}.{secrets.token_hex(8)}{TEMPORARY}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return path.with_name(name), os.open(path.with_name(name), flags, mode)


@contextlib.contextmanager
def held(make: Callable[[], tuple[Path, int]]) -> Iterator[tuple[Path, int]]:
    """Context with a locked temporary file or folder, which `remove_abandoned` does not remove.

    Ages of files would be unreliable: clocks jump, and differ between machines that share a folder.

    Args:
        make: makes and opens it; called again if it was removed before it was locked.
    """
    temporary, handle = make()
    while not _hold(temporary, handle):
        os.close(handle)
        temporary, handle = make()
    try:
        yield temporary, handle
    finally:
        os.close(handle)


def new_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """A temporary folder for `held`."""
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    return folder, os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _hold(temporary: Path, handle: int) -> bool:
    """Lock it; False if it was removed meanwhile."""
    with contextlib.suppress(OSError):  # without support of locks nothing is removed
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(handle), temporary.lstat())
    except FileNotFoundError:
        return False


def remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file or folder whose writer was killed."""
    with contextlib.suppress(OSError):  # it is locked, or removed already
        handle = os.open(temporary, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink()
        finally:
            os.close(handle)


@contextlib.contextmanager
def writing(what: str, error: type[StretchError]) -> Iterator[None]:
    """Context that turns an OSError of writing, for example a full disk, into an error of ours."""
    try:
        yield
    except OSError as caught:
        reason = reason_of(caught)
        if caught.errno == errno.ENOENT and caught.filename is not None:
            reason = f"no folder for {caught.filename}"
        raise error(
            f"expected a place to write {what} to, got {reason}; check the path, or make room"
        ) from caught


def sealed(text: str) -> str:
    """The JSON object with a first field added: the fingerprint of the others."""
    return f'{{"fingerprint": "{_fingerprint(text[1:].encode())}",{text[1:]}'


def _fingerprint(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def is_whole(content: bytes) -> bool:
    """Whether nothing has changed since `sealed` made it."""
    seal = _SEAL.match(content)
    return seal is not None and seal[1].decode() == _fingerprint(content[seal.end() :])


def is_finite(value: Any) -> bool:
    """Whether it is a number in a float's range; integers of JSON and TOML have no bounds."""
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False
