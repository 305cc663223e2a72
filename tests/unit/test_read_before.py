"""Exported programs are read once, and anew after whatever the result depends on has changed."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.relax_numpy import evaluate

import tvm_stretch as ts
from tvm_stretch.make import read_before

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was read anew."""
    read: list[object] = []
    load = read_before.load_network

    def counting(*given: object) -> object:
        read.append(given)
        return load(*given)

    monkeypatch.setattr(read_before, "load_network", counting)
    return read


def write(path: Path, seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    torch.export.save(torch.export.export(net, (torch.zeros(2, 4),)), path)
    return net


def answer(path: Path, x: np.ndarray, shapes: object = None, states: object = None) -> np.ndarray:
    mod = read_before.read_once(path, shapes, states, False, {}, None)
    result = evaluate(mod, x)
    return result[0] if isinstance(result, list) else result


def test_the_second_time_nothing_is_read(tmp_path: Path, reads: list[object]) -> None:
    net, path = write(tmp_path / "net.pt2"), tmp_path / "net.pt2"
    x = np.random.default_rng(0).standard_normal((2, 4), dtype="float32")
    expected = net(torch.from_numpy(x)).detach().numpy()
    for _ in range(2):
        np.testing.assert_allclose(answer(path, x), expected, rtol=1e-5, atol=1e-6)
    assert len(reads) == 1


def test_other_weights_are_another_network(tmp_path: Path, reads: list[object]) -> None:
    path, x = tmp_path / "net.pt2", np.ones((2, 4), "float32")
    write(path)
    first = answer(path, x)
    write(path, seed=1)
    assert np.abs(answer(path, x) - first).max() > 0.01
    assert len(reads) == 2


@pytest.mark.parametrize("change", ["shapes", "states", "readers", "damage", "none"])
def test_it_is_read_anew(
    change: str, tmp_path: Path, reads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / "net.pt2", np.ones((2, 4), "float32")
    write(path)
    first = answer(path, x)
    read_before.cache_of("networks")._memory.clear()
    (entry,) = (tmp_path / "cache/networks").iterdir()
    if change == "readers":
        files = {**read_before._READERS, "tvm_stretch.read.load": b"# another"}
        monkeypatch.setattr(read_before, "_READERS", files)
    elif change == "damage":
        entry.write_bytes(entry.read_bytes()[:-9])
    elif change == "none":
        monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    shapes = {"input": (2, 4)} if change == "shapes" else None
    states: object = {} if change == "states" else None
    np.testing.assert_array_equal(answer(path, x, shapes, states), first)
    assert len(reads) == 2


def test_without_torch_its_reader_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "net.pt2")

    def version(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return "0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ts.StretchError, match="torch"):
        answer(tmp_path / "net.pt2", np.ones((2, 4), "float32"))


def test_large_networks_are_not_kept(
    tmp_path: Path, reads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / "net.pt2", np.ones((2, 4), "float32")
    write(path)
    for most in (path.stat().st_size - 1, path.stat().st_size):  # the file, then what was read
        monkeypatch.setattr(read_before, "_MOST_BYTES", most)
        answer(path, x)
        assert not list(tmp_path.glob("cache/networks/*")) or most == path.stat().st_size
    assert len(reads) == 2
