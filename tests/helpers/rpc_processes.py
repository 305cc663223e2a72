"""RPC servers and trackers, TVM's and ours, in processes of their own; they find their ports."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tvm
import tvm_ffi
from tvm.rpc import tracker

from tvm_stretch.run.autoload import find_file


class RpcProcess:
    """``python -m tvm.exec.rpc_server``, or ``rpc_tracker``, that is listening.

    Attributes:
        port: where it listens. Nobody looks for a free port beforehand: by the time that the
            process came up, it might be taken.
    """

    def __init__(self, module: str, *options: str) -> None:
        first = 20_000 + os.getpid() % 20_000
        command = [sys.executable, "-m", module, "--host=127.0.0.1", f"--port={first}"]
        command += [f"--port-end={first + 1_000}", *options]
        with tempfile.TemporaryFile("w+") as log:
            self._process = subprocess.Popen(command, stderr=log, start_new_session=True)
            self.port = self._bound_port(log.fileno())

    def _bound_port(self, log: int) -> int:
        while True:
            said = os.pread(log, 1 << 16, 0).decode()
            if found := re.search(r"bind to 127\.0\.0\.1:(\d+)", said):
                return int(found[1])
            assert self._process.poll() is None, f"it has ended: {said}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it, and the processes that it started, at once; if they run."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Tracker:
    """TVM's tracker in a fork of this process: it takes seconds to import otherwise."""

    def __init__(self, port: int = 0) -> None:
        with socket.create_server(("127.0.0.1", port)) as listener:
            self.port: int = listener.getsockname()[1]
            self.address = f"127.0.0.1:{self.port}"
            self.pid = os.fork()
            if self.pid == 0:
                self._serve(listener)

    @staticmethod
    def _serve(listener: socket.socket) -> None:
        try:
            logging.disable()
            for number in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            tracker._tracker_server(listener, "stop")
        finally:
            os._exit(0)

    def kill(self) -> None:
        """End it at once."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


def native_server() -> tuple[list[str], dict[str, str]]:
    """The command of `tvm_stretch_rpc` with its libraries, and its environment."""
    package = Path(tvm.__file__).parent
    libraries = [
        package / "lib" / "libtvm_runtime.so",
        find_file("lib/libtvm_stretch_runtime.so"),
    ]
    command = [str(find_file("bin/tvm_stretch_rpc"))]
    for path in libraries:
        command += ["--library", str(path)]
    found = str(Path(tvm_ffi.__file__).parent / "lib")
    return command, {**os.environ, "LD_LIBRARY_PATH": found, "TVM_NUM_THREADS": "1"}


def _is_frozen(pid: int) -> bool:
    """Whether no thread runs: until the first one takes SIGSTOP, the others go on."""
    states = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(text.rpartition(") ")[2][0] == "T" for text in states)


class Phone:
    """`tvm_stretch_rpc`: a phone of this machine, up in milliseconds."""

    def __init__(
        self,
        *options: str,
        key: str = "pixel",
        command: list[str] | None = None,
        offered: bool = True,
    ) -> None:
        usual, environment = native_server()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as this
        self._process = subprocess.Popen(
            [*(command or usual), "--key", key, *options],
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )
        self.port = int(self.said(r"listening on \S+:(\d+)")[1])
        if offered and "--tracker" in options:
            self.said("offered as")

    def said(self, pattern: str) -> re.Match[str]:
        """What it says on its standard error, by now or soon."""
        for _ in range(1000):
            text = os.pread(self._log.fileno(), 1 << 16, 0).decode()
            if found := re.search(pattern, text):
                return found
            assert self._process.poll() is None, f"it has ended: {text}"
            time.sleep(0.01)
        raise AssertionError(f"it never said {pattern}: {text}")

    def session(self) -> int | None:
        """The process of its session, if there is one."""
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        children = [int(word) for word in path.read_text().split()]
        return children[0] if children else None

    def signal(self, number: int) -> None:
        """To the server and to its session: freeze it, let it go on."""
        for pid in (self._process.pid, self.session()):
            if pid is not None:
                os.kill(pid, number)
                while number == signal.SIGSTOP and not _is_frozen(pid):
                    time.sleep(0.001)

    def kill(self) -> None:
        """End it at once, and its session."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()

    @property
    def is_running(self) -> bool:
        """Whether nothing has ended it."""
        return self._process.poll() is None
