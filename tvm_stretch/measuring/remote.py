"""Modules behind an RPC session, whose answers nobody has to believe or wait for without end.

    remote = Remote(session)
    module = remote.load(path)           uploads the library first
    module["trace"]()                    DeviceError if it fails, or takes too long

TVM's client waits as long as the connection is there, also where it lets go of what the device
holds for it, and has no limit that can be set. So it is set where the client cannot see it: at the
socket of the session, which is the one on which something arrives when the device is asked.
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

import numpy as np
import tvm
from tvm import rpc

from tvm_stretch.errors import DeviceError, last_line
from tvm_stretch.progress import ended

_PATIENCE = 120  # seconds of silence

_FAREWELL = 5  # seconds until a thread has noticed that there is no connection any more

_BYTES_RECEIVED = 128  # where it stands in Linux's `struct tcp_info`


class Remote:
    """What is done through a session."""

    def __init__(self, session: rpc.RPCSession) -> None:
        self._session = session
        self._socket = _socket_of(session)
        if self._socket is not None:
            limit = struct.pack("ll", _PATIENCE, 0)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def load(self, path: Path) -> RemoteModule:
        """Upload a library and load it there.

        Raises:
            DeviceError: the device does not do it, or not in time.
        """
        self.wait_for(f"to take {path.name}", lambda: self._session.upload(str(path)))
        module = self.wait_for(f"to load {path.name}", lambda: self._session.load_module(path.name))
        return RemoteModule(self, module)

    def tensor(self, value: np.ndarray) -> tvm.runtime.Tensor:
        """A copy on the device."""
        return tvm.runtime.tensor(value, self._session.cpu(0))

    def wait_for(self, what: str, action: Callable[[], Any]) -> Any:
        """The result of something that asks the device.

        Raises:
            DeviceError: it fails, whatever TVM raises: garbage looks like anything to it.
        """
        try:
            return action() if self._socket is None else self._meanwhile(action)
        except Exception as error:
            self._hang_up()
            raise _failed(what, repr(last_line(error))) from error

    def _meanwhile(self, action: Callable[[], Any]) -> Any:
        """What the action, on a thread of its own, comes to; Ctrl-C is answered before."""
        result: Future[Any] = Future()

        def act() -> None:
            try:
                result.set_result(action())
            except BaseException as error:  # or nobody would ever hear of it
                result.set_exception(error)

        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        try:
            ended(thread)
        except BaseException:
            self._hang_up()
            thread.join(_FAREWELL)
            raise
        return result.result()

    def _hang_up(self) -> None:
        """Who waits for the device need not wait any more."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class RemoteModule:
    """A module of the device, as far as the bench uses one."""

    def __init__(self, remote: Remote, module: tvm.runtime.Module) -> None:
        self._remote = remote
        self._module = module

    def __getitem__(self, method: str) -> Callable[..., Any]:
        """A method; arrays that it is given become tensors of the device."""

        def call(*arguments: Any) -> Any:
            sent = [self._remote.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
            return self._module[method](*sent)

        return lambda *given: self._remote.wait_for(f"to answer {method}", lambda: call(*given))


def _failed(what: str, got: str) -> DeviceError:
    return DeviceError(
        f"expected the device behind the RPC session {what}, got {got}; look at the device, "
        "start its server anew, and connect again"
    )


def _socket_of(session: rpc.RPCSession) -> socket.socket | None:
    """The socket of a session; None if it has none, or others are as busy.

    Raises:
        DeviceError: there is no answer.
    """
    before = _bytes_received()
    asked = threading.Thread(target=lambda: session.get_function("tvm.rpc.server.upload"))
    asked.daemon = True  # it may wait for ever
    asked.start()
    if not ended(asked, _PATIENCE):
        raise _failed("to answer", f"nothing for {_PATIENCE} s")
    found = [fd for fd, count in _bytes_received().items() if count > before.get(fd, count)]
    return socket.socket(fileno=os.dup(found[0])) if len(found) == 1 else None


def _bytes_received() -> dict[int, int]:
    """How much has arrived so far, by descriptor of this process's TCP sockets."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # it is closed by now, or of another kind
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED + 8)
            if len(info) == _BYTES_RECEIVED + 8:
                (found[int(entry.name)],) = struct.unpack_from("q", info, _BYTES_RECEIVED)
    return found
