"""The headers of a shared library: whether the loader survives them, and for which machine.

    segment     what the loader maps: a piece of the file, to an address
    section     what the linker put there: code, constants, tables ..

`dlopen` believes segments, and ends the process over wrong ones. A linker writes them in order and
apart, and so that they hold all sections: whatever is not like that is damaged.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from tvm_stretch.base.errors import ArtifactError

MACHINES = {62: "x86_64", 183: "aarch64", 164: "hexagon", 243: "riscv64"}
"""Names of the machine numbers in ELF files, as `platform.machine` returns them."""

# For 64-bit little-endian files.
_MAGIC = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_LOADED, _DYNAMIC, _PROTECTED = 1, 2, 0x6474E552  # types of segments
_ZEROS = 8  # type of sections that the file does not have
_MAY_RUN, _MAY_WRITE, _MAY_READ = 1, 2, 4
_ALLOCATED, _OF_THREADS = 2, 1 << 10  # flags of sections
_PAGE = 4096


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    in_file: int
    in_memory: int
    alignment: int

    def holds(self, address: int, size: int) -> bool:
        """Whether ``size`` bytes are there, perhaps as zeros that the file leaves out."""
        return self.address <= address and address + size <= self.address + self.in_memory

    def reads(self, offset: int, address: int, size: int) -> bool:
        """Whether this part of the file comes there."""
        return (
            self.holds(address, size)
            and address - offset == self.address - self.offset
            and offset + size <= self.offset + self.in_file
        )


def read_machine(file: BinaryIO, name: str) -> str:
    """The machine that a library is for, as `platform.machine` names them."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header[:6] != _MAGIC:
        raise ArtifactError(
            f"expected a 64-bit ELF library for {name}, got {header[:8]!r}; "
            "give the path of an exported model"
        )
    fields = _HEADER.unpack(header)
    machine, program_offset, section_offset = fields[4], fields[7], fields[8]
    segment_size, segments, section_size, sections = fields[11:15]
    table = _read(file, program_offset, segment_size * segments, size)
    ends = [section_offset + section_size * sections, program_offset + segment_size * segments]
    rows: list[_Segment] = []
    if len(table) == segment_size * segments and segment_size == _SEGMENT.size:
        rows = [_Segment(*row) for row in _SEGMENT.iter_unpack(table)]
        ends += [row.offset + row.in_file for row in rows if row.kind == _LOADED]
    if max(ends) > size:
        raise ArtifactError(
            f"expected at least {max(ends)} bytes for {name}, got {size}; "
            "the file is truncated: copy or export it again"
        )
    placed = _read(file, section_offset, section_size * sections, size)
    if not _is_as_linked(rows) or not _are_held(rows, placed, section_size):
        raise ArtifactError(
            f"expected headers as a linker writes them for {name}, got others; the file is "
            "damaged: copy or export it again"
        )
    return MACHINES.get(machine, f"machine {machine}")


def find_section(file: BinaryIO, wanted: str) -> tuple[int, int]:
    """Where a section of a library that was just linked is in its file, and its size; else 0, 0."""
    file.seek(0)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size or header[:6] != _MAGIC:
        return 0, 0
    fields = _HEADER.unpack(header)
    file.seek(fields[8])
    sections = [*_SECTION.iter_unpack(file.read(fields[14] * _SECTION.size))]
    file.seek(sections[fields[15]][4])
    names = file.read(sections[fields[15]][5])
    for name, _kind, _flags, _address, offset, size, *_rest in sections:
        if names[name : names.index(b"\0", name)] == wanted.encode():
            return offset, size
    return 0, 0


def _read(file: BinaryIO, offset: int, count: int, size: int) -> bytes:
    file.seek(min(offset, size))  # beyond it, a file refuses some numbers itself
    return file.read(count)


def _is_as_linked(segments: Sequence[_Segment]) -> bool:
    loaded = [segment for segment in segments if segment.kind == _LOADED]
    dynamic = [segment for segment in segments if segment.kind == _DYNAMIC]
    end = 0
    for segment in loaded:
        may_write = segment.flags & _MAY_WRITE
        if (
            not segment.flags & _MAY_READ
            or segment.flags & ~(_MAY_RUN | _MAY_WRITE | _MAY_READ)
            or segment.address < end
            or (segment.address - segment.offset) % _PAGE
            or segment.in_file > segment.in_memory
            or (segment.in_file != segment.in_memory and not may_write)
        ):
            return False
        end = segment.address + segment.in_memory
    protected = [segment for segment in segments if segment.kind == _PROTECTED]
    return (
        any(segment.flags & _MAY_RUN for segment in loaded)
        and len(dynamic) == 1
        and any(
            one.reads(dynamic[0].offset, dynamic[0].address, dynamic[0].in_file) for one in loaded
        )
        and all(any(one.holds(p.address, p.in_memory) for one in loaded) for p in protected)
    )


def _are_held(segments: Sequence[_Segment], sections: bytes, size: int) -> bool:
    """Whether all that is needed in memory is mapped."""
    if size != _SECTION.size:
        return not sections
    loaded = [segment for segment in segments if segment.kind == _LOADED]
    for _name, kind, flags, address, offset, count, *_rest in _SECTION.iter_unpack(sections):
        if not flags & _ALLOCATED or flags & _OF_THREADS:
            continue
        in_file = kind != _ZEROS
        if not any(
            one.reads(offset, address, count) if in_file else one.holds(address, count)
            for one in loaded
        ):
            return False
    return True
