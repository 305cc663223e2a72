"""A session of TVM's RPC that nobody waits for longer than they want.

    link = Link.open(seat, Deadline(10), "pixel-8")
    link.ask("to describe itself", lambda: link.session.get_function("...")(), seconds=5)

TVM's client waits as long as the connection is there, also where it lets go of what the device
holds for it, and has no limit that can be set. So the socket is ours: TVM's client connects to this
process, which passes on what both say until the session stands; then the socket of the device is
put where TVM's was (`dup2`), and nobody stands between them any more. Whoever has waited long
enough shuts that socket down, which wakes the client.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tvm import error as tvm_error
from tvm import rpc

from tvm_stretch.errors import DeviceError, RunCancelledError, last_line
from tvm_stretch.progress import ended, step
from tvm_stretch.remote.wire import Deadline, Seat, cancel, connect, greet, readable, receive

_FAREWELL = 5  # seconds until a thread has noticed that there is no connection any more
_HEARTBEAT = 0.02  # seconds: the thread that waits for the session ends without a word
_BYTES_RECEIVED = 128  # where it stands in Linux's `struct tcp_info`
WAY_OUT = "look at the device, start its server anew, and call again"

_LOOKING = threading.Lock()
"""Held by who looks at all descriptors: others' copies of sockets would be taken for sockets."""


class Link:
    """A session, and the socket that it speaks through.

    Attributes:
        session: TVM's.
        name: of the device, in messages.
        alive: whether nobody has hung up yet.
        functions: of the device, that were asked for before, by name.
    """

    def __init__(
        self,
        session: rpc.RPCSession,
        own: socket.socket | None,
        name: str,
        seat: Seat | None = None,
    ) -> None:
        self.session = session
        self.name = name
        self.alive = True
        self.functions: dict[str, Any] = {}
        self._socket = own
        self._seat = seat  # where the tracker found it

    @staticmethod
    def open(seat: Seat, deadline: Deadline, name: str, secret: str = "") -> Link:
        """A session with the device that a tracker has lent.

        Raises:
            OSError: the device does not answer in time.
            DeviceError: it refuses.
            ValueError: what answers is no device of TVM's RPC.
        """
        device = connect(seat.address, deadline)
        try:
            device.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            key = greet(device, seat.matchkey, deadline, secret)
            session = _introduce(device, key, deadline)
        except BaseException:
            device.close()
            raise
        return Link(session, device, name, seat)

    @staticmethod
    def of(session: rpc.RPCSession, seconds: float, name: str) -> Link:
        """A session that somebody else has opened.

        Raises:
            DeviceError: there is no answer.
        """
        return Link(session, _socket_of(session, seconds, name), name)

    def cancel(self, number: int, seconds: float) -> bool:
        """Stop the run that was announced so, from another thread than that which waits for it.

        Returns:
            Whether the device was told; only `tvm_stretch_rpc` understands it.
        """
        if self._seat is None:
            return False
        with contextlib.suppress(OSError):
            return cancel(self._seat, number, Deadline(seconds))
        return False

    def function(self, name: str) -> Any:
        """A global function of the device; for actions of `ask`."""
        if name not in self.functions:
            self.functions[name] = self.session.get_function(name)
        return self.functions[name]

    def ask(self, what: str, action: Callable[[], Any], seconds: float) -> Any:
        """The result of something that asks the device.

        Args:
            what: to do, for messages: "to run".
            action: asks.
            seconds: until the answer is there.

        Raises:
            DeviceError: it fails, whatever TVM raises: garbage looks like anything to it. The
                session is over then, unless the device itself said what is wrong.
        """
        if self.is_over:
            raise failed(self.name, what, "no session any more")
        try:
            return action() if self._socket is None else self._meanwhile(action, seconds)
        except RunCancelledError:  # the device has answered; it said so
            raise
        except Exception as error:
            is_here = self._socket is None  # TVM's LocalSession: nothing is on its way
            refused = last_line(error) if is_here else _refusal(error)
            if refused is None:
                self.hang_up()
                raise failed(self.name, what, repr(last_line(error))) from error
            if refused.startswith("expected "):  # it is an error of ours, with a way out
                raise DeviceError(f"{refused} ({self.name} was {what})") from error
            raise failed(self.name, what, refused) from error

    def _meanwhile(self, action: Callable[[], Any], seconds: float) -> Any:
        """What the action, on a thread of its own, comes to; Ctrl-C is answered before."""
        self._set_limit(seconds)
        result: Future[Any] = Future()

        def act() -> None:
            try:
                result.set_result(action())
            except BaseException as error:  # or nobody would ever hear of it
                result.set_exception(error)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        try:
            if not ended(thread, seconds):
                self.hang_up()
                thread.join(_FAREWELL)
                raise TimeoutError(f"nothing for {seconds:g} s")
        except BaseException:
            self.hang_up()
            thread.join(_FAREWELL)
            raise
        return result.result()

    def _set_limit(self, seconds: float) -> None:
        """For what TVM asks when nobody is looking: letting go of tensors, for example.

        Longer than who looks waits: what TVM says of it is no news ("temporarily unavailable").
        """
        assert self._socket is not None
        limit = struct.pack("ll", int(seconds) + 5, 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    @property
    def is_over(self) -> bool:
        """Whether nothing can be asked any more.

        What arrives while nothing was asked is the end, garbage, or an answer that came too late:
        it would be taken for that to the next question.
        """
        if self.alive and self._socket is not None and readable([self._socket], 0.0):
            self.hang_up()
        return not self.alive

    def hang_up(self) -> None:
        """Who waits for the device need not wait any more."""
        self.alive = False
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def failed(name: str, what: str, got: str, way_out: str = WAY_OUT) -> DeviceError:
    """The one error for everything that a device behind RPC can do wrong."""
    return DeviceError(f"expected {name} {what}, got {got}; {way_out}")


def _refusal(error: Exception) -> str | None:
    """What the device said is wrong; None if the session is lost."""
    if isinstance(error, AttributeError):  # of TVM's module: "has no function"
        return f"{last_line(error)!r}: its runtime library is missing or older"
    is_over = isinstance(error, tvm_error.RPCSessionTimeoutError)
    if is_over or not isinstance(error, tvm_error.RPCError):
        return None
    lines = str(error).strip().splitlines()
    ours = [line for line in lines if "expected " in line and "; " in line]
    return (ours or lines)[-1].strip()


# --- how our socket comes to be TVM's -------------------------------------------------------------


def _introduce(device: socket.socket, key: str, deadline: Deadline) -> rpc.RPCSession:
    """TVM's client on a socket whose other side has been greeted."""
    found: Future[rpc.RPCSession] = Future()

    def connect(port: int) -> None:
        try:
            found.set_result(rpc.connect("127.0.0.1", port))
        except BaseException as error:
            found.set_exception(error)

    with socket.create_server(("127.0.0.1", 0)) as waiting:
        thread = threading.Thread(target=connect, args=(waiting.getsockname()[1],), daemon=True)
        thread.start()
        waiting.settimeout(deadline.left())
        inner, _ = waiting.accept()
    with inner:
        try:
            magic = receive(inner, 4, deadline)
            (size,) = struct.unpack("<i", receive(inner, 4, deadline))
            receive(inner, size, deadline)
            named = key.encode()
            inner.sendall(magic + struct.pack("<i", len(named)) + named)
            _pass_on(inner, device, thread, deadline)
        except BaseException:
            inner.shutdown(socket.SHUT_RDWR)
            thread.join(_FAREWELL)
            raise
        session = found.result()
        device.setblocking(True)  # of both: they share it
        with _LOOKING:
            os.dup2(device.fileno(), _descriptor(inner.getpeername()), inheritable=False)
    return session


def _pass_on(
    inner: socket.socket, device: socket.socket, thread: threading.Thread, deadline: Deadline
) -> None:
    """What TVM's client and the device say, until the session stands."""
    other = {inner: device, device: inner}
    while thread.is_alive():
        step()
        for side in readable([inner, device], min(_HEARTBEAT, deadline.left())):
            said = side.recv(1 << 16)
            if not said and thread.is_alive():
                raise ConnectionError("an end of the connection")
            other[side].sendall(said)


def _descriptor(address: tuple[str, int]) -> int:
    """The descriptor of this process's socket that is bound there; for who holds `_LOOKING`."""
    for number in _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.family == socket.AF_INET and copy.getsockname() == address:
                return number
    raise ConnectionError("a connection that TVM has given up")


def _sockets() -> list[int]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed by now
            if str(entry.readlink()).startswith("socket:"):
                found.append(int(entry.name))
    return found


def _socket_of(session: rpc.RPCSession, seconds: float, name: str) -> socket.socket | None:
    """The socket of a session that others opened; None if it has none, or others are as busy.

    It is the one on which something arrives when the device is asked.

    Raises:
        DeviceError: there is no answer.
    """
    before = _bytes_received()
    asked = threading.Thread(target=lambda: session.get_function("tvm.rpc.server.upload"))
    asked.daemon = True  # it may wait for ever
    asked.start()
    if not ended(asked, seconds):
        raise failed(name, "to answer", f"nothing for {seconds:g} s")
    found = [fd for fd, count in _bytes_received().items() if count > before.get(fd, count)]
    return socket.socket(fileno=os.dup(found[0])) if len(found) == 1 else None


def _bytes_received() -> dict[int, int]:
    """How much has arrived so far, by descriptor of this process's TCP sockets."""
    with _LOOKING:
        return {number: count for number in _sockets() if (count := _received(number)) is not None}


def _received(number: int) -> int | None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
        if len(info) == _BYTES_RECEIVED + 8:
            return int(struct.unpack_from("q", info, _BYTES_RECEIVED)[0])
    return None
