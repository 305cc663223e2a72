"""``ts.connect()``: a phone or a board that is connected by TVM's RPC.

    phone = ts.connect("192.0.2.7:9190", "pixel-8")     # through a tracker
    print(phone.describe())
    phone.close()                                       # frees the device for others

Every failure or timeout of the device is a `DeviceError`. The session is then over; the next call
begins another session, with any device of the same key.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tvm
from tvm import rpc

from tvm_stretch.base.errors import DeviceError, InputError, last_line
from tvm_stretch.base.files import cache_folder, make_folder, replace_whole
from tvm_stretch.base.named_arguments import named_arguments
from tvm_stretch.base.progress import say
from tvm_stretch.phone.description import FORMAT, Description
from tvm_stretch.phone.link import Link, failed
from tvm_stretch.phone.remote_model import RemoteModel, load_there
from tvm_stretch.phone.uploads import stored
from tvm_stretch.phone.wire import Address, Deadline, offered, parse_address, request

if TYPE_CHECKING:
    from tvm_stretch.run.model import Model

_PATIENCE = 120.0  # seconds
_SUMMARY_SECONDS = 5.0

T = TypeVar("T")


class Device:
    """A remote device; `connect` makes one.

    Attributes:
        name: the key under which a tracker lends it; measurements hold for all devices of the key.
        timeout: seconds that every single call may take.

    Examples:
        >>> with ts.connect("192.0.2.7:9190", "pixel-8") as phone:  # doctest: +SKIP
        ...     model = phone.load(ts.compile("resnet18.onnx", device=phone))
        ...     print(model.benchmark())
    """

    def __init__(self, name: str, timeout: float, begin: Callable[[], Link]) -> None:
        self.name = name
        self.timeout = timeout
        self.sent_bytes = 0
        self._begin = begin
        self._link: Link | None = None
        self._sessions = 0
        self._lock = threading.RLock()  # guards the link: one request at a time
        self._description: Description | None = None

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Device({self.name!r}, {'in a session' if self.session_number else 'closed'})"

    @property
    def session_number(self) -> int:
        """The number of the open session, or 0; modules live as long as their session."""
        with self._lock:
            return 0 if self._link is None or self._link.is_over else self._sessions

    def close(self) -> None:
        """End the session, so that others can use the device; the next call begins a new one."""
        with self._lock:
            if self._link is not None:
                self._link.hang_up()
                self._link = None

    def describe(self) -> Description:
        """The device's description, asked once, and stored so that plans can be made without it.

        Raises:
            DeviceError: it does not answer, or its runtime library is missing or another version.
        """
        if self._description is None:
            text = self.call("to describe itself", "tvm_stretch.describe_machine")
            self._description = Description.read(text, self.name)
            _remember(self._description)
        return self._description

    def call(
        self, what: str, function: str, *arguments: object, seconds: float | None = None
    ) -> Any:
        """Call a global function on the device.

        Args:
            what: the purpose, for messages: "to run".
            function: its name.
            arguments: numbers, texts, bytes, tensors and modules of the device.
            seconds: the timeout; by default `timeout`.

        Raises:
            DeviceError: it fails, or does not answer in time.
        """
        return self.ask(what, lambda link: link.function(function)(*arguments), seconds)

    def ask(
        self,
        what: str,
        action: Callable[[Link], T],
        seconds: float | None = None,
        session: int | None = None,
    ) -> T:
        """The result of an action that uses the link; it runs on a separate thread.

        Args:
            what: the purpose, for messages.
            action: a function that calls the device through the link.
            seconds: the timeout; by default `timeout`.
            session: the number of the session that it needs; by default any.

        Raises:
            DeviceError: it fails, does not answer in time, or that session is over.
        """
        with self._lock:
            if session is not None and session != self.session_number:
                raise failed(self.name, what, "the end of the session that held it", "load it anew")
            if self._link is None or self._link.is_over:
                self._link = self._begin()
                self._sessions += 1
            link = self._link
            return link.ask(what, lambda: action(link), seconds or self.timeout)

    def upload(self, path: Path, ending: str, what: str = "") -> str:
        """Upload a file unless the device has its content; return its name there.

        Args:
            path: the file.
            ending: the ending of its name there.
            what: its name in progress messages, by default the file's.

        Raises:
            DeviceError: the device refuses it.
        """
        name, sent = stored(self, path, ending, what or path.name)
        self.sent_bytes += sent
        return name

    def open_library(self, name: str) -> RemoteModule:
        """Load an uploaded library.

        Raises:
            DeviceError: the device cannot load it.
        """
        module = self.call("to load a library", "ffi.ModuleLoadFromFile", self.path_of(name))
        return RemoteModule(self, module)

    def path_of(self, name: str) -> str:
        """The path of an upload on the device."""
        return str(self.call("to find an upload", "tvm_stretch.store_path", name))

    def load(self, model: Model | str | Path) -> RemoteModel:
        """Load a model on the device; it has all methods of `Model`.

        Uploads are content-addressed: the device receives only files that it does not have. Another
        plan of a network needs its kernels and few bytes of weights, such as a part's bias.

        Args:
            model: a model that was compiled for the device, or an artifact.

        Raises:
            ArtifactError: it is for another machine, or for features that the device lacks.
            DeviceError: the device fails, or does not answer in time.
            TargetError: no linker for the device is installed here.
        """
        return load_there(self, model)


class RemoteModule:
    """A module of the device, in one session.

    Args:
        device: the device that holds it.
        module: TVM's handle of the module.
    """

    def __init__(self, device: Device, module: tvm.runtime.Module) -> None:
        self.device = device
        self.session = device.session_number
        self._module = module

    def method(self, name: str) -> Callable[..., Any]:
        """A method of TVM's handle, for actions of `Device.ask`."""
        method: Callable[..., Any] = self._module[name]
        return method

    def __getitem__(self, method: str) -> Callable[..., Any]:
        """A method; arrays and tensors of this machine become tensors of the device."""

        def answered(*given: Any, seconds: float | None = None) -> Any:
            def action(link: Link) -> Any:
                return self._module[method](*(_sent(link, argument) for argument in given))

            answer = self.device.ask(f"to answer {method}", action, seconds, self.session)
            is_module = isinstance(answer, tvm.runtime.Module)
            return RemoteModule(self.device, answer) if is_module else answer

        return answered


def _sent(link: Link, argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return tvm.runtime.tensor(argument, link.session.cpu(0))
    if isinstance(argument, tvm.runtime.Tensor):
        return argument.copyto(link.session.cpu(0))
    return argument


# --- connecting -----------------------------------------------------------------------------------


@named_arguments
def connect(
    where: str | rpc.RPCSession,
    key: str | None = None,
    *,
    timeout: float = _PATIENCE,
    wait: float = 60.0,
    secret: str = "",
) -> Device:
    """Connect to a device, to compile for it, measure kernels on it and run models on it.

    Args:
        where: address and port of TVM's tracker, such as ``"192.0.2.7:9190"``; or a session of
            TVM's RPC, which cannot be reopened after a loss.
        key: the name under which the tracker lends the device. Measurements of a session are kept
            under this name.
        timeout: seconds after which a single call raises `DeviceError`.
        wait: seconds to wait for a free device, at the beginning and after a loss.
        secret: the secret of the devices, which was given to their servers with ``tvm_stretch_rpc
            --secret-file``.

    Raises:
        InputError: an argument has another type or value.
        DeviceError: there is no tracker, it has no such device, or none is free in time.

    Examples:
        >>> phone = ts.connect("192.0.2.7:9190", "pixel-8")  # doctest: +SKIP
        >>> phone.load(ts.compile("resnet18.onnx", device=phone))  # doctest: +SKIP
    """
    for field, seconds in (("timeout", timeout), ("wait", wait)):
        if not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
            raise InputError(f"expected a positive number of seconds for {field}, got {seconds!r}")
    if not isinstance(secret, str):
        raise InputError("expected text for secret, got something else; give the word itself")
    secret = secret.rstrip(" \t\r\n")  # like the server, because files end with a line break
    if isinstance(where, rpc.RPCSession):
        return _of_session(where, _checked(key or "session"), timeout)
    address = parse_address(where)
    if address is None:
        raise InputError(
            f"expected HOST:PORT of a tracker or a session of TVM's RPC for connect, got {where!r};"
            " TVM's tracker listens on port 9190"
        )
    name = _checked(key)
    device = Device(name, timeout, lambda: _lent(address, name, wait, timeout, secret))
    device.ask("to answer", lambda link: link.function("tvm.rpc.server.upload"))
    return device


def _checked(key: object) -> str:
    if isinstance(key, str) and 0 < len(key) <= 100 and key.isprintable() and not {*key} & {*" :"}:
        return key
    raise InputError(
        f"expected the name of a device for key, without spaces and colons, got {key!r}; the "
        "tracker lists them: python -m tvm.exec.query_rpc_tracker"
    )


def _of_session(session: rpc.RPCSession, name: str, timeout: float) -> Device:
    number = itertools.count()

    def begin() -> Link:
        if next(number):
            raise failed(name, "to go on", "the end of its session", "open another, and connect")
        return Link.wrap(session, timeout, name)

    return Device(name, timeout, begin)


def _lent(address: Address, name: str, wait: float, timeout: float, secret: str) -> Link:
    """Open a session with one of the tracker's devices."""
    place = f"the tracker {address[0]}:{address[1]}"
    deadline = Deadline(wait)
    while True:
        say(f"waiting for {name}")
        try:
            seat = request(address, name, deadline)
        except TimeoutError as error:
            raise failed(
                name, f"from {place} within {wait:g} s", _why_none(address, name), _FREE_ONE
            ) from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            hint = "start it with python -m tvm.exec.rpc_tracker, and check the address"
            raise failed(name, f"from {place}", last_line(error), hint) from error
        try:
            return Link.open(seat, Deadline(min(timeout, deadline.left())), name, secret)
        except ConnectionRefusedError:  # the device is gone, and the tracker has not noticed yet
            continue
        except DeviceError as error:
            hint = "give the secret of its server" if not secret else "check the secret"
            raise failed(name, "to begin a session", last_line(error), hint) from error
        except (OSError, ValueError) as error:
            raise failed(name, "to begin a session", last_line(error)) from error


_FREE_ONE = "start a server with that key, wait longer, or let whoever has it close its session"


def _why_none(address: Address, name: str) -> str:
    try:
        offers = offered(address, Deadline(_SUMMARY_SECONDS))
    except (OSError, ValueError, TypeError, KeyError):
        return "no answer"
    if name in offers:
        return f"none free of {offers[name]}"
    return f"none of that key; it knows {', '.join(sorted(offers)) or 'no device at all'}"


# --- descriptions of earlier devices
# ---------------------------------------------------------------


def _path_of(name: str) -> Path | None:
    folder = cache_folder("devices")
    return folder and folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def _remember(description: Description) -> None:
    path = _path_of(description.name)
    if path is not None:
        try:
            make_folder(path.parent)
            replace_whole(path, description.to_file())
        except OSError as error:  # the device will be asked again
            say(f"the description of {description.name} is not kept: {error}")


def remembered(name: str) -> Description | None:
    """The stored description of a device, None if it was never connected.

    Raises:
        DeviceError: the file is damaged.
    """
    path = _path_of(name)
    if path is None or not path.is_file():
        return None
    return Description.build(FORMAT.read(path), f"{FORMAT.what} in {path}")
