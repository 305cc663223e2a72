"""Engines that benchmarks compare ours with: environments of their own, answers, missing ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from benchmarks.models import Model, model_of
from benchmarks.peers import Row, compare_engines
from benchmarks.worker import Worker

# An engine that takes a "model" of one number to add; it must come from its own environment.
LITERT = """
class Interpreter:
    def __init__(self, path, num_threads):
        self.summand = float(open(path).read())
    def get_signature_runner(self):
        return lambda args_0: {"output_0": args_0 + self.summand}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setenv("TVM_STRETCH_BENCH_CACHE", str(tmp_path / "cache"))
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 8] x) => (float[1, 8] y)
        <float one = {1}> { y = Add(x, one) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    return model_of(str(tmp_path / "net.onnx"), 8)


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that knows NumPy and an engine; PYTHONPATH leads to another, broken one."""
    packages = tmp_path / "phone" / "packages"
    for folder, text in ((packages, LITERT), (tmp_path / "here", "raise RuntimeError('not mine')")):
        (folder / "ai_edge_litert").mkdir(parents=True)
        (folder / "ai_edge_litert" / "__init__.py").touch()  # wins over an installed one
        (folder / "ai_edge_litert" / "interpreter.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    monkeypatch.syspath_prepend(tmp_path / "here")
    python = tmp_path / "phone" / "python"
    numpy = Path(np.__file__).parents[1]
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH=$PYTHONPATH:{packages}:{numpy} exec {sys.executable} -S "$@"\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("TVM_STRETCH_PHONE_PYTHON", str(python))
    return python


def compare(model: Model) -> Row:
    cores = sorted(os.sched_getaffinity(0))[:1]
    _, row = compare_engines(model, ["ort", "litert"], 1, cores, rounds=1, rtol=1e-3)
    return row


def carry(model: Model, summand: str) -> None:
    """A converted model, where its converter is not."""
    model.path.with_name(f"{model.path.stem}-litert_torch1.0.tflite").write_text(summand)


def test_an_engine_of_another_environment_runs_a_model_that_was_carried_there(model, phone):
    carry(model, "1")
    row = compare(model)
    assert row.failure is None
    assert row.max_error < 1e-6
    assert len(row.samples) == 5


def test_a_wrong_answer_gets_no_time(model, phone):
    carry(model, "1.5")
    row = compare(model)
    assert "wrong answer" in row.failure
    assert row.samples == []


def test_a_model_that_was_not_carried_is_named(model, phone):
    with pytest.raises(RuntimeError, match="expected litert_torch, or a model converted by it"):
        Worker("litert", model, 1, sorted(os.sched_getaffinity(0)))


def test_a_missing_environment_is_named(model, monkeypatch, tmp_path):
    monkeypatch.setenv("TVM_STRETCH_PHONE_PYTHON", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="run `make setup-phone-peers`"):
        Worker("litert", model, 1, [])


def test_ours_are_compiled_for_the_core_that_is_named(model):
    with pytest.raises(RuntimeError, match=r"expected a core of .* for mcpu, got 'hasswell'"):
        Worker("ours", model, 1, sorted(os.sched_getaffinity(0))[:1], "hasswell")


def test_both_processors_are_not_one(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a variable names no device, the compiler goes on without OpenCL: not this benchmark."""
    monkeypatch.setenv("TVM_STRETCH_OPENCL_DEVICE", "there is none such")
    cores = sorted(os.sched_getaffinity(0))[:1]
    _, row = compare_engines(model, ["ort", "both"], 2, cores, rounds=1, rtol=1e-3)
    assert "opencl left out" in row.failure and not row.samples
