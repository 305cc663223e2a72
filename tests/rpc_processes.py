"""TVM's RPC servers and trackers in processes of their own, on ports that they find themselves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time


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
