"""Reads a GGUF file: fields by name, and tensors that lie in the file until they are used.

    "GGUF", version, tensors, fields           counts
    field   = name, type, value                strings and arrays have a length before them
    tensor  = name, sizes, type, offset        the first size is the fastest
    data    of all tensors, aligned

Every count, length and offset is compared with the bytes that are there before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvm_stretch.base.errors import ModelError
from tvm_stretch.base.files import open_regular, reason_of
from tvm_stretch.read.gguf.block_types import TYPES

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""Formats of `struct` by the number that a file has for a type."""
_STRING, _ARRAY = 8, 9
_MOST = {"tensors": 2**16, "fields": 2**16, "rank": 4, "alignment": 2**16}
_NAME = 2**16  # bytes of a name: one in a message stays readable

Field = Any
"""A number, a truth, a text, or a list of these."""


@dataclass(frozen=True)
class Tensor:
    """One tensor: its rows as bytes of the file."""

    name: str
    shape: tuple[int, ...]  # the slowest first, as NumPy has it
    kind: str  # such as ``Q4_1``
    data: np.ndarray  # uint8, (rows, bytes of a row)


@dataclass(frozen=True)
class GgufFile:
    """The content of a file."""

    fields: Mapping[str, Field]
    tensors: Mapping[str, Tensor]

    def number(self, key: str, default: float | None = None, low: float = 1) -> float:
        """A finite number of at least `low`; without a default the field must be there."""
        value = self.fields.get(key, default)
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if not known or not low <= value < 2**31:
            raise refused(f"a number of at least {low} for the field {key!r}", f"{value!r:.40}")
        return value

    def count(self, key: str, default: int | None = None, low: int = 1) -> int:
        """A whole number of at least `low`."""
        value = self.number(key, default, low)
        if value != int(value):
            raise refused(f"a whole number for the field {key!r}", f"{value!r}")
        return int(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text; without a default the field must be there."""
        value = self.fields.get(key, default)
        if not isinstance(value, str):
            raise refused(f"a text for the field {key!r}", f"{value!r:.40}")
        return value

    def array(self, key: str, kind: type) -> tuple[Any, ...]:
        """The values of a list, which has one type; nothing where the field is absent."""
        value = self.fields.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, kind) for one in value[:1]):
            raise refused(f"a list of {kind.__name__} for the field {key!r}", f"{value!r:.40}")
        return tuple(value)


def refused(expected: str, got: str) -> ModelError:
    """The error for a file that is damaged, or of no version that we know."""
    return ModelError(f"expected {expected} in the GGUF file, got {got}; download it again")


def read_file(path: Path) -> GgufFile:
    """Read the head of a file and map its tensors."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            content = np.memmap(file, "uint8", "r") if size else np.zeros(0, "uint8")
    except (OSError, ValueError) as error:
        said = reason_of(error) if isinstance(error, OSError) else str(error)
        raise ModelError(f"expected a GGUF file, got {said}; check the path") from error
    return _Head(content).read()


class _Head:
    """Reads from the front; `place` is the next byte."""

    def __init__(self, content: np.ndarray) -> None:
        self.content, self.place = content, 0

    def read(self) -> GgufFile:
        """The whole file."""
        magic = self.bytes(4, "the magic")
        version = self.number("I", "the version")
        if magic != _MAGIC or version not in _VERSIONS:
            raise refused("GGUF of version 2 or 3 at the front", f"{magic!r} and {version}")
        tensors, fields = (self.many("Q", what, 13) for what in ("tensors", "fields"))
        known: dict[str, Field] = {}
        for _ in range(fields):
            name = self.name(known)
            known[name] = self.value(self.number("I", "a type"), name)
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(tensors):
            name = self.name(entries)
            rank = self.number("I", "a rank")
            if not 1 <= rank <= _MOST["rank"]:
                raise refused(f"1 to 4 dimensions for {name!r}", f"{rank}")
            sizes = tuple(self.number("Q", "a size") for _ in range(rank))
            entries[name] = sizes[::-1], self.number("I", "a type"), self.number("Q", "an offset")
        alignment = known.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= _MOST["alignment"]:
            raise refused("an alignment of 1 to 65536", f"{alignment!r:.40}")
        start = -(-self.place // alignment) * alignment
        return GgufFile(known, {n: self.tensor(n, start, *one) for n, one in entries.items()})

    def tensor(
        self, name: str, start: int, shape: tuple[int, ...], kind: int, offset: int
    ) -> Tensor:
        """A tensor, all of whose bytes are in the file."""
        own = TYPES.get(kind)
        if own is None:
            known = ", ".join(one.name for one in TYPES.values())
            raise refused(f"one of the types {known} for {name!r}", f"the type {kind}")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        whole, left = len(self.content) - start - offset, columns % own.weights
        row = columns // own.weights * own.bytes
        if left or min(shape) < 1 or rows * row > whole:
            got = f"{[*shape]} of {own.name} and {max(whole, 0)} bytes"
            raise refused(f"blocks of {own.weights} and all bytes of {name!r}", got)
        place = start + offset
        data = self.content[place : place + rows * row].reshape(rows, row)
        return Tensor(name, shape, own.name, data)

    def bytes(self, count: int, what: str) -> bytes:
        """The next bytes."""
        left = len(self.content) - self.place
        if count > left:
            raise refused(f"{count} bytes for {what}", f"{left}")
        self.place += count
        return self.content[self.place - count : self.place].tobytes()

    def number(self, kind: str, what: str) -> Any:
        """The next number."""
        return struct.unpack("<" + kind, self.bytes(struct.calcsize("<" + kind), what))[0]

    def many(self, kind: str, what: str, least: int) -> int:
        """The next number as a count of things of at least `least` bytes."""
        count = int(self.number(kind, what))
        most = min(_MOST.get(what, 2**31), (len(self.content) - self.place) // least)
        if count > most:
            raise refused(f"at most {most} {what}", f"{count}")
        return count

    def text(self, what: str) -> str:
        """The next text; bytes that are no UTF-8 become surrogates."""
        return self.bytes(self.many("Q", what, 1), what).decode("utf-8", "surrogateescape")

    def name(self, known: Mapping[str, Any]) -> str:
        """The next name, which must be new."""
        name = self.text("a name")
        if name in known or not name.isprintable() or len(name) > _NAME:
            raise refused("a printable name that nothing else has", f"{name!r:.60}")
        return name

    def value(self, kind: int, name: str) -> Field:
        """The value of a field."""
        if kind == _STRING:
            return self.text(name)
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind], name)
        inner = self.number("I", name) if kind == _ARRAY else -1
        if inner == _STRING:
            return [self.text(name) for _ in range(self.many("Q", "strings", 8))]
        if inner not in _NUMBERS:
            raise refused(f"a known type of {name!r}", f"the type {kind}")
        size = struct.calcsize("<" + _NUMBERS[inner])
        count = self.many("Q", "numbers", size)
        return [*struct.unpack(f"<{count}{_NUMBERS[inner]}", self.bytes(count * size, name))]
