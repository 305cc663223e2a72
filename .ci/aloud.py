#!/usr/bin/env python3
"""Runs a command that talks too much or too little: `make setup` is never silent for ten seconds.

    .ci/aloud.py "Python packages" .venv/bin/python -m pip install ...

    Python packages: torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (181.3 MB)
    Python packages: building tvm-stretch (50 s)

It tells downloads of pip and apt with their sizes, and in any silence the present step. The rest of
the output is kept, and printed if the command fails.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import sys
import time
from collections import deque

SECONDS = 9
"""The longest silence."""

_SIZE = r"[\[(](\d+(?:[.,]\d+)? [MG]B)[\])]"
DOWNLOADS = (
    re.compile(rf"^ *Downloading (?:\S*/)?(\S+?)(?:\.metadata)? {_SIZE}"),  # pip
    re.compile(rf"^Get:\d+ \S+ \S+ \S+ (\S+) \S+ \S+ {_SIZE}"),  # apt
)
STEPS = (
    (re.compile(r"^ *Collecting (\S+)"), "finding {}"),
    (re.compile(r"^ *Downloading (?:\S*/)?(\S+)"), "fetching {}"),
    (re.compile(r"^ *(?:Building|Preparing) [^()]*? for ([\w.-]+)"), "building {}"),
    (re.compile(r"^Installing collected packages(:)"), "unpacking"),
    (re.compile(r"^(?:Get:\d+|Hit:\d+) (\S+)"), "asking {}"),
    (re.compile(r"^(?:Unpacking|Setting up) (\S+)"), "unpacking {}"),
    (re.compile(r"^\[(\d+/\d+)\]"), "compiling {}"),
)
_CUDA = re.compile(r"^torch-(?!.*\+cpu).*x86_64")
_ADVICE = (
    "this is torch with CUDA, which needs gigabytes more and is not used here; for the small one "
    "end this, and set PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
)


def told(line: str) -> str | None:
    """A download that is worth a line, and where pip looks for packages."""
    if line.startswith("Looking in indexes: "):
        return line.partition(" in ")[2]
    for pattern in DOWNLOADS:
        if found := pattern.match(line):
            advice = f": {_ADVICE}" if _CUDA.match(found[1]) else ""
            return f"{found[1]} ({found[2]}){advice}"
    return None


def step(line: str) -> str | None:
    """What a line says about the present step."""
    return next((said.format(m[1]) for pattern, said in STEPS if (m := pattern.match(line))), None)


def run(title: str, command: list[str]) -> int:
    """Run the command; the exit code is its own."""
    begin = time.monotonic()
    tail: deque[str] = deque(maxlen=200)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    selector = selectors.DefaultSelector()
    selector.register(child.stdout, selectors.EVENT_READ)
    present, spoken, rest = "starting", begin, b""
    while True:
        wait = max(0.0, spoken + SECONDS - time.monotonic())
        if selector.select(wait):
            if not (chunk := os.read(child.stdout.fileno(), 1 << 16)):
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in (line.decode(errors="replace") for line in lines):
                tail.append(line)
                present = step(line) or present
                if text := told(line):
                    print(f"{title}: {text}", flush=True)
                    spoken = time.monotonic()
        if time.monotonic() >= spoken + SECONDS:
            print(f"{title}: {present} ({time.monotonic() - begin:.0f} s)", flush=True)
            spoken = time.monotonic()
    if code := child.wait():
        print("\n".join([*tail, rest.decode(errors="replace")]), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
