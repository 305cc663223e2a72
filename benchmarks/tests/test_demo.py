"""`make demo`: what a newcomer sees first."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from helpers.onnx_models import Net

from benchmarks import demo


def saved(folder: Path, size: int, channels: int) -> str:
    """A network of three layers."""
    net = Net()
    x = net.input("x", (1, 3, size, size))
    for _ in range(3):
        x = net.op("Relu", net.conv(x, channels, (3, 3), pads=[1] * 4))
    path = folder / "network.onnx"
    onnx.save(net.model(net.op("Flatten", net.op("GlobalAveragePool", x))), path)
    return str(path)


def shown(
    capsys: pytest.CaptureFixture[str], folder: Path, network: str, *options: str
) -> list[str]:
    assert demo.main([network, "--folder", str(folder), *options]) == 0
    return capsys.readouterr().out.splitlines()


def test_without_a_device_it_says_why_and_shows_the_cpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(demo, "local_device", lambda: None)
    lines = shown(capsys, tmp_path / "out", saved(tmp_path, 16, 8), "--size", "16")
    assert lines[0] == "OpenCL device: none" and "pocl-opencl-icd" in lines[1]
    assert (tmp_path / "out" / "report.html").is_file()
    assert not any("both" in line for line in lines)


needs_device = pytest.mark.skipif(demo.local_device() is None, reason="no OpenCL device")


@pytest.mark.full  # it compiles for twelve seconds
@needs_device
def test_two_processors(tmp_path, capsys):
    """Whatever was measured, the timeline shows both."""
    lines = shown(capsys, tmp_path / "out", saved(tmp_path, 96, 64), "--size", "96")
    assert {line.split()[0] for line in lines if "largest difference" in line} == {
        *("llvm", "opencl", "both")
    }
    assert lines[-1].startswith("both processors: ")
    rows = {
        line.split()[0]: line.split()[1] for line in lines if line.startswith(("cpu", "opencl"))
    }
    assert all(set(row) != {"."} for row in rows.values()), rows


@needs_device
@pytest.mark.skipif(shutil.which("qemu-hexagon") is None, reason="needs qemu-hexagon")
def test_three_processors(tmp_path, capsys):
    """Each has a region, and the answer is ONNX Runtime's."""
    demo.three_processors(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    rows = [line.partition(" ") for line in lines if ".." in line or "==" in line]
    busy = [name for name, _, row in rows if name in demo.ALL and {*row} - {*". "}]
    assert busy == list(demo.ALL), lines
    assert lines[-1].startswith("answer: ")  # it ends the program if it is wrong


@needs_device
def test_a_network_that_is_too_small(tmp_path, capsys):
    lines = shown(capsys, tmp_path / "out", saved(tmp_path, 16, 8), "--size", "16")
    assert "this network is too small to be shared: both would wait for each other" in lines


def test_disturbed_runs_are_repeated(monkeypatch, capsys):
    """The least disturbed rounds count, and what disturbed is said."""
    busy = iter([0.0, 1e6, 1e6, 1e6])  # in the first rounds others work, in the second nobody
    monkeypatch.setattr(demo, "busy_seconds", lambda: next(busy))
    samples, others = demo.measured({"one": lambda: None})
    assert others == 0 and len(samples.of["one"]) == demo.ROUNDS
    assert "once more" in capsys.readouterr().out
    assert demo.disturbance(1.5).startswith("disturbed: other programs took 1.5 of ")


def test_its_own_work_is_not_that_of_others():
    begin = demo.busy_seconds()
    assert begin >= 0 and demo.busy_seconds() >= begin - 0.1
