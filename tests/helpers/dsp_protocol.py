"""What stands in targets/hexagon/dsp/protocol.h, once more in Python, for tests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

MAGIC = 0x31505344
PROGRAM_OFFSET = 4096
COPY = 0xFFFFFFFF
BLOCK, WEIGHTS = 0, 1
OK, BAD_COMMAND, BAD_PROGRAM, BAD_TENSOR, BAD_NODE, BAD_REGION, NO_MEMORY, FAILED = range(8)
PING, INVOKE, SHUT_DOWN = 1, 2, 3
COMMAND, ANSWER = 0, 128
MOST_DIMS, MOST_ARGS, SPAN_BYTES = 12, 64, 24


def fingerprint(data: bytes) -> int:
    value = 2166136261
    for (word,) in struct.iter_unpack("<I", data):
        value = (value ^ word) * 2654435761 & 0xFFFFFFFF
        value ^= value >> 15
    return value


@dataclass(frozen=True)
class Tensor:
    segment: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bits: int = 8
    lanes: int = 1

    def pack(self) -> bytes:
        dims = len(self.shape)
        rest = [0] * (MOST_DIMS - dims)
        head = struct.pack("<IIBBHIQ", self.segment, dims, 1, self.bits, self.lanes, 0, self.offset)
        return head + struct.pack(f"<{2 * MOST_DIMS}q", *self.shape, *rest, *self.strides, *rest)

    def bytes(self) -> int:
        """From the first element to behind the last."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * (-(-self.bits // 8)) * self.lanes

    def fits(self, sizes: tuple[int, int]) -> bool:
        if self.segment > 1 or min((0, *self.shape, *self.strides)) < 0:
            return False
        if self.bits == 0 or self.lanes == 0 or self.offset > sizes[self.segment]:
            return False
        return self.offset + self.bytes() <= sizes[self.segment]


@dataclass(frozen=True)
class Node:
    kernel: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    tensors: Sequence[Tensor] = ()
    nodes: Sequence[Node] = ()
    regions: Sequence[tuple[int, int]] = field(default=((0, 0),))

    def pack(self) -> bytes:
        """Header, tables, and room for spans."""
        arguments: list[int] = []
        nodes = b""
        for node in self.nodes:
            counts = len(node.inputs), len(node.outputs)
            nodes += struct.pack("<4I", node.kernel & 0xFFFFFFFF, len(arguments), *counts)
            arguments += [*node.inputs, *node.outputs]
        ids = struct.pack(f"<{len(arguments)}I", *arguments)
        tables = b"".join(tensor.pack() for tensor in self.tensors) + ids + bytes(-len(ids) % 8)
        tables += nodes + b"".join(struct.pack("<II", *region) for region in self.regions)
        counts = len(self.tensors), len(arguments), len(self.nodes), len(self.regions)
        header = struct.pack("<IIQ4I", MAGIC, fingerprint(tables), len(tables), *counts)
        return header + tables + bytes(SPAN_BYTES * len(self.nodes))


def command(number: int, operation: int, region: int = 0, traced: int = 0) -> bytes:
    """The command's fields with their check."""
    fields = number, operation, region, traced
    return struct.pack("<5I", *fields, fingerprint(struct.pack("<5I", MAGIC, *fields)))


def answer(memory: bytes) -> tuple[int, int, int]:
    """Number, status, detail of a mailbox's answer, which must not be damaged."""
    number, status, detail, check, packets, ns = struct.unpack_from("<4I2Q", memory, ANSWER)
    halves = packets & 0xFFFFFFFF, packets >> 32, ns & 0xFFFFFFFF, ns >> 32
    assert check == fingerprint(struct.pack("<8I", MAGIC, number, status, detail, *halves))
    return number, status, detail
