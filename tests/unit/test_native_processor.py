"""Processors for the executor that are libraries of their own; tests/fake runs one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import fresh_process
from helpers.cpu_targets import TARGET
from helpers.fake_targets import FOLDER, ROOT, fake_code, fake_processor
from helpers.relax_helpers import module
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan
from tvm_stretch.run.autoload import find_file
from tvm_stretch.run.native_processor import build_processor, load_processor
from tvm_stretch.run.testing import SOURCE


def test_the_library_that_is_shipped_has_no_fake() -> None:
    assert b"fake" not in find_file("lib/libtvm_stretch_runtime.so").read_bytes().lower()
    assert fake_code().kind == "tvm_stretch.fake"


def test_a_source_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "empty.cc"
    source.write_text("int nothing;")
    library = build_processor(source, tmp_path / "built")
    load_processor(library)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))  # none at all would be the default one
    assert build_processor(source, tmp_path / "built") == library
    source.write_text("int something;")
    with pytest.raises(ts.InstallError, match=r"expected a C\+\+ compiler, got .*; install g\+\+"):
        build_processor(source, tmp_path / "built")
    assert [path.name for path in (tmp_path / "built").iterdir()] == [library.name]


def test_a_source_that_does_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cc"
    source.write_text("no C++")
    with pytest.raises(ts.InstallError, match=r"expected .*wrong\.cc to compile, got [^;]*error"):
        build_processor(source, tmp_path)


def test_no_library() -> None:
    with pytest.raises(ts.InstallError, match="drives a processor at /no/such"):
        load_processor("/no/such.so")


def test_a_second_library_of_a_kind(tmp_path: Path) -> None:
    """Refused; the first one goes on. An exception while a library is loaded would abort."""
    assert fake_code().kind == "tvm_stretch.fake"
    second = tmp_path / "second.so"
    shutil.copy(build_processor(SOURCE, FOLDER), second)
    for _ in range(2):
        with pytest.raises(ts.InstallError, match=r"kind 'fake', got .*second\.so after another"):
            load_processor(second)
    assert fake_code().kind == "tvm_stretch.fake"


def test_headers_are_shipped() -> None:
    """All that a source needs beside those of tvm-ffi: what they include is there too."""
    text = (ROOT / "tvm_stretch/run/testing/fake_processor.cc").read_text()
    names = [line.split('"')[1] for line in text.splitlines() if line.startswith('#include "')]
    for name in names:
        header = find_file(f"include/{name}").read_text()
        names += [li.split('"')[1] for li in header.splitlines() if li.startswith('#include "')]
    assert "processor.h" in names


def test_an_artifact_before_its_library(tmp_path: Path) -> None:
    mod = module(relax.op.nn.relu, (1, 4))
    fake = fake_processor("fake")
    ts.compile(mod, [fake, TARGET], plan=Plan(("fake", "cpu"), ())).export(tmp_path / "net.so")
    code = f"""
        import tvm_stretch as ts
        try:
            ts.load({str(tmp_path / "net.so")!r})
        except ts.ArtifactError as error:
            print(error)
    """
    message = fresh_process.run(code)
    assert message.startswith("expected the library of each processor") and "fake" in message
