"""``tvm-stretch phone``: from a phone on the cable to one that ``ts.connect`` and ``device=`` take.

    ready = prepare()                       # server, tracker and ports; tries each processor
    ts.compile("resnet50.onnx", device=ts.connect(ready.tracker, ready.name))
    clean_up()

Nothing of it needs rights that adb has not. What each step does on the phone is one line of shell,
which docs/phones.md shows, so that an owner can repeat it by hand.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from tvm_stretch.api.compiler import compile
from tvm_stretch.base.errors import InputError, StretchError, TargetError
from tvm_stretch.base.files import cache_folder, make_folder, replace_whole
from tvm_stretch.base.progress import say
from tvm_stretch.network.expressions import network_of
from tvm_stretch.phone.adb import FOLDER, Adb, connected
from tvm_stretch.phone.description import Description
from tvm_stretch.phone.device import Device, connect
from tvm_stretch.phone.device_processors import processors_of
from tvm_stretch.phone.link import failed
from tvm_stretch.phone.wire import Address, Deadline, offered, parse_address
from tvm_stretch.targets.cpu.cpu import HOST
from tvm_stretch.targets.processor import Processor
from tvm_stretch.targets.processors import kinds

TRACKER = "127.0.0.1:9190"

_FILES = {"arm64-v8a": "aarch64", "x86_64": "x86_64"}
"""The folder of a phone's files in build/phone/android, by the name of its instruction set."""

_OLDEST = 26  # the API level that our files are made for: Android 8
_START = 60.0  # seconds for a server or a tracker to come up
_WARM = 2  # the thermal status from which Android lowers clocks

_PROPERTIES = {
    "model": "ro.product.model",
    "abis": "ro.product.cpu.abilist",
    "level": "ro.build.version.sdk",
}


@dataclass(frozen=True)
class Tried:
    """What became of the small network on one processor."""

    processor: str
    driver: str
    seconds: float | None  # the median run; None if it failed
    failure: str  # what went wrong; empty if the answer was right

    def __str__(self) -> str:
        right = "" if self.seconds is None else f"right, {self.seconds * 1e3:.2f} ms"
        return f"  {self.processor:12}{self.driver:40}{right or f'failed: {self.failure}'}"


@dataclass(frozen=True)
class Ready:
    """A phone that is served."""

    name: str  # its key at the tracker, for ts.connect and for device=
    tracker: str
    sent: list[str]  # the files that it did not have
    description: Description
    tried: list[Tried]
    advice: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [str(self.description), "", "a small network of 8 bits on each processor:"]
        lines += [*map(str, self.tried), *self.advice, ""]
        lines += [f'phone = ts.connect("{self.tracker}", "{self.name}")   # to measure and run']
        lines += [f'ts.compile(network, device="{self.name}")   # later, without the phone']
        return "\n".join(lines)


def prepare(
    # the phone's serial number; by default ``$ANDROID_SERIAL``, or the only phone
    serial: str | None = None,
    # the files for the phone; by default what ``make phone-android`` makes here
    folder: Path | None = None,
    name: str | None = None,  # its key at the tracker; by default the name of its model
    tracker: str = TRACKER,  # HOST:PORT of the tracker, which is started if it does not run
) -> Ready:
    """Serve a phone, and try each of its processors.

    Raises:
        DeviceError: a step fails; the message says what to do.
        InputError: the folder or the tracker is none.
    """
    adb = connected(serial)
    about = _properties(adb)
    files = _folder(adb, folder, about["abis"])
    if int(about["level"] or 0) < _OLDEST:
        raise failed(
            adb.serial,
            f"to have Android 8 or later (API level {_OLDEST})",
            f"API level {about['level']}",
            "its C library lacks what our files need; use another phone",
        )
    name = name or re.sub(r"[^a-z0-9]+", "-", about["model"].lower()).strip("-") or adb.serial
    sent = adb.push(files)
    _ensure_tracker(tracker)
    _serve(adb, name, tracker)
    with connect(tracker, name, wait=_START) as phone:
        description = phone.describe()
        tried = [_try(phone, processor) for processor in _processors(phone)]
    return Ready(name, tracker, sent, description, tried, _advice(adb, description))


def clean_up(serial: str | None = None) -> str:
    """End the server, take its files and ports away, and end the tracker that `prepare` started.

    Raises:
        DeviceError: the phone cannot be reached.
    """
    adb = connected(serial)
    _end_server(adb)
    adb.shell("to remove files", f"rm -rf {FOLDER}")
    for line in adb.call("to list ports", ["forward", "--list"]).splitlines():
        owner, here, there = [*line.split(), "", "", ""][:3]
        if owner == adb.serial and here == there:  # as `_serve` forwards them
            adb.call("to close a port", ["forward", "--remove", here])
    adb.call("to close ports", ["reverse", "--remove-all"], check=False)
    ended = _end_tracker()
    return f"{adb.serial}: nothing of ours is left there" + (", the tracker has ended" * ended)


# --- the phone ------------------------------------------------------------------------------------


def _properties(adb: Adb) -> dict[str, str]:
    command = "; ".join(f"echo {name}=$(getprop {key})" for name, key in _PROPERTIES.items())
    lines = adb.shell("to say what it is", command).splitlines()
    return dict.fromkeys(_PROPERTIES, "") | dict(
        line.strip().split("=", 1) for line in lines if "=" in line
    )


def _folder(adb: Adb, folder: Path | None, abis: str) -> Path:
    """The files for a phone's instruction sets."""
    supported = [abi for abi in abis.split(",") if abi in _FILES]
    if not supported:
        raise failed(
            adb.serial,
            f"to run programs of {' or '.join(_FILES)}",
            abis or "none",
            "phones of 32 bits have no kernels here; use another phone",
        )
    folder = folder or Path("build/phone/android", _FILES[supported[0]])
    if not (folder / "tvm_stretch_rpc").is_file():
        raise InputError(
            f"expected a folder with tvm_stretch_rpc for --folder, got {str(folder)!r}; call "
            "make phone-android in the repository"
        )
    return folder


def _serve(adb: Adb, name: str, tracker: str) -> None:
    """Start the server, and wait until it has offered itself to the tracker."""
    _end_server(adb)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lent = tracker.rpartition(":")[2]
    adb.call("to reach the tracker", ["reverse", f"tcp:{lent}", f"tcp:{lent}"])
    adb.call("to be reached", ["forward", f"tcp:{port}", f"tcp:{port}"])
    options = f"--key {name} --tracker 127.0.0.1:{lent} --port {port} --store store"
    begun = f"TMPDIR=. LD_LIBRARY_PATH=. nohup ./tvm_stretch_rpc {options}"
    adb.shell(
        "to start the server",
        f"cd {FOLDER} && ({begun} </dev/null >server.log 2>&1 & echo $! >server.pid)",
    )
    deadline = Deadline(_START)
    with contextlib.suppress(TimeoutError):
        while deadline.left():
            log = adb.shell("to start the server", f"cat {FOLDER}/server.log", check=False)
            if "offered as" in log:
                return
            alive = adb.shell("", f"kill -0 $(cat {FOLDER}/server.pid) && echo yes", check=False)
            if "yes" not in alive:
                raise adb.refused("to start the server", log)
            time.sleep(0.2)
    raise adb.refused("to start the server", log)


def _end_server(adb: Adb) -> None:
    pid = f"{FOLDER}/server.pid"
    adb.shell("", f"test -f {pid} && kill $(cat {pid}); rm -f {pid}", check=False)


def _advice(adb: Adb, description: Description) -> list[str]:
    """What the owner should know of the driver and of heat."""
    lines = []
    if description.opencl:
        public = adb.shell("", "cat /vendor/etc/public.libraries.txt", check=False)
        lines.append(
            "apps may load OpenCL if their manifest says "
            '<uses-native-library android:name="libOpenCL.so" android:required="false"/>'
            if "libOpenCL" in public
            else "apps cannot load OpenCL: its vendor does not list it in public.libraries.txt"
        )
    else:
        drivers = adb.shell("", "ls /vendor/lib64/ | grep -i opencl", check=False).split()
        lines.append(
            f"no OpenCL although there is {drivers[0]}: adb logcat | grep -i opencl"
            if drivers
            else "no OpenCL: its vendor ships no driver, so its GPU stays idle"
        )
    heat = re.search(r"Thermal Status: (\d+)", adb.shell("", "dumpsys thermalservice", check=False))
    if heat and int(heat[1]) >= _WARM:
        lines.append(
            f"it lowers its clocks (thermal status {heat[1]}): let it cool before you measure"
        )
    return lines


# --- a network whose answer is known to the last bit ----------------------------------------------


def _processors(phone: Device) -> Iterator[Processor]:
    """One of each kind that it has, also those that are used only if somebody names them."""
    for kind in sorted(kinds(), key=HOST.__ne__):  # the CPU first
        with contextlib.suppress(TargetError):
            yield processors_of(phone, [kind], None)[1][0]


def _try(phone: Device, processor: Processor) -> Tried:
    """Compile the network for one processor, run it there and compare the answer."""
    core = phone.describe().big_cores[0].name or phone.describe().cpu
    driver = processor.hardware.driver or core
    say(f"trying {processor.name}")
    try:
        remote = phone.load(compile(_network(), [processor], device=phone))
        x = np.random.default_rng(1).integers(-2, 3, (1, _IN, _SIZE, _SIZE)).astype("int8")
        wrong = np.count_nonzero(remote(x) != _answer(x))
        if wrong:
            return Tried(processor.name, driver, None, f"{wrong} numbers are wrong")
        return Tried(processor.name, driver, remote.benchmark(5).median, "")
    except StretchError as error:
        return Tried(processor.name, driver, None, str(error))


_IN, _OUT, _SIZE = 16, 64, 28


def _weights() -> np.ndarray:
    return np.random.default_rng(0).integers(-2, 3, (_OUT, _IN, 3, 3)).astype("int8")


def _network() -> tvm.IRModule:
    """A convolution of integers, which all processors have kernels for, and a maximum."""
    x = relax.Var("x", relax.TensorType((1, _IN, _SIZE, _SIZE), "int8"))

    def operators(bb: relax.BlockBuilder) -> relax.Expr:
        weights = relax.const(_weights())
        sums = bb.emit(relax.op.nn.conv2d(x, weights, padding=1, out_dtype="int32"))
        return relax.op.maximum(sums, relax.const(0, "int32"))

    return network_of([x], operators)


def _answer(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x[0].astype("int32"), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.maximum(np.einsum("cyxhw,ochw->oyx", windows, _weights().astype("int32")), 0)[None]


# --- the tracker ----------------------------------------------------------------------------------


def _ensure_tracker(where: str) -> None:
    """Start TVM's tracker if nothing answers there."""
    address = parse_address(where)
    if address is None:
        raise InputError(f"expected HOST:PORT for --tracker, got {where!r}; TVM's is {TRACKER}")
    if _answers(address):
        return
    host, port = address
    if host not in ("127.0.0.1", "localhost"):
        raise failed("the tracker", "to answer", f"nothing at {where}", "start it there")
    say("starting the tracker")
    command = [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", host]
    command += ["--port", str(port), "--port-end", str(port + 1)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
        path = _tracker_file()
        if path is not None:
            make_folder(path.parent)
            replace_whole(path, f"{process.pid}\n")
        deadline = Deadline(_START)
        while not _answers(address):
            if process.poll() is not None:
                output = os.pread(log.fileno(), 1 << 16, 0).decode(errors="replace").strip()
                hint = "pip install cloudpickle, or choose another --tracker"
                raise failed("TVM's tracker", "to start", repr(output.splitlines()[-1:]), hint)
            deadline.left()
            time.sleep(0.1)


def _answers(address: Address) -> bool:
    try:
        offered(address, Deadline(2.0))
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return True


def _tracker_file() -> Path | None:
    folder = cache_folder("devices")
    return folder and folder / "tracker.pid"


def _end_tracker() -> bool:
    """End the tracker that `_ensure_tracker` started, if it still runs."""
    path = _tracker_file()
    if path is None or not path.is_file():
        return False
    pid = int(path.read_text())
    path.unlink()
    with contextlib.suppress(OSError):
        if b"rpc_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.killpg(pid, signal.SIGTERM)
            return True
    return False
