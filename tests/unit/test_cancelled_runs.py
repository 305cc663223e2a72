"""`cancel` of a future stops its own run, and nobody else's."""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.small_models import random_input, scaled_model, scaled_reference

import tvm_stretch as ts
from tvm_stretch.run.asynchronous import BackgroundRuns, LocalRun
from tvm_stretch.run.model import Model

X = random_input()
Y = scaled_reference(X)


def while_futures_are_cancelled(model: Model, cancels: int) -> dict[str, int]:
    """How many futures ended how, while other threads call the same model."""
    wrong: list[object] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            np.testing.assert_allclose(model(X), Y, rtol=1e-5)

    def trace() -> None:
        while not over.is_set():
            assert model.timeline(repeat=2).duration > 0

    def noted(action: object) -> None:
        try:
            action()  # type: ignore[operator]
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=noted, args=(each,)) for each in (call, call, trace)]
    for thread in threads:
        thread.start()
    ends = {"cancelled": 0, "right": 0}
    for number in range(cancels):
        future = model.run_async(X)
        while number % 2 and not future.running() and not future.done():
            time.sleep(0)
        future.cancel()
        try:
            np.testing.assert_allclose(future.result(60), Y, rtol=1e-5)
            ends["right"] += 1
        except ts.RunCancelledError:
            ends["cancelled"] += 1
    over.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    return ends


@pytest.mark.parametrize("cancels", [200, pytest.param(20_000, marks=pytest.mark.full)])
def test_calls_and_timelines_of_other_threads_go_on(cancels: int) -> None:
    ends = while_futures_are_cancelled(scaled_model(), cancels)
    print(json.dumps(ends))
    assert sum(ends.values()) == cancels and ends["cancelled"] > 0


def test_it_is_an_error_of_ours_and_of_futures() -> None:
    model = scaled_model()
    began, go_on = threading.Event(), threading.Event()
    runs = BackgroundRuns()
    busy = runs.start(lambda: (began.set(), go_on.wait(60)), lambda: None)
    waiting = runs.start(lambda: model(X), lambda: None)
    assert began.wait(60) and waiting.cancel()
    for ask in (waiting.result, waiting.exception):
        with pytest.raises(ts.RunCancelledError, match=r"^expected the run to end, got a call of"):
            ask()
        with pytest.raises(CancelledError):
            ask()
    go_on.set()
    assert busy.result() and concurrent.futures.wait([waiting]).done == {waiting}


def test_cancelled_before_it_is_announced() -> None:
    model = scaled_model()
    run = LocalRun()
    run.cancel()
    with pytest.raises(ts.RunCancelledError):
        run(lambda: model(X))
    np.testing.assert_allclose(model(X), Y, rtol=1e-5)


def test_an_announcement_that_nobody_used_is_for_no_later_run() -> None:
    """A call that is refused before it begins."""
    model, run = scaled_model(), LocalRun()
    with pytest.raises(ts.InputError):
        run(lambda: model(X[:, :1]))
    run.cancel()
    np.testing.assert_allclose(model(X), Y, rtol=1e-5)


def test_each_thread_announces_its_own(tmp_path: Path) -> None:
    """Of two threads that have announced theirs, the one that is cancelled does not run."""
    announce = tvm.get_global_func("tvm_stretch.announce_run")
    cancel = tvm.get_global_func("tvm_stretch.cancel_run")
    first, second = scaled_model(), scaled_model()
    announced, told = threading.Barrier(3), threading.Barrier(3)
    ends: dict[int, object] = {}

    def work(number: int, model: Model) -> None:
        announce(number)
        announced.wait()
        told.wait()
        try:
            ends[number] = model(X)
        except ts.RunCancelledError as error:
            ends[number] = error

    models = {2**40: first, 2**40 + 1: second}
    threads = [threading.Thread(target=work, args=item) for item in models.items()]
    for thread in threads:
        thread.start()
    announced.wait()
    cancel(2**40)
    told.wait()
    for thread in threads:
        thread.join()
    assert isinstance(ends[2**40], ts.RunCancelledError)
    np.testing.assert_allclose(ends[2**40 + 1], Y, rtol=1e-5)
