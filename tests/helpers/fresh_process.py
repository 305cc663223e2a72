"""Processes that have imported TVM and this package, and done nothing else yet.

    run("print(os.environ['A'])", A="1")        -> "1"

Importing takes two seconds, so one process does it, and is forked for each piece of code. What a
library reads from its environment when it is first used, it reads in the fork.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parents[1])


def run(code: str, **environment: str) -> str:
    """What the code prints; it must not fail."""
    with start(code, **environment) as process:
        status, text = process.wait()
    assert status == 0, text
    return text.strip()


class Fork:
    """A process that runs."""

    def __init__(self, server: subprocess.Popen[str], output: Path) -> None:
        self._server = server
        self._output = output
        self._waited = False
        self.pid = int(_line(server))

    def text(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):  # it has ended, and `wait` says how
            os.kill(self.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Press Ctrl-C; again after a while, because Python loses it in a destructor."""
        with contextlib.suppress(ProcessLookupError):  # it has ended
            while True:
                os.kill(self.pid, signal.SIGINT)
                for _ in range(500):
                    time.sleep(0.02)
                    os.kill(self.pid, 0)

    def wait(self) -> tuple[int, str]:
        """Its exit status, and what it printed."""
        status = os.waitstatus_to_exitcode(int(_line(self._server)))
        self._waited = True
        return status, self.text()

    def close(self) -> None:
        """Leave nothing behind."""
        if not self._waited:
            self.kill()
            self.wait()


@contextmanager
def start(code: str, **environment: str) -> Iterator[Fork]:
    """Run the code; what is printed can be read meanwhile. One process at a time."""
    server = _server()
    assert server.stdin is not None
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        output.touch()
        order = {
            "code": textwrap.dedent(code),
            "environment": environment,
            "output": str(output),
        }
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        fork = Fork(server, output)
        try:
            yield fork
        finally:
            fork.close()


@functools.cache
def _server() -> subprocess.Popen[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TVM_STRETCH_OPENCL")}
    path = os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-m", "helpers.fresh_process"],
        env={**inherited, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.kill)
    return server


def _line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    line = server.stdout.readline()
    assert line, "the process that is forked has ended"
    return line


def _serve() -> None:
    """Fork for each line of the standard input; print its number, then its exit status."""
    from helpers import opencl_graphs  # noqa: F401  brings in TVM and the package

    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _work(order)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


def _work(order: dict[str, object]) -> None:
    output = os.open(str(order["output"]), os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    environment = order["environment"]
    assert isinstance(environment, dict)
    os.environ.update(environment)
    status = 0
    try:
        exec(compile(str(order["code"]), "<code>", "exec"), {"os": os})
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
        print(error.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
