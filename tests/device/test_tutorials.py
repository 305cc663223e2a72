"""The tutorials run; each checks what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new reader's: empty at first, and what one tutorial compiled, another finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def _run(tutorial: str, *args: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "tutorials" / tutorial, *map(str, args)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_onnx_to_artifact() -> None:
    assert "stock TVM sees a module of kind tvm_stretch.executor" in _run(
        "01_from_onnx_to_artifact.py"
    )


def test_two_processors(tmp_path: Path) -> None:
    text = _run("02_two_processors.py", tmp_path)
    if "expected an OpenCL device" in text:
        pytest.skip("no OpenCL device")
    assert "critical path stem" in text
    for name in ("plan.json", "trace.json", "timeline.svg"):
        assert (tmp_path / name).stat().st_size > 0
    picture = (tmp_path / "timeline.svg").read_text()
    assert picture.count('marker-end="url(#head)"') == 2  # stem -> right, right -> join


def test_two_processors_without_opencl() -> None:
    text = _run("02_two_processors.py", TVM_STRETCH_OPENCL_LIB="/no/such/driver.so")
    assert text.startswith("expected an OpenCL device, got none")


def test_writing_a_scheduler() -> None:
    text = _run("03_writing_a_scheduler.py")
    assert "refused: expected " in text
    assert "the same numbers as on one processor" in text


def test_adding_a_processor(tmp_path: Path) -> None:
    text = _run("04_adding_a_processor.py", tmp_path)
    assert "npu  gate       the NPU has no sigmoid" in text
    assert "got others: stem_conv on npu: the systolic array takes kernels up to 3x3" in text
    assert "chosen: " in text
    for name in ("plan.json", "trace.json"):
        assert (tmp_path / name).stat().st_size > 0
