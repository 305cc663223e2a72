"""Runs on a device: a cancel stops that run and no other; settings outlive sessions whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import SimpleNamespace
from typing import Any

import pytest
import tvm

from tvm_stretch.base.errors import DeviceError
from tvm_stretch.phone.remote_model import RemoteExecutor, RemoteRun
from tvm_stretch.run.asynchronous import BackgroundRuns, RunFuture

SECONDS = 20  # far longer than anything here takes
NOTHING: Any = SimpleNamespace(tensors=(), inputs=(), outputs=())


class Stub:
    """A device, its link and its module at once; a run lasts until it is ended, or cancelled."""

    session, session_number = 1, 1

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)  # once for each run
        self.told = threading.Event()  # to cancel
        self.end = threading.Event()
        self.announced = 0  # the number of the next run
        self.cancelled: set[int] = set()  # numbers of runs
        self.answers = threading.Event()  # when it hears what it is told
        self.answers.set()
        self.settings: list[str] = []
        self.refused = ""
        self.meanwhile: Callable[[], None] = lambda: None

    def ask(self, _what: str, action: Callable[[Any], Any], session: int) -> Any:
        assert session == self.session
        session_here = tvm.rpc.LocalSession()
        link = SimpleNamespace(session=session_here, cancel=self.cancel, function=self.function)
        return action(link)

    def function(self, name: str) -> Callable[[int], None]:
        assert name == "tvm_stretch.announce_run"
        return lambda number: setattr(self, "announced", number)

    def cancel(self, number: int, _seconds: float) -> bool:
        self.told.set()
        is_heard = self.answers.wait(SECONDS)
        self.cancelled.add(number)
        return is_heard

    def method(self, _name: str) -> Callable[[], None]:
        def invoke() -> None:
            number, self.announced = self.announced, 0
            self.begun.release()
            while not self.end.wait(0.001):
                if number in self.cancelled:
                    raise tvm.error.RPCError("expected a run to end, got a call of cancel; again")

        return invoke

    def __getitem__(self, method: str) -> Callable[..., None]:
        def setting() -> None:
            self.meanwhile()
            if method == self.refused:
                raise DeviceError(method)
            self.settings.append(method)

        return setting

    def has_begun(self) -> bool:
        return self.begun.acquire(timeout=SECONDS)


class Runs:
    """An executor on it, and runs in the background."""

    def __init__(self) -> None:
        self.device: Any = Stub()
        self.executor = RemoteExecutor(self.device, lambda: self.device)
        self._background = BackgroundRuns()

    def invoke(self, run: RemoteRun | None = None) -> list[Any]:
        return self.executor.invoke([], NOTHING, run)[1]

    def start(self) -> RunFuture:
        run = RemoteRun()
        return self._background.start(lambda: self.invoke(run), run.cancel)

    def elsewhere(self) -> RunFuture:
        """A run of another thread."""
        return BackgroundRuns().start(self.invoke, lambda: None)


@pytest.fixture
def runs() -> Runs:
    return Runs()


def test_a_run_in_progress_is_cancelled_and_not_the_next(runs: Runs) -> None:
    first = runs.start()
    assert runs.device.has_begun()
    other = runs.elsewhere()
    first.cancel()
    with pytest.raises(CancelledError):
        first.result(SECONDS)
    assert runs.device.has_begun()
    first.cancel()
    runs.device.end.set()
    assert other.result(SECONDS) == []


def test_a_run_that_waits_is_cancelled_and_not_the_present_one(runs: Runs) -> None:
    present = runs.elsewhere()
    assert runs.device.has_begun()
    waiting = runs.start()
    while not waiting.running():
        time.sleep(0.001)
    waiting.cancel()
    assert not runs.device.told.is_set()
    runs.device.end.set()
    assert present.result(SECONDS) == []
    with pytest.raises(CancelledError):
        waiting.result(SECONDS)


@pytest.mark.parametrize("has_run", [False, True])
def test_a_cancel_too_early_or_too_late_is_for_its_own_run(runs: Runs, has_run: bool) -> None:
    runs.device.end.set()
    run = RemoteRun()
    if has_run:
        runs.invoke(run)
    run.cancel()
    assert runs.invoke() == []
    with pytest.raises(CancelledError):
        runs.invoke(run)
    assert not runs.device.told.is_set()


def test_a_cancel_that_is_heard_late_stops_nobody_else(runs: Runs) -> None:
    """And nobody waits for a server that does not hear."""
    runs.device.answers.clear()
    first = runs.start()
    assert runs.device.has_begun()
    teller = threading.Thread(target=first.cancel)
    teller.start()
    assert runs.device.told.wait(SECONDS)
    runs.device.end.set()
    assert first.result(SECONDS) == []
    runs.device.end.clear()
    other = runs.start()
    assert runs.device.has_begun()
    runs.device.answers.set()
    teller.join()
    time.sleep(0.02)
    assert not other.done()
    runs.device.end.set()
    assert other.result(SECONDS) == []


def test_settings_are_all_there_or_the_session_is_opened_again(runs: Runs) -> None:
    device, executor = runs.device, runs.executor
    for method in ("one", "two", "three"):
        executor.keep(method)
    device.session = device.session_number = 2
    executor._opened = None
    device.settings, device.refused = [], "two"
    with pytest.raises(DeviceError):
        executor.now()
    device.settings, device.refused = [], ""
    executor.now()
    assert device.settings == ["one", "two", "three"]


def test_nobody_opens_a_session_while_a_setting_is_made(runs: Runs) -> None:
    """Who does looks through all settings, and would lack this one."""
    free: list[bool] = []

    def look() -> None:
        thread = threading.Thread(
            target=lambda: free.append(runs.executor._lock.acquire(blocking=False))
        )
        thread.start()
        thread.join()

    runs.device.meanwhile = look
    runs.executor.keep("one")
    assert free == [False]
