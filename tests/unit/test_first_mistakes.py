"""What a newcomer meets first: the package's names, what it loads, targets that are misspelt."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tvm_stretch.targets.processors import make_processors

import tvm_stretch as ts


def test_the_package_lists_its_names_and_version() -> None:
    assert set(dir(ts)) == {*ts.__all__, "__version__"}
    assert all(getattr(ts, name) is not None for name in dir(ts))
    assert ts.__version__.count(".") >= 2


def test_what_compiles_loads_nothing_that_only_learning_needs() -> None:
    code = (
        "import sys, tvm_stretch, tvm_stretch.compiler\n"
        "print(*{'xgboost', 'scipy', 'onnxslim'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(("given", "meant"), [("openCL", "opencl"), ("LLVM", "llvm"), ("ocl", "")])
def test_misspelt_targets(given: str, meant: str) -> None:
    with pytest.raises(ts.TargetError, match=f"got '{given}'.*{meant}"):
        make_processors([given], 1)


@pytest.mark.parametrize(("limit", "threads"), [("1", 1), ("many", None), ("100000", None)])
def test_tvm_num_threads_is_obeyed(
    limit: str, threads: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TVM_NUM_THREADS")
    every = make_processors("llvm", None)[0][0].machine.threads
    monkeypatch.setenv("TVM_NUM_THREADS", limit)
    assert make_processors("llvm", None)[0][0].machine.threads == (threads or every)
