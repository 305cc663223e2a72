"""What several phones measure in the time of one: a fleet of servers of this machine.

```
python -m benchmarks.fleet [--phones 1 2] [--seconds 60] [--rounds 3]
```
Each fleet starts without anything measured or compiled. The servers and the compiling process share
this machine's cores, so this is the worst case: phones bring cores of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tvm
import tvm_ffi

import tvm_stretch as ts
from tvm_stretch.measuring.dataset import Dataset
from tvm_stretch.runtime.autoload import find_file

_KEY = "phone"


@contextlib.contextmanager
def _started(command: list[str], ready: str) -> Iterator[str]:
    """While a process runs: what it said when it was ready."""
    libraries = str(Path(tvm_ffi.__file__).parent / "lib")
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "TVM_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stderr=log, env=environment, start_new_session=True)
        try:
            while not (found := re.search(ready, os.pread(log.fileno(), 9999, 0).decode())):
                if process.poll() is not None:
                    raise RuntimeError(f"{command[0]} has ended")
                time.sleep(0.02)
            yield found[1]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def farm(phones: int) -> Iterator[ts.Fleet]:
    """A tracker and so many servers of this machine."""
    module = [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host=127.0.0.1", "--port-end=9290"]
    libraries = (
        Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so",
        find_file("lib/libtvm_stretch_runtime.so"),
    )
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(_started(module, r"bind to 127.0.0.1:(\d+)"))
        address = f"127.0.0.1:{port}"
        server = [str(find_file("bin/tvm_stretch_rpc")), "--tracker", address, "--key", _KEY]
        for library in libraries:
            server += ["--library", str(library)]
        for _ in range(phones):
            stack.enter_context(_started(server, r"offered (as) "))
        yield ts.Fleet(address, [_KEY])


def measured(phones: int, seconds: float) -> tuple[int, int, float]:
    """Batches and kernels that so many phones measure, and how many of these were undisturbed."""
    with tempfile.TemporaryDirectory() as folder, farm(phones) as fleet:
        os.environ["TVM_STRETCH_CACHE_DIR"] = folder
        ts.measure("llvm", device=fleet, budget=seconds, folder=folder, cpu_threads=1)
        rows = Dataset.open(Path(folder, _KEY, "cpu.jsonl")).rows
    return len({row.batch for row in rows}), len(rows), sum(r.quiet for r in rows) / len(rows)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--phones", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found: dict[int, list[int]] = {phones: [] for phones in args.phones}
    print("| phones | batches | kernels | undisturbed | time of one's kernels |\n|" + " --- |" * 5)
    for _ in range(args.rounds):
        for phones in args.phones:
            batches, kernels, quiet = measured(phones, args.seconds)
            found[phones].append(kernels)
            took = statistics.median(found[args.phones[0]]) / kernels
            print(f"| {phones} | {batches} | {kernels} | {100 * quiet:.0f} % | {took:.2f} |")


if __name__ == "__main__":
    main()
