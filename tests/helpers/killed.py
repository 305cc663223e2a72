"""Processes of processors that end while a run needs them."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future

import numpy as np

import tvm_stretch as ts


def process_of(model: ts.Model, processor: str) -> int:
    """A processor whose process does not run has -1, which would be every process."""
    number = int(model.health()[processor]["pid"])
    assert number > 0
    return number


def killed_while_it_runs(model: ts.Model, processor: str, x: np.ndarray) -> Future[np.ndarray]:
    """A run whose process is stopped when it begins, and killed before it answers.

    A kill alone is a race: the process may answer before it dies, or be found dead and started
    anew before the run.
    """
    process = process_of(model, processor)
    os.kill(process, signal.SIGSTOP)
    future = model.run_async(x)
    time.sleep(0.05)
    os.kill(process, signal.SIGKILL)
    return future
