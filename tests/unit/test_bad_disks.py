"""Disks that are full, read-only or not there, and processes killed beside each other.

A cache that cannot be used only costs time; what a user asked for is there whole, or an error of
ours says that it is not.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fresh_process
from helpers.small_models import answer, compiled

import tvm_stretch as ts
from tvm_stretch.make.code import kernel_cache as caching

TESTS = Path(__file__).resolve().parent
SIZE = 9


class Disk:
    """Counts whatever changes it, and fails in one of these steps, or in all from one on."""

    def __init__(self, patch: pytest.MonkeyPatch, code: int, lasting: bool) -> None:
        self.steps = 0
        self.fails_at: int | None = None
        self._code, self._lasting = code, lasting
        for module, name in (
            *((os, n) for n in ("mkdir", "replace", "rename", "fsync", "utime", "truncate")),
            *((os, "open"), (io, "open")),
        ):
            patch.setattr(module, name, self._failing(getattr(module, name)))

    def _failing(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **named: Any) -> Any:
            if self.fails_at is not None and self._changes(usual, given, named):
                self.steps += 1
                late = self.steps > self.fails_at if self._lasting else False
                if late or self.steps == self.fails_at:
                    raise OSError(self._code, os.strerror(self._code), str(given[0]))
            return usual(*given, **named)

        return changed

    @staticmethod
    def _changes(usual: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        if usual.__name__ != "open":
            return True
        how = named.get("mode", given[1] if len(given) > 1 else "r")
        return bool(how & os.O_CREAT) if isinstance(how, int) else bool(set(how) & set("wax+"))


def forget() -> None:
    """What a new process knows."""
    caching._cache_of.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    return answer(compiled(SIZE))


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.full)])
def test_a_disk_that_is_full_at_each_step(
    cache: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch, lasting: bool, every: int
) -> None:
    path, plan = cache.parent / "model.so", cache.parent / "plan.json"
    for step in itertools.count(1, every):
        with monkeypatch.context() as patch:
            disk = Disk(patch, errno.ENOSPC, lasting)
            disk.fails_at = step
            forget()
            try:
                model = compiled(SIZE)
                np.testing.assert_array_equal(answer(model), expected)
                model.export(path)
                model.plan.write(plan)
            except ts.StretchError as error:
                assert str(error).startswith("expected a place to write "), error
                assert "no space left" in str(error), error
            disk.fails_at = None
        if path.exists():
            np.testing.assert_array_equal(answer(ts.load(path)), expected)
        assert {p.name for p in cache.parent.iterdir()} <= {"cache", "model.so", "plan.json"}
        if disk.steps < step:
            break
    assert step > 9, "the faults came"
    forget()
    np.testing.assert_array_equal(answer(compiled(SIZE)), expected)
    assert list(cache.rglob("*.tmp")) == []


def test_a_cache_on_a_disk_that_cannot_be_written(
    cache: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries that the cache already has are used."""
    compiled(SIZE)
    kept = sorted(path.name for path in (cache / "kernels").iterdir())
    generated = []
    monkeypatch.setattr(
        "tvm_stretch.targets.cpu.code.object_code._object_code",
        lambda *given: generated.append(given),
    )
    forget()
    monkeypatch.setattr(caching.KernelCache, "_write", _read_only)
    monkeypatch.setattr(os, "utime", _read_only)
    np.testing.assert_array_equal(answer(compiled(SIZE)), expected)
    assert generated == []
    assert sorted(path.name for path in (cache / "kernels").iterdir()) == kept


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.full)])
def test_a_cache_that_vanishes_at_each_step(
    cache: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Somebody removes the folder, as tools that clean caches do."""
    steps = []

    def vanishing(usual: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*given: Any, **named: Any) -> Any:
            steps.append(usual.__name__)
            if len(steps) == number and cache.exists():
                shutil.rmtree(cache)
            return usual(*given, **named)

        return changed

    for number in itertools.count(1, every):
        steps.clear()
        with monkeypatch.context() as patch:
            for name in ("mkdir", "replace", "fsync", "utime"):
                patch.setattr(os, name, vanishing(getattr(os, name)))
            forget()
            np.testing.assert_array_equal(answer(compiled(SIZE)), expected)
        if len(steps) < number:
            break
    assert number > every, "the folder vanished"
    assert list(cache.rglob("*.tmp")) == []


def _read_only(*_given: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("home", [None, "/proc/none/of/ours", "/sys/none", "/dev/null", "relative"])
def test_homes_that_cannot_be_written(
    tmp_path: Path, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TVM_STRETCH_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    forget()
    model = compiled(SIZE)
    np.testing.assert_array_equal(answer(model), expected)
    model.export(tmp_path / "model.so")
    np.testing.assert_array_equal(answer(ts.load(tmp_path / "model.so")), expected)


KILLED = """
import random, signal, sys, time
sys.path[:0] = {paths}
import test_bad_disks as tests

dice, expected = random.Random({seed}), None
for number in range({rounds}):
    children = []
    for _ in range(2):
        if child := os.fork():
            children.append(child)
            continue
        while True:
            for size in range(8, 14):
                tests.compiled(size + 6 * number)
            tests.forget()
    for child in children:
        time.sleep(dice.random() * 0.3)
        os.kill(child, signal.SIGKILL)
    assert [os.waitpid(child, 0)[1] for child in children] == [signal.SIGKILL] * 2
"""


@pytest.mark.full  # a round is two compiles
@pytest.mark.parametrize("rounds", [60])
def test_two_processes_on_one_cache_are_killed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    paths = [str(TESTS), str(TESTS.parent)]
    code = KILLED.format(paths=paths, seed=rounds, rounds=rounds)
    fresh_process.run(code, TVM_STRETCH_CACHE_DIR=str(cache))
    found = [answer(compiled(size)) for size in (8, 11)]  # with what they left
    monkeypatch.setenv("TVM_STRETCH_CACHE_DIR", "")
    forget()
    for given, size in zip(found, (8, 11), strict=True):
        np.testing.assert_array_equal(given, answer(compiled(size)))
    assert list(cache.rglob("*.tmp")) == [], "removed by who came next"
