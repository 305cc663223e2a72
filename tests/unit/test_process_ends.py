"""Runs while a process ends, and in its forks."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module
from helpers.small_models import scaled_model
from tvm import relax

import tvm_stretch as ts

TESTS = Path(__file__).resolve().parents[1]
RUNS = """
import atexit, sys, threading, time
import tvm_stretch as ts
from helpers.small_models import build, random_input, scaled_reference
x = random_input()
model = ts.load(sys.argv[1])
model(x)
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "model.so"
    scaled_model().export(path)
    return path


def interpreter(code: str, artifact: Path) -> subprocess.CompletedProcess[str]:
    """An interpreter of its own, which ends as all of them do."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), artifact],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.full
def test_daemon_threads_in_runs(artifact: Path) -> None:
    """Some in a call, some waiting for their turn; what is registered with atexit still runs."""
    code = """
    def last():
        assert abs(model(x) - scaled_reference(x)).max() < 1e-5
        try:
            model.run_async(x)
        except ts.RunError as error:
            print(error)

    def run():
        while True:
            model(x)

    atexit.register(last)
    for _ in range(6):
        threading.Thread(target=run, daemon=True).start()
    time.sleep(0.3)
    """
    done = interpreter(RUNS + textwrap.dedent(code), artifact)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("expected an interpreter that goes on for run_async, got: cannot")


def test_first_used_in_atexit(artifact: Path) -> None:
    code = """
    import atexit, sys
    import tvm_stretch as ts

    def last():
        try:
            print(ts.load(sys.argv[1]))
        except ts.InstallError as error:
            print(error)

    atexit.register(last)
    """
    done = interpreter(code, artifact)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.startswith(("Model(", "expected the first use of tvm_stretch before the "))


@pytest.mark.parametrize("threads", [1, 2])
def test_forks_run_models_of_several_threads(threads: int, tmp_path: Path) -> None:
    """Theirs, and those of the process that they are forks of; TVM's threads are not there."""
    mod = module(lambda x: relax.op.nn.softmax(relax.op.nn.relu(x)), (64, 640))
    model = ts.compile(mod, TARGET, cpu_threads=threads)
    model.export(path := tmp_path / "model.so")
    x = np.random.default_rng(0).standard_normal((64, 640)).astype("float32")
    expected = model(x)

    def check() -> None:
        own = ts.load(path)
        for each in (own, model, own.create_instance(), copy.deepcopy(model)):
            for _ in range(3):
                np.testing.assert_array_equal(each(x), expected)
            np.testing.assert_array_equal(each.run_async(x).result(60), expected)
            assert each.timeline(repeat=1).duration > 0
        with pytest.raises(ts.InputError, match="for input 'x0'"):
            own(x[:1])

    def check_and_fork() -> None:
        check()
        run_in_fork(check)

    run_in_fork(check_and_fork)
    np.testing.assert_array_equal(model(x), expected)


def run_in_fork(action: Callable[[], None]) -> None:
    process = multiprocessing.get_context("fork").Process(target=action)
    process.start()
    process.join(60)
    assert process.exitcode == 0
