"""Strangers who say whatever they like to `tvm_stretch_rpc`; and whether it still serves."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from collections.abc import Iterator

from tvm import rpc
from tvm.rpc.base import RPC_MAGIC


def _bad_greetings(dice: random.Random) -> Iterator[bytes]:
    magic = struct.pack("<i", RPC_MAGIC)
    yield b""
    yield magic
    yield magic + struct.pack("<i", 0)
    yield magic + struct.pack("<i", -1)
    yield magic + struct.pack("<i", 1 << 30) + b"x" * 100
    yield magic + struct.pack("<i", 6) + b"client"
    yield magic + struct.pack("<i", 5) + b"\0\0\0\0\0"
    yield magic + struct.pack("<i", 20) + b"client:pixel -timeou"
    for _ in range(40):
        yield dice.randbytes(dice.randrange(64))
        yield magic + dice.randbytes(dice.randrange(64))


def greet_badly(port: int, dice: random.Random) -> None:
    """Connections that become no session."""
    for greeting in _bad_greetings(dice):
        with socket.create_connection(("127.0.0.1", port), timeout=3) as client:
            client.sendall(greeting)


def talk_nonsense(port: int, dice: random.Random) -> None:
    """Sessions in which no call is one."""
    said = b"client:pixel"
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            client.sendall(struct.pack("<ii", RPC_MAGIC, len(said)) + said)
            (code,) = struct.unpack("<i", client.recv(4))
            if code == RPC_MAGIC:
                client.sendall(struct.pack("<q", dice.randrange(1, 1 << 8)) + dice.randbytes(300))


def has_session(port: int) -> bool:
    """Whether an honest client gets a session, now or soon."""
    for _ in range(100):
        with contextlib.suppress(Exception):
            rpc.connect("127.0.0.1", port, "pixel")
            return True
        time.sleep(0.05)
    return False
