"""Compiled programs on disk: found again, and never trusted blindly."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers import fresh_process
from helpers import opencl_graphs as graphs
from helpers.fingerprints import fingerprint

from tvm_stretch.base.files import held

try:
    tvm.get_global_func("tvm_stretch.opencl_devices")()
except (RuntimeError, ValueError) as error:
    pytest.skip(f"no OpenCL device: {error}", allow_module_level=True)

STEPS: list[graphs.Step] = [("scale", 1, ("x",), "y")]
SIZE = 64


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("POCL_KERNEL_CACHE", "0")  # or PoCL keeps programs itself
    return tmp_path / "opencl"


def check(**changes: object) -> None:
    """Loads the network anew, so its programs are looked for, and checks what it computes."""
    w, x = np.zeros(SIZE, "float32"), np.arange(SIZE, dtype="float32")
    executor = graphs.create_executor(STEPS, w, graphs.opencl_code(SIZE, **changes))
    y = executor["invoke"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(y, graphs.expected(STEPS, x, w), rtol=1e-6)


def entries(cache: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in cache.iterdir()}


def test_programs_are_compiled_once(cache: Path) -> None:
    check()
    first = entries(cache)
    assert len(first) == 2  # one for each source
    check()
    assert entries(cache) == first
    check(options="-cl-fast-relaxed-math")
    assert len(entries(cache)) == 4


def test_what_pocl_keeps_itself_is_not_kept_twice(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POCL_KERNEL_CACHE")
    check()
    device = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())[0]
    assert bool(entries(cache)) is not (device["platform"] == "Portable Computing Language")


def test_damaged_and_foreign_entries_are_rebuilt(cache: Path) -> None:
    check()
    (name, (good, _)), (_, (other, _)) = entries(cache).items()
    flipped = bytearray(good)
    flipped[-100] ^= 1
    for damaged in (b"", good[:20], good[:50], good[:-1], good + b"x", bytes(flipped), other):
        (cache / name).write_bytes(damaged)
        check()
        rebuilt = (cache / name).read_bytes()
        assert rebuilt != damaged
        assert rebuilt[:8] == b"TVMSTRB1"


def key_of(entry: bytes) -> bytes:
    return entry[32 : 32 + int.from_bytes(entry[8:16], "little")]


def sealed(key: bytes, binary: bytes) -> bytes:
    """An entry that is complete."""
    sizes = [len(key), len(binary), fingerprint(key + binary)]
    return b"TVMSTRB1" + b"".join(size.to_bytes(8, "little") for size in sizes) + key + binary


def test_programs_of_another_driver_are_rebuilt(cache: Path) -> None:
    """Complete ones, under the very names that this driver looks for."""
    (device, *_) = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())
    check()
    for said in (device["name"], device["driver"]):
        for name, (entry, _) in entries(cache).items():
            other = key_of(entry).replace(said.encode(), said[:-1].encode() + b"?")
            assert other != key_of(entry)
            (cache / name).write_bytes(sealed(other, b"code of another driver"))
        check()
        assert all(b"another driver" not in entry for entry, _ in entries(cache).values())


def test_binary_that_the_driver_refuses_is_rebuilt(cache: Path) -> None:
    check()
    for name, (entry, _) in entries(cache).items():
        (cache / name).write_bytes(sealed(key_of(entry), b"no program at all"))
    written = entries(cache)
    check()
    assert all(entries(cache)[name][0] != entry for name, (entry, _) in written.items())


def test_a_folder_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(blocked))
    check()
    assert blocked.read_text() == "not a folder"
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    check()


def test_leftovers_of_killed_processes_are_removed(cache: Path) -> None:
    check()
    old, new = cache / "0.bin.tmpAAAAAA", cache / "1.bin.tmpBBBBBB"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(new, (0, 0))  # by a clock that is behind, or was
    with held(lambda: (new, os.open(new, os.O_RDONLY))):
        check()
    assert not old.exists()
    assert new.exists()


def test_forged_programs_in_a_folder_of_all_are_not_run(cache: Path) -> None:
    check()
    for name, (entry, _) in entries(cache).items():
        (cache / name).write_bytes(sealed(key_of(entry), b"no program at all"))
    forged = entries(cache)
    cache.chmod(0o777)
    check()
    assert entries(cache) == forged, "neither read, which the driver would refuse, nor written"


@pytest.mark.full
def test_pocl_gets_a_folder_of_its_own_where_others_may_write(tmp_path: Path) -> None:
    """It runs the machine code that it finds; without HOME it looks into /tmp."""
    shared, temporary = tmp_path / "shared", tmp_path / "temporary"
    for folder in (shared, temporary):
        folder.mkdir()
    shared.chmod(0o777)
    code = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]}
import test_opencl_runtime_cache as tests
tests.check()
"""
    said = fresh_process.run(code, POCL_CACHE_DIR=str(shared), TMPDIR=str(temporary))
    assert list(shared.iterdir()) == []
    assert "name another folder in POCL_CACHE_DIR" in said
    device = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())[0]
    is_pocl = device["platform"] == "Portable Computing Language"
    assert any(temporary.glob("tvm_stretch_pocl_*/*")) or not is_pocl
