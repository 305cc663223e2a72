"""Strangers who say whatever they like to `tvm_stretch_rpc`; and whether it still serves."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

from helpers import fresh_process
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


def recorded_session(port: int) -> bytes:
    """All that an honest client of `tvm_stretch_rpc` says: calls, tensors, an upload."""
    said = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as between:
        threading.Thread(target=_pass_on, args=(between, port, said), daemon=True).start()
        fresh_process.run(_HONEST.format(port=between.getsockname()[1]))
    return bytes(said)


# In a process of its own: TVM's client keeps Python's lock while it waits.
_HONEST = """
import numpy as np, tvm
from tvm import rpc
session = rpc.connect("127.0.0.1", {port}, "pixel")
session.get_function("tvm_stretch.describe_machine")()
session.upload(bytearray(range(200)), "some.bin")
tensor = tvm.runtime.tensor(np.arange(32, dtype="float32"), session.cpu(0))
assert tensor.numpy()[31] == 31
"""


def _pass_on(between: socket.socket, port: int, said: bytearray) -> None:
    client, _ = between.accept()
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        threading.Thread(target=_pass, args=(server, client, bytearray()), daemon=True).start()
        _pass(client, server, said)


def _pass(source: socket.socket, sink: socket.socket, said: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            said += data
            sink.sendall(data)


def say(port: int, said: bytes) -> bool:
    """Say it, and hear all that comes until the server hangs up; whether there was any answer."""
    heard = False
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(20)
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        while client.recv(1 << 16):
            heard = True
    return heard


def has_session(port: int) -> bool:
    """Whether an honest client gets a session, now or soon."""
    for _ in range(100):
        with contextlib.suppress(Exception):
            rpc.connect("127.0.0.1", port, "pixel")
            return True
        time.sleep(0.05)
    return False
