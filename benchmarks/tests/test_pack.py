"""What is packed for a machine without registries is there again when all parts have arrived."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import pack, unpack

DATA = np.random.default_rng(0).bytes(10_000)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """An archive of two files in three parts."""
    site, folder = tmp_path / "site", tmp_path / "packed"
    (site / "inner").mkdir(parents=True)
    folder.mkdir()
    (site / "a").write_bytes(DATA)
    (site / "inner" / "b.py").write_text("value = 7")
    parts = pack._archive(folder, "packages.tar.xz", {Path(): site}, 4_000)
    (folder / "parts.json").write_text(json.dumps(parts))
    shutil.copy(unpack.__file__, folder / "unpack.py")
    return folder


def call(folder: Path, target: Path) -> tuple[int, str]:
    command = [sys.executable, "-S", str(folder / "unpack.py"), str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_parts_may_arrive_one_after_the_other(packed, tmp_path):
    target, away = tmp_path / "there", tmp_path / "away"
    assert [p.stat().st_size for p in sorted(packed.glob("*.xz.*"))][:2] == [4_000, 4_000]
    away.mkdir()
    shutil.move(packed / "packages.tar.xz.1", away)
    code, text = call(packed, target)
    assert (code, "packages.tar.xz.1" in text) == (1, True)
    for part in packed.glob("*.xz.*"):
        part.unlink()
    shutil.move(away / "packages.tar.xz.1", packed)
    assert call(packed, target) == (0, "")
    assert (target / "site" / "a").read_bytes() == DATA
    source = f". {target}/env.sh && {sys.executable} -c 'from inner.b import value; print(value)'"
    assert subprocess.check_output(["sh", "-c", source], text=True) == "7\n"


def test_the_compiler_is_kept_where_it_is_whole(tmp_path):
    """More than ten parts, of which the last were not written in another try."""
    library, folder = tmp_path / "library.so", tmp_path / "packed"
    folder.mkdir()
    library.write_bytes(DATA)

    def again() -> tuple[list[str], float]:
        parts = pack._archive(folder, "c.tar.xz", {pack._LIBRARY: library}, 800)
        (folder / "parts.json").write_text(json.dumps(parts))
        return parts["c.tar.xz"], (folder / "c.tar.xz.0").stat().st_mtime_ns

    first = again()
    assert len(first[0]) > 10 and again() == first
    (folder / "c.tar.xz.11").unlink()
    assert again()[0] == first[0] and (folder / "c.tar.xz.11").exists()


def test_a_damaged_part_is_named(packed, tmp_path):
    part = packed / "packages.tar.xz.2"
    part.write_bytes(part.read_bytes()[:-1])
    code, text = call(packed, tmp_path / "there")
    assert (code, text.startswith("missing or damaged: packages.tar.xz.2;")) == (1, True)
