"""Builds and runs the C++ tests with sanitizers: address and undefined behaviour, then threads."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GTEST = Path("/usr/include/gtest/gtest.h")
PROGRAMS = ("native_tests", "thread_tests")
# The driver without a device (mock_opencl.cc) is a host's CPU first, then GPUs of other memory.
RUNS: list[tuple[str, dict[str, str]]] = [
    *((program, {}) for program in PROGRAMS),
    ("native_tests", {"MOCK_OPENCL": "gpu fine-grained"}),
    ("thread_tests", {"MOCK_OPENCL": "gpu"}),
    ("thread_tests", {"MOCK_OPENCL": "gpu", "TVM_STRETCH_OPENCL_MEMORY": "mirror"}),
]


@pytest.mark.skipif(shutil.which("g++") is None or not GTEST.exists(), reason="needs libgtest-dev")
def test_native() -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    build = ROOT / "build" / "native"
    configure = ["cmake", "-S", ROOT, "-B", build, "-G", "Ninja", "-DTVM_STRETCH_NATIVE_TESTS=ON"]
    configure.append(f"-DPython_EXECUTABLE={sys.executable}")
    for command in (configure, ["cmake", "--build", build, "--target", *PROGRAMS]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for program, device in RUNS:
        only = ["--gtest_filter=*OpenCLMock*"] if device else []
        done = subprocess.run(
            [build / program, *only], env={**environment, **device}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
