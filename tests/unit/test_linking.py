"""Who links for which triple, and what is said where nobody does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_targets import TARGET, cpu_of
from helpers.relax_helpers import module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.base.errors import TargetError
from tvm_stretch.run.artifact import machine_of, read_artifact
from tvm_stretch.run.linking import linker_for

ANDROID, LINUX = "aarch64-linux-android", "aarch64-linux-gnu"


def foreign_model(triple: str) -> ts.Model:
    """Of a kernel with an exponential, which must not need a library."""
    network = module(lambda x: relax.op.sigmoid(x), (1, 16))
    return ts.compile(network, {"kind": "llvm", "mtriple": triple}, cpu_threads=1)


@pytest.fixture
def no_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANDROID_NDK_HOME", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)


@pytest.mark.parametrize("triple", [ANDROID, LINUX, "x86_64-linux-android"])
def test_nobody_links(triple: str, no_zig: None, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=rf"links for {triple}, got none; pip install ziglang"):
        foreign_model(triple).export(tmp_path / "model.so")
    assert not list(tmp_path.iterdir())


def test_a_clang_of_the_ndk(no_zig: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script in its place writes down what it was called with."""
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path))
    with pytest.raises(TargetError, match="expected an Android NDK for ANDROID_NDK_HOME"):
        linker_for(ANDROID)
    folder = tmp_path / "toolchains/llvm/prebuilt/linux-x86_64/bin"
    folder.mkdir(parents=True)
    clang = folder / "aarch64-linux-android26-clang"
    clang.write_text('#!/bin/sh\necho "$@" > "$8"\n')
    clang.chmod(0o755)
    linker_for(ANDROID)(str(tmp_path / "out"), ["a.o", "b.o"])
    said = (tmp_path / "out").read_text().split()
    flags = ["-O2", "-s", "-shared", "-fPIC", "-Wl,-z,defs", "-Wl,-z,max-page-size=16384"]
    assert said == [*flags, "-o", str(tmp_path / "out"), "a.o", "b.o"]
    clang.write_text("#!/bin/sh\necho 'ld: error: undefined symbol: expf' >&2; exit 1\n")
    with pytest.raises(TargetError, match="at API 26 for aarch64-linux-android, got expf; plan"):
        linker_for(ANDROID)(str(tmp_path / "out"), ["a.o"])


def test_a_linker_that_is_given(tmp_path: Path) -> None:
    """It gets the path and the files; whatever it raises is an error of the artifact."""
    model = ts.compile(module(relax.op.nn.relu, (1, 16)), TARGET, cpu_threads=1)
    files: list[str] = []

    def link(output: str, inputs: list[str]) -> None:
        files.extend(inputs)
        linker_for("")(output, inputs)

    model.export(tmp_path / "net.so", fcompile=link)
    assert files and all(Path(name).suffix in (".o", ".S", ".c", ".cc") for name in files)
    x = np.linspace(-1, 1, 16, dtype="float32")[None]
    loaded = ts.load(tmp_path / "net.so")
    np.testing.assert_array_equal(loaded(x), np.maximum(x, 0))

    def fail(_output: str, _inputs: list[str]) -> None:
        raise OSError("no licence for this linker")

    with pytest.raises(ts.ArtifactError, match="no licence for this linker"):
        model.export(tmp_path / "other.so", fcompile=fail)
    assert not (tmp_path / "other.so").exists()
    with pytest.raises(ts.ArtifactError, match="just compiled for export with fcompile"):
        loaded.export(tmp_path / "other.so", fcompile=link)


# Zig builds a part of a C library first, which takes seconds.
@pytest.mark.parametrize("triple", [ANDROID, pytest.param(LINUX, marks=pytest.mark.full)])
def test_zig_links_for_phones(triple: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    path = tmp_path / "model.so"
    foreign_model(triple).export(path)
    assert machine_of(read_artifact(path)) == "aarch64"


def test_here_the_compiler_that_is_here_links(no_zig: None) -> None:
    assert callable(linker_for("")) and cpu_of(4)
