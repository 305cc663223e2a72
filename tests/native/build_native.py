"""Builds the C++ tests with sanitizers; `make test` runs it, and tests that need them do."""

from __future__ import annotations

import fcntl
import functools
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "native"
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""Ninja is in the virtual environment."""


@functools.cache
def built(*programs: str) -> Path:
    """The folder of the programs, up to date; tests that run side by side share it."""
    BUILD.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DTVM_STRETCH_NATIVE_TESTS=ON"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Ninja configures again by itself if a file of CMake's changed, or one came or went.
        first = () if (BUILD / "build.ninja").exists() else (configure,)
        for command in (*first, ["cmake", "--build", BUILD, "--target", *programs]):
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return BUILD


if __name__ == "__main__":
    built("native_tests", "thread_tests")
