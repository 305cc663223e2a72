"""`tvm-stretch doctor`: every line is true of the machine that the test describes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tvm_stretch.api import doctor
from tvm_stretch.api.cli import main
from tvm_stretch.base.errors import TargetError
from tvm_stretch.run.autoload import load_native_library

load_native_library()


def findings(what: str) -> list[tuple[str, str]]:
    return [(one.state, one.found) for one in doctor.examine() if one.what == what]


def test_it_knows_the_processors_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    works = {one["what"] for one in told if one["state"] == "ok"}
    assert {kind for kind, found in listed.items() if "absent" not in found} <= works
    assert {one["state"] for one in told} <= {"ok", "note", "missing"}


def test_what_is_missing_is_told_with_its_cost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ANDROID_HOME", "ANDROID_NDK_HOME"):
        monkeypatch.delenv(name, raising=False)
    ((state, text),) = findings("adb")
    assert state == "missing" and "install Android's platform tools" in text and "MB" in text
    ((state, text),) = findings("NDK")
    assert state == "missing" and "set ANDROID_NDK_HOME" in text
    monkeypatch.setattr(doctor, "processors_here", lambda: [("npu", TargetError("expected it"))])
    assert findings("npu") == [("missing", "expected it; 98 MB")]


def test_what_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    ((state, text),) = findings("NDK")
    assert state == "missing" and f"got '{tmp_path}' without" in text
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernel").write_bytes(bytes(3_000_000))
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(cache))
    assert findings("cache") == [("ok", f"{cache}: 1 file, 3 MB")]
    cache.chmod(0o777)
    ((state, text),) = findings("cache")
    assert state == "missing" and "others may write" in text
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    assert findings("cache")[0][0] == "note"


def test_what_disturbs_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: shutil._ntuple_diskusage(2, 1, 1))
    ((state, text),) = findings("load")
    assert state == "note" and text.startswith("99.0 threads wanted to run")
    assert findings("disk")[0][0] == "note"


def test_a_driver_of_the_cpu_is_told_from_a_gpu() -> None:
    gpu = {"name": "Some", "type": "gpu", "memory": "mirror", "fp16": True, "has_images": True}
    assert [one.state for one in doctor._drivers({"opencl": [gpu]})] == ["ok"]
    (pocl,) = doctor._drivers({"opencl": [{**gpu, "type": "cpu", "fp16": False}]})
    assert pocl.state == "note" and "own cores" in pocl.found and "float16" in pocl.found
    (old,) = doctor._drivers({"opencl": [{**gpu, "misoptimises": True}]})
    assert old.state == "note" and "LLVM 16" in old.found
