"""Runs the C++ tests with sanitizers: address and undefined behaviour, then threads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from native.build_native import ENVIRONMENT as BUILDING
from native.build_native import built

GTEST = Path("/usr/include/gtest/gtest.h")
ENVIRONMENT = {k: v for k, v in BUILDING.items() if k != "TVM_STRETCH_OPENCL_DEVICE"}
"""The driver without a device has its own."""
DRIVER = "*OpenCLMock*"
ALONE = "Alone/EngineRuns.TwoHundred*/1"
"""An engine that the caller's own thread calls: two hundred runs, a third of the threads' time."""
THREADED = f"{DRIVER}InstancesOnThreads*:{DRIVER}CancelledAtAnyTime*"
IMAGES = f"{DRIVER}ImagesThatTheDriverLacks*"
CAMERAS = f"{DRIVER}ACamerasPictureIsRead*"
PRIORITIES = f"{DRIVER}PrioritiesReachTheDriver*"
HINTED = {"MOCK_OPENCL": "gpu priorities"}
MAPPED = {"MOCK_OPENCL": "gpu"}
MIRROR = {**MAPPED, "TVM_STRETCH_OPENCL_MEMORY": "mirror"}

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not GTEST.exists(), reason="needs libgtest-dev"
)


@pytest.mark.timeout(900)  # the first of them builds, the others wait for it
# The driver without a device (mock_opencl.cc) is a host's CPU first, then GPUs of other memory. The
# thread sanitizer is slow: of that driver it sees what meets other threads, and the rest in full.
@pytest.mark.parametrize(
    ("program", "only", "device"),
    [
        ("native_tests", "*", {}),
        pytest.param(
            "native_tests", DRIVER, {"MOCK_OPENCL": "gpu fine-grained"}, marks=pytest.mark.full
        ),
        ("native_tests", DRIVER, MAPPED),
        pytest.param("native_tests", DRIVER, MIRROR, marks=pytest.mark.full),
        ("native_tests", IMAGES, {"MOCK_OPENCL": "gpu no-images"}),
        ("native_tests", IMAGES, {"MOCK_OPENCL": "gpu few-pixels"}),
        ("native_tests", f"{DRIVER}Traces*", {"MOCK_OPENCL": "llvm-16"}),
        ("native_tests", CAMERAS, {"MOCK_OPENCL": "gpu arm-import"}),
        ("native_tests", CAMERAS, {"MOCK_OPENCL": "gpu fine-grained qcom-import"}),
        ("native_tests", CAMERAS, {"MOCK_OPENCL": "gpu fine-grained khr-import"}),
        ("native_tests", PRIORITIES, HINTED),
        ("native_tests", PRIORITIES, {**HINTED, "TVM_STRETCH_OPENCL_PRIORITY": "low"}),
        ("native_tests", PRIORITIES, {**HINTED, "TVM_STRETCH_OPENCL_PRIORITY": "high"}),
        ("thread_tests", f"*-{DRIVER}:{ALONE}", {}),
        pytest.param("thread_tests", ALONE, {}, marks=pytest.mark.full),
        ("thread_tests", THREADED, MAPPED),
        pytest.param("thread_tests", DRIVER, {}, marks=pytest.mark.full),
        pytest.param("thread_tests", DRIVER, MAPPED, marks=pytest.mark.full),
        pytest.param("thread_tests", DRIVER, MIRROR, marks=pytest.mark.full),
    ],
)
def test_native(program: str, only: str, device: dict[str, str]) -> None:
    done = subprocess.run(
        [built(program) / program, f"--gtest_filter={only}"],
        env={**ENVIRONMENT, **device},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    assert "[  PASSED  ]" in done.stdout
