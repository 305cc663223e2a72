"""The DSP of a phone, called by FastRPC: a fake of Qualcomm's library, and emulated DSPs.

The library that runs there is the one that a phone would load: tests/fastrpc/shell.c refuses what
the loader of a chip would refuse.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_stretch.targets.hexagon.code.dsp_code import has_zig

pytestmark = [
    pytest.mark.skipif(shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon"),
    pytest.mark.skipif(not has_zig(), reason="needs ziglang"),
]
_HERE = Path(__file__).parent


def run_tests(*chosen: str, more: tuple[str, ...] = ()) -> None:
    """Run tests of this folder in a process whose Hexagon is called by FastRPC."""
    environment = {**os.environ, "TVM_STRETCH_TEST_FASTRPC": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *more]
    done = subprocess.run(
        [*command, *(str(_HERE / test) for test in chosen)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_networks() -> None:
    """A sample; `make test-full` runs all tests of the emulated DSP."""
    names = ("a_whole_network", "beside_the_cpu_and_opencl", "packets_of_kernels")
    run_tests(*(f"test_hexagon.py::test_{name}" for name in names))


@pytest.mark.full
def test_all_that_the_emulated_dsp_is_tested_by() -> None:
    run_tests("test_hexagon.py", "test_hexagon_tables.py", "test_three_processors.py")
