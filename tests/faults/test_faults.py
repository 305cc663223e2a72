"""Every step fails in turn, as SQLite is tested: one clear error or the right answer.

`walk.py` walks, and says how; here are a sample by default and all of it with `make test-full`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from faults.walk import VARIABLES, Control, injector, row, watched
from helpers.c_app import built_app
from helpers.cpu_targets import TARGET
from helpers.relax_helpers import module, random_const
from native.build_native import built
from tvm import relax

import tvm_stretch as ts

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

FILES = ("write", "write+", "rename", "read")
WALKS = [
    *(("cpu", kind) for kind in ("allocation", *FILES)),
    *(("opencl", kind) for kind in ("allocation", "opencl", *FILES)),
    *((name, kind) for name in ("dsp", "engine") for kind in ("allocation", "command", "silence")),
    *(("states", kind) for kind in ("allocation", *FILES)),
    *((name, "allocation") for name in ("lengths", "group")),
    *((name, "opencl") for name in VARIABLES),
    ("phone", "message"),
]
ALLOCATION = 1
"""As injector.cc numbers the kinds."""


def check(name: str, kind: str, every: int) -> None:
    outcomes = watched(name, kind, every)
    counts = row(name, kind, outcomes)
    assert counts["bad"] == 0, [one for one in outcomes if "bad" in one][:5]
    assert counts["steps"] > 0 and counts["grown"]["files"] <= 2, counts
    assert counts["grown"]["threads"] <= 2 and counts["grown"]["kilobytes"] < 64_000, counts
    print(counts)


@pytest.mark.full
@pytest.mark.parametrize(("name", "kind"), WALKS)
def test_every_step_of_a_kind(name: str, kind: str) -> None:
    check(name, kind, 1)


def test_some_allocations() -> None:
    """Four CPU seconds: a process that begins with the library has to import all by itself."""
    check("cpu", "allocation", 97)


SHAPE = (1, 8, 9, 8)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_app(tmp_path_factory.mktemp("app"))


def walked(app: Path, folder: Path, **variables: str) -> list[int]:
    """How many steps an app took in which each allocation failed, once and from then on."""
    weight = random_const(8, 8, 3, 3)
    mod = module(lambda x: relax.op.nn.relu(relax.op.nn.conv2d(x, weight, padding=1)), SHAPE)
    model = ts.compile(mod, TARGET, cpu_threads=1)
    model.export(folder / "model.so")
    x = np.ones(SHAPE, "float32")
    x.tofile(folder / "input")
    model(x).tofile(folder / "output")
    Control(folder / "control")
    done = subprocess.run(
        [app, folder / "model.so", "faults", folder / "input", folder / "output"],
        env={
            **os.environ,
            "FAULTS": str(folder / "control"),
            "FAULTS_KIND": str(ALLOCATION),
            **variables,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return [int(line) for line in done.stdout.split()]


def test_an_app_in_c(app: Path, tmp_path: Path) -> None:
    once, lasting = walked(app, tmp_path, LD_PRELOAD=str(injector()))
    assert once > 100 and lasting > 100


@pytest.mark.full
@pytest.mark.timeout(900)
def test_an_app_in_c_loses_nothing(tmp_path: Path) -> None:
    """Under the address sanitizer, which looks for leaks in the end."""
    once, lasting = walked(
        built("checked_app") / "checked_app",
        tmp_path,
        LD_PRELOAD=str(injector(sanitized=True)),
        FAULTS_PROGRAM="checked_app",
        ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=1",
    )
    assert once > 100 and lasting > 100
