"""Compiling and exporting while the process is killed, or Ctrl-C is pressed: nothing is lost.

(Measuring: test_measure_faults.py. Programs for OpenCL: device/test_opencl_runtime_process.py.)
"""

from __future__ import annotations

import errno
import gc
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers import fresh_process
from helpers.mutations import interruptions
from helpers.small_models import answer, compiled

import tvm_stretch as ts
import tvm_stretch.run.asynchronous
from tvm_stretch.base import progress
from tvm_stretch.base.errors import ArtifactError
from tvm_stretch.base.files import held, remove_abandoned
from tvm_stretch.make.code import kernel_cache as caching

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import signal, sys
sys.path[:0] = {paths}
import test_interrupted as tests
signal.signal(signal.SIGINT, signal.default_int_handler)
print("go", flush=True)
try:
    while True:
        for size in range({first}, {first} + 100):
            tests.compiled(size).export({path!r})
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", flush=True)
"""


@interruptions()
def test_interrupted_at_any_point(
    how: signal.Signals, piece: int, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was exported is whole, the cache is right, and Ctrl-C is a KeyboardInterrupt."""
    cache, path = tmp_path / "cache", tmp_path / "model.so"
    paths = [str(ROOT / "tests" / "unit"), str(ROOT / "tests")]
    dice = random.Random(piece)
    for number in range(rounds):
        script = SCRIPT.format(paths=paths, path=str(path), first=8 + number)
        with fresh_process.start(script, TVM_STRETCH_CACHE_DIR=str(cache)) as process:
            while "go" not in process.text():
                time.sleep(0.01)
            time.sleep(dice.random())
            process.kill() if how == signal.SIGKILL else process.interrupt()
            status, text = process.wait()
        assert status == (-how if how == signal.SIGKILL else 0), text
        assert how == signal.SIGKILL or "interrupted\n" in text, text
        if how == signal.SIGINT:
            assert {found.name for found in tmp_path.iterdir()} <= {"cache", "model.so"}
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    if path.exists():
        exported = ts.load(path)
        size = exported.inputs[0].shape[2]
        np.testing.assert_array_equal(answer(exported), answer(compiled(size)))
    first = answer(compiled(8))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(cache))
    caching._cache_of.cache_clear()
    np.testing.assert_array_equal(answer(compiled(8)), first)


def test_what_a_killed_export_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    old, new = tmp_path / ".model.so.killed", tmp_path / ".model.so.running"
    for folder in (old, new):
        folder.mkdir()
        (folder / "weights.bin").write_bytes(b"half")
    os.utime(new, (0, 0))  # by a clock that is behind, or was
    with held(lambda: (new, os.open(new, os.O_RDONLY))):
        compiled(8).export(path)
    assert sorted(tmp_path.iterdir()) == [new, path]


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_is_removed_before_it_is_held_is_made_anew(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    names = iter(["first", "second"])

    def made() -> tuple[Path, int]:
        make(path := tmp_path / next(names))
        handle = os.open(path, os.O_RDONLY)
        if path.name == "first":
            remove_abandoned(path)  # as another process that starts just then
        return path, handle

    with held(made) as (found, _):
        assert found == tmp_path / "second"
        remove_abandoned(found)
        assert found.exists()
    remove_abandoned(found)
    assert not found.exists()


def test_ctrl_c_while_modules_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the end: onnx, interrupted in its C++, would end the process."""
    (tmp_path / "slow.py").write_text("import os\nos.kill(os.getpid(), 2)\nanswer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ts._LAZY, "answer", "slow")
    usual = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        _ = ts.answer
    assert sys.modules.pop("slow").answer == 42
    assert signal.getsignal(signal.SIGINT) is usual


@pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.full)])
def test_ctrl_c_at_each_step_of_a_compile(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks, handlers and contexts are as before, and what is compiled next is right."""
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    usual, real = signal.getsignal(signal.SIGINT), progress.step
    context = str(tvm.transform.PassContext.current())
    steps = Steps()
    monkeypatch.setattr(progress, "step", lambda: (steps.take(), real()))
    expected = answer(compiled(9))
    for number in itertools.count(1, every):
        caching._cache_of.cache_clear()
        steps.left = number
        try:
            compiled(10 + number)
        except KeyboardInterrupt:
            assert steps.left == 0
        if steps.left:
            break
        assert signal.getsignal(signal.SIGINT) is usual and gc.isenabled()
        assert str(tvm.transform.PassContext.current()) == context
        with ThreadPoolExecutor(1) as pool:  # another thread finds no lock held
            model = pool.submit(compiled, 9).result(timeout=60)
        np.testing.assert_array_equal(answer(model), expected)
    steps.left = 0  # modules that were imported meanwhile keep it
    assert number > every, "Ctrl-C came"
    assert list(tmp_path.rglob("*.tmp")) == []


class Steps:
    """Presses Ctrl-C at the last of a number of steps; never if there are none left."""

    left = 0

    def take(self) -> None:
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_pass_is_no_error_of_a_compiler() -> None:
    def pressed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    network = tvm.IRModule()
    with pytest.raises(KeyboardInterrupt):
        tvm.transform.module_pass(pressed, opt_level=0, name="Pressed")(network)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that cannot be written only costs time; a failed export leaves what was there."""
    path = tmp_path / "model.so"
    path.write_text("old")

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    caching._cache_of.cache_clear()
    monkeypatch.setattr(os, "fsync", full)
    model = compiled(8)
    with pytest.raises(
        ArtifactError, match=r"^expected a place to write the artifact to, got no space"
    ):
        model.export(path)
    assert path.read_text() == "old"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["cache", "model.so"]
    assert list((tmp_path / "cache").rglob("*.tmp")) == []
