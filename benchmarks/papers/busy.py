"""How busy the device of OpenCL is while something runs: a GPU of NVIDIA, or the host's last core.

with busy() as found:
    ...
found[0]  # percent of the time
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

_TICKS = os.sysconf("SC_CLK_TCK")  # of a second
_ASK = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100")

Meter: TypeAlias = Callable[[], Callable[[], float]]
"""Begins to watch, and returns a function that ends it and returns the percentage."""


def share_of_gpu() -> Callable[[], float]:
    """The mean of what NVIDIA's driver reports: percent of the time in which a kernel ran."""
    process = subprocess.Popen(_ASK, stdout=subprocess.PIPE, text=True)

    def end() -> float:
        process.terminate()
        words = process.communicate()[0].split()
        return fmean(float(word) for word in words if word.isdigit())

    return end


def share_of_core() -> Callable[[], float]:
    """The last core that this process may use, on which PoCL draws."""
    core = f"cpu{max(os.sched_getaffinity(0))}"
    before = seconds_of(core)

    def end() -> float:
        busy, idle = (now - then for now, then in zip(seconds_of(core), before, strict=True))
        return 100 * busy / max(busy + idle, 1e-9)

    return end


def seconds_of(core: str = "cpu") -> tuple[float, float]:
    """How long a core, or all together, were busy and idle since the machine started."""
    lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    ticks = next(
        [int(x) for x in rest[:8]] for name, *rest in map(str.split, lines) if name == core
    )
    idle = ticks[3] + ticks[4]  # and waiting for a disk
    return (sum(ticks) - idle) / _TICKS, idle / _TICKS


@contextlib.contextmanager
def busy(meter: Meter | None = None) -> Iterator[list[float]]:
    """Context whose list has the percentage afterwards."""
    end = (meter or (share_of_gpu if shutil.which("nvidia-smi") else share_of_core))()
    found: list[float] = []
    yield found
    found.append(end())
