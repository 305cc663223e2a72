"""The messages of TVM's RPC that request a device from a tracker and begin a session.

    seat = request(("192.0.2.7", 9190), "pixel-8", Deadline(60))
    with socket.create_connection(seat.address) as ours:
        greet(ours, seat.matchkey, Deadline(5))         # from here on TVM's own client takes over

TVM's own functions wait forever if a tracker is frozen or no device is free. These functions wait
until a deadline, and Ctrl-C interrupts them.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.rpc.base import RPC_CODE_SUCCESS, RPC_MAGIC, RPC_TRACKER_MAGIC, TrackerCode

from tvm_stretch.base.errors import DeviceError
from tvm_stretch.base.progress import ended, step

Address = tuple[str, int]

_HEARTBEAT = 0.2  # seconds
_LONGEST = 1 << 20
"""The largest message in bytes; a tracker with a thousand devices sends less."""


class Deadline:
    """The moment at which an operation times out."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """The remaining seconds."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"nothing for {self.seconds:g} s")
        return left


@dataclass(frozen=True)
class Seat:
    """A device that a tracker has assigned: its address, and the match key that it expects."""

    address: Address
    matchkey: str


def connect(address: Address, deadline: Deadline) -> socket.socket:
    """Open a connection.

    Host names are resolved on a separate thread, because the system's function has no timeout and
    takes very long while the network is down.

    Raises:
        OSError: no server answers in time.
    """
    answers: list[socket.socket | Exception] = []

    def look_up() -> None:
        try:
            answers.append(socket.create_connection(address, deadline.left()))
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    if not ended(thread, deadline.left()):
        raise TimeoutError(f"nothing for {deadline.seconds:g} s")
    (result,) = answers
    if isinstance(result, Exception):
        raise result
    return result


@contextlib.contextmanager
def connected(address: Address, deadline: Deadline) -> Iterator[socket.socket]:
    """Context with a connection to a tracker, after its handshake.

    Raises:
        OSError: no server answers in time.
        ValueError: the server is not a tracker.
    """
    with connect(address, deadline) as tracker:
        tracker.sendall(struct.pack("<i", RPC_TRACKER_MAGIC))
        if _number(tracker, deadline) != RPC_TRACKER_MAGIC:
            raise ValueError("what is no tracker of TVM")
        yield tracker


def request(address: Address, key: str, deadline: Deadline) -> Seat:
    """Request a device from a tracker, and wait until one is free.

    Raises:
        OSError: no server answers, or no device is free in time.
        ValueError: the server is not a tracker.
    """
    with connected(address, deadline) as tracker:
        _send(tracker, [TrackerCode.REQUEST, key, "", 1])
        status, seat = _receive_answer(tracker, deadline)
        if status != TrackerCode.SUCCESS:
            raise ValueError(f"{seat!r} from the tracker")
        host, port, matchkey = seat
        if not isinstance(port, int):  # Infinity, for example
            raise ValueError(f"{seat!r} from the tracker")
        return Seat((str(host), port), str(matchkey))


def offered(address: Address, deadline: Deadline) -> dict[str, int]:
    """The number of devices that a tracker knows, by key.

    Raises:
        OSError: no server answers.
        ValueError: the server is not a tracker.
    """
    with connected(address, deadline) as tracker:
        _send(tracker, [TrackerCode.SUMMARY])
        status, summary = _receive_answer(tracker, deadline)
        if status != TrackerCode.SUCCESS:
            raise ValueError(f"{summary!r} from the tracker")
        counts: dict[str, int] = {}
        for server in summary["server_info"]:
            key = str(server["key"]).partition(":")[2]
            counts[key] = counts.get(key, 0) + 1
        return counts


def greet(device: socket.socket, matchkey: str, deadline: Deadline, secret: str = "") -> str:
    """Begin a session, and return the device's own key.

    Raises:
        OSError: it does not answer in time.
        DeviceError: it refuses the key, or the secret.
        ValueError: it is no device of TVM's RPC.
    """
    words = [f"client:{matchkey}"]
    if secret:  # the secret is never sent; match keys differ each time
        proof = hmac.new(secret.encode(), matchkey.encode(), hashlib.sha256)
        words.append(f"-proof={proof.hexdigest()}")
    message = " ".join(words).encode()
    device.sendall(struct.pack("<ii", RPC_MAGIC, len(message)) + message)
    code = _number(device, deadline)
    if code != RPC_CODE_SUCCESS:
        reason = (
            "another secret, or another client was faster" if secret else "its secret is needed"
        )
        raise DeviceError(f"a refusal ({reason})" if code - RPC_MAGIC in (1, 2) else f"code {code}")
    return _text(device, deadline).decode(errors="replace")


def cancel(seat: Seat, number: int, deadline: Deadline) -> bool:
    """Ask a device to stop one run of the session that began with this seat; other runs go on.

    The request uses a separate connection, because a session reads nothing while a network runs.
    TVM's Python server accepts no second connection during a session, so it does not answer in
    time.

    Returns:
        Whether the device accepted the request.

    Raises:
        OSError: it does not answer in time.
    """
    message = f"client:{seat.matchkey} -cancel={number}".encode()
    with connect(seat.address, deadline) as device:
        device.sendall(struct.pack("<ii", RPC_MAGIC, len(message)) + message)
        return _number(device, deadline) == RPC_CODE_SUCCESS


def receive(source: socket.socket, count: int, deadline: Deadline) -> bytes:
    """Receive exactly ``count`` bytes.

    Raises:
        OSError: they do not arrive in time, or the connection ends.
    """
    received = bytearray()
    while len(received) < count:
        step()
        waited = min(_HEARTBEAT, deadline.left())
        if not readable([source], waited):
            continue
        piece = source.recv(min(count - len(received), 1 << 16))
        if not piece:
            raise ConnectionError("an end of the connection")
        received += piece
    return bytes(received)


def readable(sources: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    """The sockets that become readable, or end, in time; unlike select, for large descriptors."""
    socket_of = {source.fileno(): source for source in sources}
    poll = select.poll()
    for number in socket_of:
        poll.register(number, select.POLLIN)
    return [socket_of[number] for number, _ in poll.poll(1000 * seconds)]


def _number(source: socket.socket, deadline: Deadline) -> int:
    (number,) = struct.unpack("<i", receive(source, 4, deadline))
    return int(number)


def _text(source: socket.socket, deadline: Deadline) -> bytes:
    size = _number(source, deadline)
    if not 0 <= size <= _LONGEST:
        raise ValueError(f"a message of {size} bytes")
    return receive(source, size, deadline)


def _send(tracker: socket.socket, message: list[Any]) -> None:
    content = json.dumps(message).encode()
    tracker.sendall(struct.pack("<i", len(content)) + content)


def _receive_answer(tracker: socket.socket, deadline: Deadline) -> tuple[int, Any]:
    """The status of an answer, and its content."""
    text = _text(tracker, deadline)
    try:
        answer = json.loads(text)
    except RecursionError as error:  # such as "[[[[..."
        raise ValueError(f"{text[:80]!r} from the tracker") from error
    if not isinstance(answer, list) or len(answer) != 2 or not isinstance(answer[0], int):
        raise ValueError(f"{text[:80]!r} from the tracker")
    return answer[0], answer[1]


def parse_address(text: object) -> Address | None:
    """``192.0.2.7:9190`` or ``[::1]:9190``; None for anything else."""
    if not isinstance(text, str):
        return None
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    good = host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536
    return (host, int(port)) if good else None
