"""Clocks that jump: what runs on a phone, and measures there, never asks for the time of day."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_stretch
from tvm_stretch import passes, targets

TIME_OF_DAY = re.compile(
    r"system_clock|CLOCK_REALTIME|gettimeofday|localtime|gmtime|TIME_UTC|\bftime\("
    r"|\btime\((nullptr|NULL|0|&)|\btime\.time(_ns)?\(|\bdatetime\b|from time import"
)
REMEMBERS = {"remembered.py"}
"""Verdicts of this machine have an age; one from the future counts for nothing."""

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = """
import signal, sys, time
import numpy as np
from helpers.rpc_processes import Phone, Tracker
from helpers.small_models import random_input, scaled_model, scaled_reference
import tvm_stretch as ts
from tvm_stretch.base.errors import DeviceError

looks = [time.time() for _ in range(6)]
assert max(looks) - min(looks) > 86400, looks
tracker = Tracker()
phone = Phone("--tracker", tracker.address)
try:
    device = ts.connect(tracker.address, "pixel", timeout=1, wait=5)
    model = scaled_model()
    there = device.load(model)
    x = random_input()
    for _ in range(20):
        np.testing.assert_allclose(there(x), scaled_reference(x), rtol=1e-5)
    times = there.benchmark()
    assert 0 < min(times.samples) <= max(times.samples) < 1, times
    timeline = there.timeline()
    assert timeline.regions
    for region in timeline.regions:
        assert 0 <= region.start <= region.end < 10**9, region
    assert there.run_async(x).result(5) is not None
    phone.signal(signal.SIGSTOP)
    frozen = time.monotonic()
    try:
        there(x)
        raise AssertionError("expected an error of a server that is frozen")
    except DeviceError:
        pass
    assert 0.8 < time.monotonic() - frozen < 1 + 5
    print("fine")
finally:
    phone.kill()
    tracker.kill()
"""


def test_only_verdicts_know_the_time_of_day() -> None:
    rooms = [Path(room.__file__ or "").parent for room in (tvm_stretch, passes, targets)]
    found = (path for room in rooms for path in room.rglob("*"))
    sources = [path for path in found if path.suffix in (".py", ".c", ".cc", ".h")]
    assert {"cpu.py", "split_outputs.py", "main.cc", "session.cc"} <= {p.name for p in sources}
    asking = {p.name for p in sources if TIME_OF_DAY.search(p.read_text(errors="replace"))}
    assert asking == REMEMBERS


@pytest.mark.full
def test_the_clocks_of_a_phone_and_of_its_client_jump(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "jumping_clock.so"
    source = TESTS / "native" / "jumping_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "LD_PRELOAD": str(library)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "fine\n", done.stderr
