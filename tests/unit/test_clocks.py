"""Clocks that jump: what runs on a phone, and measures there, never asks for the time of day."""

from __future__ import annotations

import re
from pathlib import Path

import tvm_stretch

TIME_OF_DAY = re.compile(
    r"system_clock|CLOCK_REALTIME|gettimeofday|localtime|\btime\((nullptr|NULL|0|&)|\btime\.time\("
)
REMEMBERS = {"remembered.py"}
"""Verdicts of this machine have an age; one from the future counts for nothing."""


def test_only_verdicts_know_the_time_of_day() -> None:
    package = Path(tvm_stretch.__file__).parent
    sources = [p for p in package.rglob("*") if p.suffix in (".py", ".c", ".cc", ".h")]
    assert len(sources) > 100
    asking = {p.name for p in sources if TIME_OF_DAY.search(p.read_text(errors="replace"))}
    assert asking == REMEMBERS
