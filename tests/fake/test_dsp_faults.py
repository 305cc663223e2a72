"""A DSP that may die at any time: right answers or clear errors, in time, nothing left behind."""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import struct
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from helpers.dsp_protocol import ANSWER, COMMAND
from helpers.dsp_targets import answer, compiled, control_file, picture

import tvm_stretch as ts

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

DEADLINE_MS = 150
LONGEST = 15.0
"""Seconds of a run on a busy machine: two deadlines and a start, many times over."""


def signalled(model: ts.Model, *numbers: int) -> None:
    """The signals, 20 ms apart."""
    pid = model.health()["dsp"]["pid"]
    for count, number in enumerate(numbers):
        if count:
            time.sleep(0.02)
        if pid > 0:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return


def scribbled(place: int, value: bytes) -> None:
    with suppress(LookupError), control_file() as memory:
        memory[place : place + len(value)] = value


class Campaign:
    """Runs of one model, each with a fault at a random point."""

    def __init__(self, flag: Path, spare: bool, dice: random.Random) -> None:
        script = f'test ! -e "{flag}" || exit 9; exec "$0" "$@"'
        command = ("/bin/sh", "-c", script)
        self.model = compiled(spare=spare, command=command, deadline_ms=DEADLINE_MS)
        self.flag, self.dice = flag, dice
        self.ended: Counter[str] = Counter()
        self.pids: set[int] = set()

    def fault(self) -> Callable[[], None]:
        dice, model = self.dice, self.model
        word = struct.pack("<I", dice.getrandbits(32))
        return dice.choice(
            [
                lambda: signalled(model, signal.SIGKILL),
                lambda: signalled(model, signal.SIGSTOP),
                lambda: signalled(model, signal.SIGSTOP, signal.SIGCONT),  # slow
                lambda: scribbled(ANSWER + 4 * dice.randrange(4), word),
                lambda: scribbled(COMMAND + 4 * dice.randrange(5), word),
                self.refuse,
            ]
        )

    def refuse(self) -> None:
        """It dies and does not start for a while."""
        self.flag.touch()
        signalled(self.model, signal.SIGKILL)
        threading.Timer(0.05, lambda: self.flag.unlink(missing_ok=True)).start()

    def run(self, seed: int) -> None:
        x, fault, delay = picture(seed), self.fault(), self.dice.random() * 0.0004
        state = self.model.health()["dsp"]
        time.sleep(state["pause_ms"] / 1000)
        self.pids.add(state["pid"])
        start = time.monotonic()
        future = self.model.run_async(x)
        time.sleep(delay)
        fault()
        try:
            got = future.result(timeout=4 * LONGEST)
        except ts.DeviceError as error:
            assert not self.model.graph.spare, error
            assert "expected region" in str(error)
            self.ended["error"] += 1
        else:
            np.testing.assert_array_equal(got, answer(x))
            self.ended["answer"] += 1
        assert time.monotonic() - start < LONGEST


def campaign(folder: Path, runs: int, seed: int) -> Counter[str]:
    """As many runs with a spare as without."""
    dice = random.Random(seed)
    before = set(Path("/proc/self/fd").iterdir())
    both = [Campaign(folder / f"flag{spare}", spare, dice) for spare in (True, False)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for number in range(runs // 2):
            for one in both:
                one.run(number)
    ended, pids = both[0].ended + both[1].ended, both[0].pids | both[1].pids
    assert both[0].ended == {"answer": runs // 2}, "with a spare there is always an answer"
    time.sleep(0.1)  # timers
    states = [one.model.health()["dsp"] for one in both]
    pids |= {state["pid"] for state in states}
    assert sum(state["failures"] for state in states) > runs // 4
    del both, one
    gc.collect()
    give_up = time.monotonic() + LONGEST
    while left := [pid for pid in pids if pid > 0 and Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < give_up, f"processes left behind: {left}"
        time.sleep(0.01)
    assert len(set(Path("/proc/self/fd").iterdir()) - before) < 8, "files left open"
    print(dict(ended), "failures seen:", sum(state["failures"] for state in states))
    return ended


def test_a_few_faults(tmp_path: Path) -> None:
    assert sum(campaign(tmp_path, 30, seed=0).values()) == 30


@pytest.mark.full
def test_a_thousand_faults(tmp_path: Path) -> None:
    ended = campaign(tmp_path, 1000, seed=int(time.time()))
    assert sum(ended.values()) == 1000
