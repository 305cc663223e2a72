"""The throughput of several phones: a fleet of servers of this machine.

```
python -m benchmarks.fleet [--phones 1 2] [--seconds 60] [--rounds 3]
python -m benchmarks.fleet --elsewhere 3    scripted phones, which take 3 s for each batch
```
Each fleet starts without anything measured or compiled. Servers here share cores with what compiles
for them, so nothing is compiled ahead; scripted phones use none of this machine's cores. The last
column says of how many of its kernels the model predicts the same as the first one, within an
interval of either.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi

import tvm_stretch as ts
from benchmarks.commands import options
from tvm_stretch.phone.fleet import Batches, Crew, carry_out
from tvm_stretch.plan.cost.measured_model import MeasuredModel
from tvm_stretch.plan.measuring.campaign import Campaign, open_dataset
from tvm_stretch.plan.measuring.dataset import Dataset, Row
from tvm_stretch.plan.measuring.workshop import Prepared, Workshop
from tvm_stretch.run.autoload import find_file
from tvm_stretch.targets.processors import make_processors

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
def farm(phones: int) -> Iterator[ts.tune.Fleet]:
    """Context with a tracker and ``phones`` servers on this machine."""
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
        yield ts.tune.Fleet(address, [_KEY])


@dataclass(frozen=True)
class Campaigned:
    """The measurements of a fleet."""

    rows: Sequence[Row]
    model: MeasuredModel
    idle: float

    def describe(self) -> str:
        """Batches, kernels, which share of these undisturbed, and how idle the cores were."""
        rows = self.rows
        batches, quiet = len({row.batch for row in rows}), sum(r.quiet for r in rows) / len(rows)
        return f"{batches} | {len(rows)} | {quiet:.0%} | {self.idle:.0%}"

    def agrees_with(self, other: Campaigned) -> float:
        """The share of its kernels that both models predict within each other's interval."""
        kernels = [row.features for row in self.rows]
        pairs = zip(self.model.predict_all(kernels), other.model.predict_all(kernels), strict=True)
        both = [
            a.low <= b.nanoseconds <= a.high or b.low <= a.nanoseconds <= b.high for a, b in pairs
        ]
        return sum(both) / len(both)


def _idle_seconds() -> float:
    """Idle seconds of all cores since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def measured(phones: int, seconds: float) -> Campaigned:
    """The measurements of ``phones`` phones in the given time."""
    with tempfile.TemporaryDirectory() as folder, farm(phones) as fleet:
        os.environ["TVM_STRETCH_CACHE_DIR"] = folder
        began, idle = time.monotonic(), _idle_seconds()
        models = ts.tune.measure("llvm", device=fleet, budget=seconds, cache=folder, cpu_threads=1)
        taken = (time.monotonic() - began) * (os.cpu_count() or 1)
        rows = Dataset.open(Path(folder, _KEY, "cpu.jsonl")).rows
    return Campaigned(rows, models[f"{_KEY}/cpu"], (_idle_seconds() - idle) / taken)


class Elsewhere:
    """A phone that takes as long as phones do, and none of this machine's cores; a `Post`."""

    def __init__(self, campaign: Campaign, seconds: float) -> None:
        self._campaign, self._seconds = campaign, seconds

    def describe(self) -> str:
        """For messages."""
        return f"{self._seconds:g} s a batch"

    def measure(self, number: int | Prepared, _end: float) -> Any:
        """Measure a batch for the crew, or prepare one for the campaign."""
        if isinstance(number, int):
            return self._campaign.measure_batch(number, self, 0.0)  # type: ignore[arg-type]
        time.sleep(self._seconds)
        return []

    def is_hot(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        """Do nothing."""


def batches_elsewhere(phones: int, seconds: float, each: float, ahead: int) -> int:
    """The number of batches that scripted phones measure, with ``ahead`` batches compiled ahead."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TVM_STRETCH_CACHE_DIR"] = folder
        (host,), _ = make_processors("llvm", 1)
        campaign = Campaign(Workshop([host]), open_dataset(Path(folder), host), random.Random(0))
        crew = Crew(_KEY, lambda: Elsewhere(campaign, each), Batches(0))  # type: ignore[arg-type,return-value]
        with campaign.compiling_ahead(ahead):
            carry_out([crew], lambda: {_KEY: phones}, seconds)
    return crew.measured


def main() -> None:
    """Run from the command line."""
    args = options(
        __doc__,
        None,
        ("--phones", [1, 2]),
        ("--seconds", 60.0),
        ("--rounds", 3),
        ("--elsewhere", float, "scripted phones, S a batch"),
    )
    if args.elsewhere:
        print("| phones | batches, compiled when asked for | compiled ahead |\n|" + " --- |" * 3)
        for phones in args.phones * args.rounds:
            found = [
                batches_elsewhere(phones, args.seconds, args.elsewhere, ahead) for ahead in (0, 2)
            ]
            print(f"| {phones} | {found[0]} | {found[1]} |", flush=True)
        return
    print(
        "| phones | batches | kernels | undisturbed | cores idle | as the first |\n|" + " --- |" * 6
    )
    first = None
    for phones in args.phones * args.rounds:
        found = measured(phones, args.seconds)
        first = first or found
        alike = found.agrees_with(first)
        print(f"| {phones} | {found.describe()} | {alike:.0%} |", flush=True)


if __name__ == "__main__":
    main()
