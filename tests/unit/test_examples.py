"""Every public name has an example in its docstring, and the examples run."""

from __future__ import annotations

import doctest
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.gguf_files import write_model

import tvm_stretch as ts
from tutorials import zoo

MODULES = ("tune", "stretching", "training")
"""Public modules; the classes of `ts.results` are what these functions return."""


def public() -> Iterator[tuple[str, object]]:
    """All names that a user calls or catches, without modules."""
    for name in ts.__all__:
        value = getattr(ts, name)
        if not inspect.ismodule(value):
            yield f"ts.{name}", value
    for module in MODULES:
        for name in getattr(ts, module).__all__:
            yield f"ts.{module}.{name}", getattr(getattr(ts, module), name)


NAMES = dict(public())


def test_every_name_has_an_example() -> None:
    missing = [name for name, value in NAMES.items() if ">>> " not in (inspect.getdoc(value) or "")]
    assert missing == []


def test_examples_of_phones_alone_are_skipped() -> None:
    """A phone cannot stand in a test; anything else can."""
    skipped = {name for name, value in NAMES.items() if "+SKIP" in (inspect.getdoc(value) or "")}
    assert skipped == {"ts.Device", "ts.connect", "ts.tune.Fleet", "ts.tune.compare_plans"}


def test_no_docstring_refers_to_another_one() -> None:
    """The reference fills in what arguments of other functions mean."""
    pytest.importorskip("griffe")
    references = runpy.run_path(str(Path(__file__).parents[2] / "docs/references.py"))
    texts = {
        (name, member): references["filled"](inspect.getdoc(found) or "")
        for name, value in NAMES.items()
        for member, found in [("", value), *(vars(value).items() if inspect.isclass(value) else ())]
        if not member.startswith("_")
    }
    refers = re.compile(r"as for `|module docstring")
    assert [name for name, text in texts.items() if refers.search(text)] == []
    progress = references["fields"](texts["ts.to_onnx", ""])["progress"]
    assert progress.startswith("receives a line of text after every step")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples")
    onnx.save(zoo.build("resnet18"), path / "resnet18.onnx")
    write_model(path / "small.gguf")
    return path


OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = {"ts": ts, "np": np, "torch": torch}
    text = inspect.getdoc(NAMES[name]) or ""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    said: list[str] = []
    failed, tried = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert tried > 0 or "+SKIP" in text
    assert failed == 0, re.sub(r"\n\*{5,}", "", "".join(said))
