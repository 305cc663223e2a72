"""The files that we write: complete or not there, of a stated format, in the user's cache.

PLANS = Format("tvm_stretch.plan", 1, "the plan", PlanError, "write the plan again")
write_whole(path, json.dumps({**PLANS.head, "reason": "..."}))
PLANS.read(path)        # {"reason": "..."}, or a PlanError that says what is wrong with the file

What nobody edits is sealed: its first field is a fingerprint of all that follows, so that damage
is found before anything believes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tvm_stretch.errors import InputError, StretchError
from tvm_stretch.trusted import warn_not_trusted, why_not_trusted

Kind = TypeVar("Kind")

_SEAL = re.compile(rb'\{"fingerprint": "([0-9a-f]{32})",')

TEMPORARY = ".tmp"
"""How the name of a file ends that is not complete yet."""

MOST_BYTES = 2**28
"""Of a file that we wrote: plans and cost models have some megabytes at most."""

_MOST_LETTERS = 200
"""Of a name that becomes part of another; file systems take 255."""


def cache_folder(part: str) -> Path | None:
    """The folder for a part of what we keep; None where there is none that can be trusted.

    In ``$TVM_STRETCH_CACHE_DIR``, which may be empty for none; by default in the user's cache.
    Where others may write, whatever lies there may be theirs: that is said once.
    """
    folder = _named_folder(part)
    reason = why_not_trusted(folder) if folder is not None else None
    if reason is None:
        return folder
    warn_not_trusted(reason)
    return None


def _named_folder(part: str) -> Path | None:
    """What the environment says."""
    own = os.environ.get("TVM_STRETCH_CACHE_DIR")
    if own is not None:
        return Path(own) / part if own else None
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache) / "tvm_stretch" / part
    home = os.environ.get("HOME")
    return Path(home) / ".cache" / "tvm_stretch" / part if home else None


def as_path(path: object, what: str) -> Path:
    """The path that a user gave.

    Raises:
        InputError: it is none.
    """
    if isinstance(path, str | os.PathLike):
        found = Path(path)
        if "\0" in str(found):
            raise InputError(
                f"expected the path of {what}, got {str(found)!r}; no path has a null character"
            )
        return found
    raise InputError(
        f"expected the path of {what}, got {type(path).__name__}; give a string or a pathlib.Path"
    )


def check_place(path: Path, what: str) -> None:
    """Refuse what cannot be written before the work that it is to hold.

    Raises:
        InputError: it is a folder, or its folder is not there.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(
            f"expected a file in an existing folder for {what}, got {str(path)!r}; create the "
            "folder first, or name a file in it"
        )


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file to read it; a device or a pipe, which may have no end, is an OSError."""
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
    """The content of a regular file; an OSError if it has more bytes than any that we write."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"a file of more than {most} bytes", str(path))
    return content


def reason_of(error: OSError) -> str:
    """What the system says of a file, as the end of ``expected .., got``."""
    path = error.filename
    if error.errno == errno.ENOENT:
        return f"no file at {path}"
    said = error.strerror or str(error)
    return f"{said[:1].lower()}{said[1:]}" + (f" at {path}" if path else "")


def read_text(path: Path, what: str, error: type[StretchError], encoding: str = "utf-8") -> str:
    """A text that people wrote.

    Raises:
        StretchError: `error`, if there is none.
    """
    try:
        return read_whole(path).decode(encoding)
    except OSError as fault:
        raise error(f"expected {what}, got {reason_of(fault)}; check the path") from fault
    except UnicodeDecodeError as fault:
        raise error(f"expected {what}, got {fault}; check the path") from fault


def write_whole(path: Path, content: str | bytes) -> None:
    """As `replace_whole`, where a user says: `/dev/stdout` or a pipe is not replaced."""
    if path.exists() and not path.is_file():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        replace_whole(path, content)


def replace_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file that appears complete or not at all: to another name, flushed, renamed.

    Args:
        path: the file; whatever is there is replaced.
        content: of it.
        mode: who may do what with it, as far as the umask allows.
    """
    temporary = None
    try:
        with held(lambda: _new_beside(path, mode)) as (temporary, handle):
            with os.fdopen(os.dup(handle), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            os.fsync(handle)
            temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # which the user knows
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _new_beside(path: Path, mode: int) -> tuple[Path, int]:
    """A temporary file that was not there, whose name nobody can guess."""
    name = f".{path.name[:_MOST_LETTERS]}.{secrets.token_hex(8)}{TEMPORARY}"
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return path.with_name(name), os.open(path.with_name(name), flags, mode)


@contextlib.contextmanager
def held(make: Callable[[], tuple[Path, int]]) -> Iterator[tuple[Path, int]]:
    """While somebody writes a temporary file or folder; `remove_abandoned` leaves it alone.

    Its age would not do: clocks jump, and differ between machines that share a folder.

    Args:
        make: makes and opens it; once more if it is taken for abandoned before it is held.
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
    """Lock it; False if it is not there any more."""
    with contextlib.suppress(OSError):  # a file system without locks: nothing is removed there
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(handle), temporary.lstat())
    except FileNotFoundError:
        return False


def remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file or folder if who wrote it was killed."""
    with contextlib.suppress(OSError):  # somebody holds it, or has removed it
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
    """Where something cannot be written, on a full disk for example, that is an error of ours."""
    try:
        yield
    except OSError as caught:
        said = reason_of(caught)
        if caught.errno == errno.ENOENT and caught.filename is not None:
            said = f"no folder for {caught.filename}"
        raise error(
            f"expected a place to write {what} to, got {said}; check the path, or make room"
        ) from caught


def sealed(text: str) -> str:
    """A JSON object with one field more, which stands before the others: their fingerprint."""
    return f'{{"fingerprint": "{_fingerprint(text[1:].encode())}",{text[1:]}'


def _fingerprint(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _is_whole(content: bytes) -> bool:
    found = _SEAL.match(content)
    return found is not None and found[1].decode() == _fingerprint(content[found.end() :])


def is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold; integers of JSON and TOML know no bounds."""
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


@dataclass(frozen=True)
class Format:
    """A kind of JSON file of ours, and how to refuse what is none.

    Attributes:
        name: what its files call themselves.
        version: of this package's; files of others are refused.
        what: such a file, in messages.
        error: what is raised.
        again: what a user can do to get another file.
        is_sealed: whether `read` takes only what `sealed` has made.
    """

    name: str
    version: int
    what: str
    error: type[StretchError]
    again: str
    is_sealed: bool = False

    @property
    def head(self) -> dict[str, Any]:
        """The fields with which each file begins."""
        return {"format": self.name, "version": self.version}

    def read(self, path: Path) -> dict[str, Any]:
        """What a file holds below its head.

        Raises:
            StretchError: `error`, if the file cannot be read or is none of this format and version.
        """
        try:
            content = read_whole(path)
        except OSError as error:
            raise self.error(
                f"expected a readable file for {self.what}, got {reason_of(error)}; "
                f"check the path, or {self.again}"
            ) from error
        where = f"{self.what} in {path}"
        found = self.parse(content, where)
        if self.is_sealed and not _is_whole(content):
            raise self.error(
                f"expected the content that was written for {where}, got damaged or edited "
                f"content; {self.again}"
            )
        return found

    def read_any(self, source: object, kind: str) -> tuple[dict[str, Any], str]:
        """As `read`, of the path of a file or a dict of its JSON; and where that is, for messages.

        Args:
            source: whatever a caller gave.
            kind: the class that it could have been, too.
        """
        if isinstance(source, Mapping):
            return self.body(dict(source), self.what), self.what
        if not isinstance(source, str | os.PathLike):
            raise self.error(
                f"expected a {kind}, the path of its file or a dict for {kind.lower()}, got "
                f"{type(source).__name__}; give one of these"
            )
        return self.read(as_path(source, self.what)), f"{self.what} in {source}"

    def parse(self, content: str | bytes, where: str) -> dict[str, Any]:
        """As `read`, of a text."""
        return self.body(self.load(content, where), where)

    def load(self, content: str | bytes, where: str) -> dict[str, Any]:
        """A JSON object that has no head."""
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.error(
                f"expected JSON for {where}, got {error}; correct the file, or {self.again}"
            ) from error
        if not isinstance(data, dict):
            raise self.error(
                f"expected an object for {where}, got {type(data).__name__}; {self.again}"
            )
        return data

    def body(self, data: dict[str, Any], where: str) -> dict[str, Any]:
        """As `read`, of parsed JSON."""
        found = (data.get("format"), data.get("version"))
        if found != (self.name, self.version):
            raise self.error(
                f"expected {(self.name, self.version)} for the format and version of {where}, got "
                f"{found}; {self.again} with this version of tvm_stretch"
            )
        head = {*self.head, "fingerprint"} if self.is_sealed else self.head
        return {key: value for key, value in data.items() if key not in head}

    def build(self, kind: type[Kind], data: Any, where: str) -> Kind:
        """A dataclass of plain data from an object of the file; lists become tuples.

        Raises:
            StretchError: `error`, if the object does not have just the fields of the dataclass;
                those with defaults may be missing.
        """
        known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
        needed = [
            name
            for name, field in known.items()
            if field.default is MISSING and field.default_factory is MISSING
        ]
        if not isinstance(data, dict) or not set(needed) <= set(data) <= set(known):
            more = [name for name in known if name not in needed]
            raise self.error(
                f"expected the fields {_listed(needed)}{' and perhaps ' if more else ''}"
                f"{_listed(more)} for {where}, got "
                f"{sorted(data) if isinstance(data, dict) else repr(data)}; {self.again}"
            )
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items()})

    def build_all(self, kind: type[Kind], items: Any, key: str, where: str) -> tuple[Kind, ...]:
        """As `build`, of the objects in the list that a field holds."""
        if not isinstance(items, list | tuple):
            raise self.error(
                f"expected a list of objects for {key} of {where}, got {items!r}; {self.again}"
            )
        return tuple(
            self.build(kind, item, f"{key}[{index}] of {where}") for index, item in enumerate(items)
        )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
