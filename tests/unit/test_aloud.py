"""`.ci/aloud.py`: downloads have sizes, silence ends, failures keep their output."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "aloud.py"
spec = importlib.util.spec_from_file_location("aloud", SCRIPT)
assert spec is not None and spec.loader is not None
aloud = importlib.util.module_from_spec(spec)
spec.loader.exec_module(aloud)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("  Downloading numpy-2.4-cp311.whl (16.9 MB)", "numpy-2.4-cp311.whl (16.9 MB)"),
        ("Downloading https://host/a/onnx-1.whl (1.2 GB)", "onnx-1.whl (1.2 GB)"),
        ("  Downloading shtab-1.13.0-py3-none-any.whl (14 kB)", None),
        (
            "Get:5 http://host/debian b/main amd64 libpocl2 amd64 3.1-3 [13.8 MB]",
            "libpocl2 (13.8 MB)",
        ),
        ("WARNING: Location 'file:///x/' is ignored: it is neither a file nor a directory.", None),
        ("Looking in indexes: https://pypi.org/simple", "indexes: https://pypi.org/simple"),
    ],
)
def test_downloads_are_told_and_mirrors_are_not(line: str, text: str | None) -> None:
    assert aloud.told(line) == text


def test_the_large_torch_is_told() -> None:
    name = "torch-2.13.0{}-cp311-cp311-manylinux_2_28_x86_64.whl"
    large = aloud.told(f"Downloading {name.format('')} (800.0 MB)")
    small = aloud.told(f"Downloading {name.format('+cpu')} (180.0 MB)")
    assert "whl/cpu" in large and small == f"{name.format('+cpu')} (180.0 MB)"


def test_silence_ends_with_the_present_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(aloud, "SECONDS", 0.05)
    code = (
        "import sys, time; print('  Building editable for net (pyproject.toml)', flush=True);"
        "time.sleep(0.5); print('noise'); sys.exit(3)"
    )
    assert aloud.run("title", [sys.executable, "-c", code]) == 3
    said = capsys.readouterr()
    assert "title: building net (" in said.out and "noise" not in said.out
    assert said.err.splitlines()[:2] == ["  Building editable for net (pyproject.toml)", "noise"]
