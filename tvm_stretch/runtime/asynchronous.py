"""Runs in the background: `Model.run_async` returns their futures."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import tvm_ffi

from tvm_stretch.errors import RunError, tell_tvm

tell_tvm()
tvm_ffi.register_error("RunCancelled", CancelledError)  # see errors.h
# Most of a compile is our passes, which TVM calls: Ctrl-C in them would be a RuntimeError.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)


class RunFuture(Future[Any]):
    """The outputs of a run that goes on in the background."""

    def __init__(self, stop: Callable[[RunFuture], None]) -> None:
        super().__init__()
        self._stop = stop
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> Any:
        """The outputs, as of a call."""
        self._require_thread()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What a call would raise."""
        self._require_thread()
        return super().exception(timeout)

    def _require_thread(self) -> None:
        if self._process != os.getpid() and not self.done():
            raise RunError(
                "expected the end of a run in the process that began it, got a fork of that one; "
                "begin it again"
            )

    def cancel(self) -> bool:
        """Stop the run.

        Returns:
            Whether the run was still waiting for its turn: then it never begins. One in progress
            is asked to stop, and its regions that have not begun never do: `result()` then raises
            `CancelledError`, unless the last region had begun already.
        """
        if super().cancel():
            return True
        self._stop(self)
        return False


class BackgroundRuns:
    """Runs of one instance of a model, one after the other, on a thread of their own."""

    def __init__(self, run: Callable[..., Any], stop: Callable[[], None] | None = None) -> None:
        """Call `run` for outputs; `stop` ends whatever call is in progress, at once."""
        self._run = run
        self._stop = stop
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tvm_stretch")
        self._lock = threading.Lock()  # guards `_current`, and that it is the one that is stopped
        self._current: RunFuture | None = None

    def start(self, arguments: Sequence[Any], stop: Callable[[], None] | None = None) -> RunFuture:
        """Run when all earlier runs are done; `stop` ends this run alone, and may take its time."""
        if self._process != os.getpid():
            self._begin()  # a fork has no threads but the one that forked
        future = RunFuture(self._stop_current if stop is None else lambda _: stop())
        self._thread.submit(self._work, future, arguments)
        return future

    def _stop_current(self, future: RunFuture) -> None:
        """Ask the run to stop if it is in progress."""
        with self._lock:
            if self._current is future and self._stop is not None:
                self._stop()

    def _work(self, future: RunFuture, arguments: Sequence[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        with self._lock:
            self._current = future
        try:
            result, error = self._run(*arguments), None
        except BaseException as caught:  # whatever it is belongs to who asks for the result
            result, error = None, caught
        with self._lock:
            self._current = None
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
