"""Strangers on the port of `tvm_stretch_rpc`, and trackers that lie, under sanitizers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from helpers.rpc_processes import Phone, native_server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native.build_native import built
from tvm import rpc
from tvm.rpc.base import RPC_MAGIC, RPC_TRACKER_MAGIC

pytestmark = pytest.mark.full

BUSY, MISMATCH = RPC_MAGIC + 1, RPC_MAGIC + 2

NUMBERS = st.one_of(
    st.sampled_from([0, 1, 11, 12, 40, 4096, 4097, -1, 2**31 - 1, RPC_MAGIC, RPC_TRACKER_MAGIC]),
    st.integers(-(2**31), 2**31 - 1),
).map(lambda number: struct.pack("<i", number))
WORDS = st.sampled_from(
    [
        b"client:pixel",
        b"client:",
        b" -cancel",
        b" -cancel=7",
        b" -proof=",
        b" -timeout=nan",
        b" -timeout=1e-9",
    ]
)
PIECES = WORDS | st.sampled_from([b"[0, 1]", b'"pixel:', b"\0", b"[" * 99, b" "])
TEXTS = st.lists(PIECES | st.binary(max_size=40), max_size=5).map(b"".join)
SAID = st.lists(TEXTS.map(lambda text: struct.pack("<i", len(text)) + text) | NUMBERS | TEXTS)
GREETINGS = st.tuples(st.sampled_from([struct.pack("<i", RPC_MAGIC), b""]), SAID)
USUAL = settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def server() -> list[str]:
    """The command of a server with sanitizers."""
    usual, _ = native_server()
    return [str(built("checked_rpc") / "checked_rpc"), *usual[1:]]


@pytest.fixture(scope="module")
def phone(server: list[str]) -> Iterator[Phone]:
    """One that all greetings reach; without a tracker, so that its key is known."""
    made = Phone("--session-limit", "1", command=server)
    yield made
    made.kill()


def answered(port: int, said: bytes) -> None:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(0.05)
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        client.recv(64)


@USUAL
@given(GREETINGS)
def test_whatever_strangers_say(phone: Phone, greeting: tuple[bytes, list[bytes]]) -> None:
    magic, said = greeting
    answered(phone.port, magic + b"".join(said))
    assert phone.is_running


def greeted(client: socket.socket, said: bytes) -> int:
    """The number with which the server answers."""
    client.settimeout(20)
    client.sendall(struct.pack("<ii", RPC_MAGIC, len(said)) + said)
    return int(struct.unpack("<i", client.recv(4, socket.MSG_WAITALL))[0])


def test_only_who_knows_the_key_of_the_session_cancels_its_run(server: list[str]) -> None:
    phone = Phone(command=server)

    def connected() -> socket.socket:
        return socket.create_connection(("127.0.0.1", phone.port))

    try:
        with connected() as early:
            assert greeted(early, b"client:pixel -cancel=1") == MISMATCH  # there is no session
        with connected() as early:
            assert greeted(early, b"client:pixel -cancel") == MISMATCH  # nor of older clients
        with connected() as session:
            assert greeted(session, b"client:pixel") == RPC_MAGIC
            for said, answer in {
                b"client:pixel -cancel=1": RPC_MAGIC,
                b"client:pixel -cancel=" + b"9" * 18: RPC_MAGIC,
                b"client:pixel -cancel=" + b"9" * 19: BUSY,
                b"client:pixel -cancel=-1": BUSY,
                b"client:pixel -cancel=": BUSY,
                b"client:pixel -cancel": BUSY,
                b"client:pixels -cancel=1": BUSY,
                b"client: -cancel=1": BUSY,
                b"client:pixel1": BUSY,
                b"client:pixel": BUSY,
            }.items():
                with connected() as other:
                    assert greeted(other, said) == answer, said
        assert phone.is_running
    finally:
        phone.kill()


def test_it_serves_after_all_that(phone: Phone) -> None:
    for _ in range(200):
        with contextlib.suppress(Exception):
            rpc.connect("127.0.0.1", phone.port, "pixel")
            return
    raise AssertionError("no session any more")


def test_whatever_a_tracker_says(server: list[str]) -> None:
    """It answers with all of these, one after the other; the server asks again and again."""
    answers: list[bytes] = []

    @settings(max_examples=300, database=None)
    @given(SAID)
    def collect(said: list[bytes]) -> None:
        answers.append(struct.pack("<i", RPC_TRACKER_MAGIC) + b"".join(said))

    collect()
    with socket.create_server(("127.0.0.1", 0)) as tracker:
        told = threading.Event()

        def lie() -> None:
            for answer in answers[:12]:  # it comes every two seconds
                client, _ = tracker.accept()
                with client, contextlib.suppress(OSError):
                    client.sendall(answer)
            told.set()

        threading.Thread(target=lie, daemon=True).start()
        address = f"127.0.0.1:{tracker.getsockname()[1]}"
        phone = Phone("--tracker", address, command=server, offered=False)
        try:
            assert told.wait(120) and phone.is_running
        finally:
            phone.kill()
