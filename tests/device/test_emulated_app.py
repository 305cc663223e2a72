"""An app on a phone that is not there: C for aarch64 under qemu, after `make phone`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_stretch as ts
from tutorials import zoo
from tvm_stretch.run.autoload import find_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER, SYSTEM = ROOT / "build/phone/aarch64", Path("/usr/aarch64-linux-gnu")
COMPILER = "aarch64-linux-gnu-gcc"
CORTEX = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (FOLDER / "tvm_stretch_bench").exists(), reason="needs `make phone`"),
    pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="needs qemu-aarch64"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}"),
]


def emulated(*words: object) -> str:
    command = ["qemu-aarch64", "-L", SYSTEM, "-E", f"LD_LIBRARY_PATH={FOLDER}/app", *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2])
def test_an_app_and_the_benchmark_program(threads: int, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    network = zoo.build("squeezenet1_1", size=64)
    artifact, picture = tmp_path / "model.so", tmp_path / "picture"
    ts.compile(network, [CORTEX], cpu_threads=threads).export(artifact)
    x = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype("float32")
    x.tofile(picture)
    header, program = find_file("include/tvm_stretch.h"), tmp_path / "classify"
    libraries = [FOLDER / "app" / name for name in ("libtvm_stretch_runtime.so", "libtvm_ffi.so")]
    source = ROOT / "tutorials/app_in_c/main.c"
    build = [COMPILER, source, f"-I{header.parent}", *libraries, "-o", program]
    subprocess.run(build, check=True)
    best = ts.compile(network, ["llvm"])(x).argmax()
    assert emulated(program, artifact, picture).startswith(f"class {best}, ")
    table = emulated(FOLDER / "tvm_stretch_bench", artifact, "--runs", 2, "--operators")
    assert "median" in table and "100.0%" in table
    other = tmp_path / "other.so"
    ts.compile(network, ["llvm"]).export(other)
    with pytest.raises(AssertionError, match="another machine"):
        emulated(program, other)


def test_the_program_of_engines(tmp_path: Path) -> None:
    """It looks for ONNX Runtime in its own folder, where an app keeps all libraries."""
    program, code = tmp_path / "libtvm_stretch_engine.so", tmp_path / "code"
    shutil.copy(FOLDER / "tvm_stretch_engine", program)
    code.write_text("tvm_stretch.engine 1\nprovider CPUExecutionProvider\nend\n")
    with pytest.raises(AssertionError, match="expected ONNX Runtime for an engine, got none"):
        emulated(program, "describe", code)
    (tmp_path / "libonnxruntime.so").write_text("no library")
    with pytest.raises(AssertionError, match=f"{tmp_path}/libonnxruntime.so: file too short"):
        emulated(program, "describe", code)
