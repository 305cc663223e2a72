"""What Android's loader asks of a library, read from the file: segments, tables, names.

Android 15 maps 16 KB pages; it has refused text relocations since Android 6, and prefers the GNU
hash table. A symbol without a definition must come from its C library.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from tvm_stretch.run.linking import symbols_of_android

PAGE = 16384
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551  # types of segments
_NEEDED, _STRINGS, _SYMBOLS, _SYMBOL_SIZE, _TEXT_RELOCATIONS, _FLAGS = 1, 5, 6, 11, 22, 30
_GNU_HASH, _VERSIONS_NEEDED = 0x6FFFFEF5, 0x6FFFFFFE
_WRITES_TEXT, _MAY_RUN, _MAY_WRITE = 4, 1, 2


class Library(NamedTuple):
    """The dynamic part of a shared library."""

    segments: list[
        tuple[int, ...]
    ]  # type, flags, offset, address, -, in file, in memory, alignment
    dynamic: list[tuple[int, int]]
    needed: list[str]
    undefined: list[str]
    defined: list[str]

    @classmethod
    def read(cls, path: Path) -> Library:
        data = path.read_bytes()
        assert data[:6] == b"\x7fELF\x02\x01"
        start, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
        segments = [struct.unpack_from("<IIQQQQQQ", data, start + 56 * i) for i in range(count)]
        (found,) = (row for row in segments if row[0] == _DYNAMIC)
        dynamic = [*struct.iter_unpack("<qQ", data[found[2] : found[2] + found[5]])]
        place = {tag: _in_file(segments, value) for tag, value in dynamic if tag in (5, 6)}
        strings, symbols = place[_STRINGS], place[_SYMBOLS]

        def name(offset: int) -> str:
            begin = strings + offset
            return data[begin : data.index(b"\0", begin)].decode()

        # The dynamic part does not say how many symbols there are; their section does.
        table = data[symbols : symbols + _size_of(data, symbols)]
        rows = [row for row in struct.iter_unpack("<IBBHQQ", table) if row[0]]
        undefined = [name(row[0]) for row in rows if row[3] == 0]
        defined = [name(row[0]) for row in rows if row[3] != 0]
        needed = [name(value) for tag, value in dynamic if tag == _NEEDED]
        return cls(segments, dynamic, needed, undefined, defined)


def _in_file(segments: list[tuple[int, ...]], address: int) -> int:
    for kind, _flags, offset, start, _physical, size, *_rest in segments:
        if kind == _LOAD and start <= address < start + size:
            return offset + address - start
    raise AssertionError(f"no segment has {address}")


def _size_of(data: bytes, offset: int) -> int:
    """The size of the section that begins there."""
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    sections = [struct.unpack_from("<IIQQQQ", data, start + 64 * i) for i in range(count)]
    return next(row[5] for row in sections if row[4] == offset and row[1] == 11)


def assert_android_loads(path: Path, others: tuple[str, ...] = ()) -> Library:
    """Every property that Android's loader requires; `others` lie beside the library."""
    library = Library.read(path)
    loaded = [row for row in library.segments if row[0] == _LOAD]
    assert all(row[7] >= PAGE and (row[3] - row[2]) % PAGE == 0 for row in loaded)
    assert not any(row[1] & _MAY_RUN and row[1] & _MAY_WRITE for row in library.segments)
    assert [row[1] & _MAY_RUN for row in library.segments if row[0] == _STACK] == [0]
    tags = dict(library.dynamic)
    assert _GNU_HASH in tags and _TEXT_RELOCATIONS not in tags and _VERSIONS_NEEDED not in tags
    assert not tags.get(_FLAGS, 0) & _WRITES_TEXT
    system = symbols_of_android()
    assert set(library.needed) <= {*system, *others}
    if not others:
        known = {name for lib in library.needed for name in system[lib]}
        assert set(library.undefined) <= known
    return library
