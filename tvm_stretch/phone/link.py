"""A session of TVM's RPC with timeouts.

    link = Link.open(seat, Deadline(10), "pixel-8")
    link.ask("to describe itself", lambda: link.session.get_function("...")(), seconds=5)

TVM's client has no timeout: it waits as long as the connection exists, even when it frees handles
on the device. So this module owns the socket. TVM's client connects to this process, which forwards
the handshake of both sides; then `dup2` replaces the descriptor of TVM's socket by the device's
socket, and the two talk directly. A timeout shuts that socket down, which wakes the client.
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

from tvm_stretch.base.errors import DeviceError, RunCancelledError, last_line
from tvm_stretch.base.progress import ended, step
from tvm_stretch.phone.wire import Deadline, Seat, cancel, connect, greet, readable, receive

_FAREWELL = 5  # seconds for a thread to notice that the connection is closed
_HEARTBEAT = 0.02  # seconds between checks whether the connecting thread has ended
_BYTES_RECEIVED = 128  # offset in Linux's `struct tcp_info`
WAY_OUT = "look at the device, start its server anew, and call again"

_LOOKING = threading.Lock()
"""Held while listing all descriptors, so that duplicates of another thread are not listed."""


class Link:
    """A session and its socket.

    Attributes:
        session: TVM's session.
        name: the device's name in messages.
        alive: whether the session is open.
        functions: the device's functions that were looked up before, by name.
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
        self._seat = seat  # the tracker's assignment

    @staticmethod
    def open(seat: Seat, deadline: Deadline, name: str, secret: str = "") -> Link:
        """Open a session with the device that a tracker has assigned.

        Raises:
            OSError: the device does not answer in time.
            DeviceError: it refuses the session.
            ValueError: the server is not a device of TVM's RPC.
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
    def wrap(session: rpc.RPCSession, seconds: float, name: str) -> Link:
        """Wrap a session that the caller has opened.

        Raises:
            DeviceError: the device does not answer.
        """
        return Link(session, _socket_of(session, seconds, name), name)

    def cancel(self, number: int, seconds: float) -> bool:
        """Stop the run that was announced with this number, from another thread.

        Returns:
            Whether the device accepted it; only `tvm_stretch_rpc` supports it.
        """
        if self._seat is None:
            return False
        with contextlib.suppress(OSError):
            return cancel(self._seat, number, Deadline(seconds))
        return False

    def function(self, name: str) -> Any:
        """A global function of the device, for actions of `ask`."""
        if name not in self.functions:
            self.functions[name] = self.session.get_function(name)
        return self.functions[name]

    def ask(self, what: str, action: Callable[[], Any], seconds: float) -> Any:
        """The result of an action that calls the device.

        Args:
            what: the purpose, for messages: "to run".
        """
        if self.is_over:
            raise failed(self.name, what, "no session any more")
        try:
            return action() if self._socket is None else self._meanwhile(action, seconds)
        except RunCancelledError:  # the device has answered
            raise
        except Exception as error:
            is_here = self._socket is None  # TVM's LocalSession has no connection
            refused = last_line(error) if is_here else _refusal(error)
            if refused is None:
                self.hang_up()
                raise failed(self.name, what, repr(last_line(error))) from error
            if refused.startswith("expected "):  # an error of ours, with a hint
                raise DeviceError(f"{refused} ({self.name} was {what})") from error
            raise failed(self.name, what, refused) from error

    def _meanwhile(self, action: Callable[[], Any], seconds: float) -> Any:
        """Run the action on a separate thread, so that timeouts and Ctrl-C can end the wait."""
        self._set_limit(seconds)
        result: Future[Any] = Future()

        def act() -> None:
            try:
                result.set_result(action())
            except BaseException as error:  # raised again by `result()`
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
        """Set the socket's own timeout, for calls outside of `ask` such as freeing tensors.

        It is longer than the timeout of `ask`, because TVM's own message for it is useless
        ("temporarily unavailable").
        """
        assert self._socket is not None
        limit = struct.pack("ll", int(seconds) + 5, 0)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    @property
    def is_over(self) -> bool:
        """Whether the session has ended.

        Data that arrives without a request is the end of the connection, garbage, or a late answer,
        which would be taken for the answer to the next request. All of them end the session.
        """
        if self.alive and self._socket is not None and readable([self._socket], 0.0):
            self.hang_up()
        return not self.alive

    def hang_up(self) -> None:
        """Shut the socket down, which wakes the thread that waits for the device."""
        self.alive = False
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def failed(name: str, what: str, got: str, way_out: str = WAY_OUT) -> DeviceError:
    """The error for all failures of a remote device."""
    return DeviceError(f"expected {name} {what}, got {got}; {way_out}")


def _refusal(error: Exception) -> str | None:
    """The error that the device reported; None if the session is lost."""
    if isinstance(error, AttributeError):  # from TVM's module: "has no function"
        return f"{last_line(error)!r}: its runtime library is missing or older"
    is_over = isinstance(error, tvm_error.RPCSessionTimeoutError)
    if is_over or not isinstance(error, tvm_error.RPCError):
        return None
    lines = str(error).strip().splitlines()
    ours = [line for line in lines if "expected " in line and "; " in line]
    return (ours or lines)[-1].strip()


# --- replacing TVM's socket by ours ---------------------------------------------------------------


def _introduce(device: socket.socket, key: str, deadline: Deadline) -> rpc.RPCSession:
    """Make TVM's client use a socket whose handshake with the device is complete."""
    opened: Future[rpc.RPCSession] = Future()

    def connect(port: int) -> None:
        try:
            opened.set_result(rpc.connect("127.0.0.1", port))
        except BaseException as error:
            opened.set_exception(error)

    with socket.create_server(("127.0.0.1", 0)) as waiting:
        thread = threading.Thread(target=connect, args=(waiting.getsockname()[1],), daemon=True)
        thread.start()
        waiting.settimeout(deadline.left())
        inner, _ = waiting.accept()
    with inner:
        with _LOOKING:
            other = _descriptor(inner)
            socket_of_tvm = os.fstat(other).st_ino
        try:
            magic = receive(inner, 4, deadline)
            (size,) = struct.unpack("<i", receive(inner, 4, deadline))
            receive(inner, size, deadline)
            named = key.encode()
            inner.sendall(magic + struct.pack("<i", len(named)) + named)
            _forward(inner, device, thread, deadline)
            session = opened.result()
        except BaseException as error:
            with contextlib.suppress(OSError):  # the connection is gone
                inner.shutdown(socket.SHUT_RDWR)
            thread.join(_FAREWELL)
            with contextlib.suppress(OSError):  # TVM's client leaves its socket open if it fails
                if opened.done() and opened.exception() and os.fstat(other).st_ino == socket_of_tvm:
                    os.close(other)
            if isinstance(error, RuntimeError):  # of TVM's client
                raise ConnectionError(last_line(error)) from error
            raise
        device.setblocking(True)  # both share the setting
        os.dup2(device.fileno(), other, inheritable=False)
    return session


def _forward(
    inner: socket.socket, device: socket.socket, thread: threading.Thread, deadline: Deadline
) -> None:
    """Forward data between TVM's client and the device until the session is open."""
    other = {inner: device, device: inner}
    while thread.is_alive():
        step()
        for side in readable([inner, device], min(_HEARTBEAT, deadline.left())):
            data = side.recv(1 << 16)
            if not data and thread.is_alive():
                raise ConnectionError("an end of the connection")
            other[side].sendall(data)


def _descriptor(inner: socket.socket) -> int:
    """The descriptor of the other end, which is in this process, too; needs `_LOOKING`.

    Both addresses are compared, because connections to two servers may leave from one port.
    """
    ends = inner.getpeername(), inner.getsockname()
    for number in _sockets():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.family == socket.AF_INET and (copy.getsockname(), copy.getpeername()) == ends:
                return number
    raise ConnectionError("a connection that TVM has given up")


def _sockets() -> list[int]:
    sockets = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(entry.readlink()).startswith("socket:"):
                sockets.append(int(entry.name))
    return sockets


def _socket_of(session: rpc.RPCSession, seconds: float, name: str) -> socket.socket | None:
    """The socket of a session that the caller opened; None if it cannot be determined.

    It is the only socket that receives data while the device answers a call.

    Raises:
        DeviceError: the device does not answer.
    """
    before = _bytes_received()
    asked = threading.Thread(target=lambda: session.get_function("tvm.rpc.server.upload"))
    asked.daemon = True  # it may wait forever
    asked.start()
    if not ended(asked, seconds):
        raise failed(name, "to answer", f"nothing for {seconds:g} s")
    changed = [fd for fd, count in _bytes_received().items() if count > before.get(fd, count)]
    return socket.socket(fileno=os.dup(changed[0])) if len(changed) == 1 else None


def _bytes_received() -> dict[int, int]:
    """Bytes received so far, by descriptor of this process's TCP sockets."""
    with _LOOKING:
        return {number: count for number in _sockets() if (count := _received(number)) is not None}


def _received(number: int) -> int | None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
        if len(info) == _BYTES_RECEIVED + 8:
            return int(struct.unpack_from("q", info, _BYTES_RECEIVED)[0])
    return None
