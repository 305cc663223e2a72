"""Builds and runs the C++ tests with sanitizers: address and undefined behaviour, then threads."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "native"
GTEST = Path("/usr/include/gtest/gtest.h")
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
ENVIRONMENT.pop("TVM_STRETCH_OPENCL_DEVICE", None)  # the driver without a device has its own
DRIVER = "*OpenCLMock*"
MAPPED = {"MOCK_OPENCL": "gpu"}
MIRROR = {**MAPPED, "TVM_STRETCH_OPENCL_MEMORY": "mirror"}

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not GTEST.exists(), reason="needs libgtest-dev"
)


@functools.cache
def built(program: str) -> Path:
    """The program, up to date; tests that run side by side share one folder."""
    BUILD.mkdir(parents=True, exist_ok=True)
    configure = ["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DTVM_STRETCH_NATIVE_TESTS=ON"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Ninja configures again by itself if a file of CMake's changed, or one came or went.
        first = () if (BUILD / "build.ninja").exists() else (configure,)
        for command in (*first, ["cmake", "--build", BUILD, "--target", program]):
            done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return BUILD / program


@pytest.mark.timeout(900)  # the first of them builds, the others wait for it
# The driver without a device (mock_opencl.cc) is a host's CPU first, then GPUs of other memory. The
# thread sanitizer is slow: of other memory it sees what meets other threads, and the rest in full.
@pytest.mark.parametrize(
    ("program", "only", "device"),
    [
        ("native_tests", "*", {}),
        ("native_tests", DRIVER, {"MOCK_OPENCL": "gpu fine-grained"}),
        ("native_tests", DRIVER, MAPPED),
        ("native_tests", DRIVER, MIRROR),
        ("thread_tests", "*", {}),
        ("thread_tests", f"{DRIVER}InstancesOnThreads*:{DRIVER}CancelledAtAnyTime*", MAPPED),
        pytest.param("thread_tests", DRIVER, MAPPED, marks=pytest.mark.full),
        pytest.param("thread_tests", DRIVER, MIRROR, marks=pytest.mark.full),
    ],
)
def test_native(program: str, only: str, device: dict[str, str]) -> None:
    done = subprocess.run(
        [built(program), f"--gtest_filter={only}"],
        env={**ENVIRONMENT, **device},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    assert "[  PASSED  ]" in done.stdout
