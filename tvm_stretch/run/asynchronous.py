"""Runs in the background: `Model.run_async` returns their futures."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import tvm
import tvm_ffi

from tvm_stretch.base.errors import RunCancelledError, RunError, tell_tvm

tell_tvm()
# Most of a compile is our passes, which TVM calls: Ctrl-C in them would be a RuntimeError.
tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)

RUN_NUMBERS = itertools.count(1)
"""Numbers of runs that can be cancelled, unique in this process."""


class RunFuture(Future[Any]):
    """The outputs of a run that goes on in the background."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> Any:
        """The outputs, as of a call.

        Raises:
            RunCancelledError: it was cancelled, before or meanwhile.
        """
        self._require_thread()
        try:
            return super().result(timeout)
        except CancelledError as error:
            raise _as_ours(error) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What a call would raise."""
        self._require_thread()
        try:
            return super().exception(timeout)
        except CancelledError as error:
            raise _as_ours(error) from None

    def _require_thread(self) -> None:
        if self._process != os.getpid() and not self.done():
            raise RunError(
                "expected the end of a run in the process that began it, got a fork of that one; "
                "begin it again"
            )

    def cancel(self) -> bool:
        """Stop the run, and no other one.

        Returns:
            Whether the run was still waiting for its turn: then it never begins. One in progress
            is asked to stop, and its regions that have not begun never do: `result()` then raises
            `RunCancelledError`, unless the last region had begun already.
        """
        if super().cancel():
            return True
        if not self.done():
            self._stop()
        return False


def _as_ours(error: CancelledError) -> RunCancelledError:
    return error if isinstance(error, RunCancelledError) else RunCancelledError()


class LocalRun:
    """A run in this process that can be stopped, whether its turn has come or will."""

    def __init__(self) -> None:
        self._number = next(RUN_NUMBERS)
        self._cancelled = threading.Event()

    def __call__(self, action: Callable[[], Any]) -> Any:
        """The result of an action that runs a model once, on this thread."""
        announce = tvm.get_global_func("tvm_stretch.announce_run")
        announce(self._number)
        try:
            if self._cancelled.is_set():
                raise RunCancelledError
            return action()
        finally:
            announce(0)  # the next run of this thread is another one

    def cancel(self) -> None:
        """Stop it, from another thread."""
        self._cancelled.set()
        tvm.get_global_func("tvm_stretch.cancel_run")(self._number)


class BackgroundRuns:
    """Runs of one instance of a model, one after the other, on a thread of their own."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # not while the interpreter ends

        self._process = os.getpid()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tvm_stretch")

    def start(self, run: Callable[[], Any], stop: Callable[[], None]) -> RunFuture:
        """Run when all earlier runs are done; `stop` ends this run alone, and may take its time."""
        if self._process != os.getpid():
            self._begin()  # a fork has no threads but the one that forked
        future = RunFuture(stop)
        try:
            self._thread.submit(_work, future, run)
        except RuntimeError as error:
            raise RunError(
                f"expected an interpreter that goes on for run_async, got: {error}; call the "
                "model itself, or begin the run earlier"
            ) from error
        return future


def _work(future: RunFuture, run: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = run()
    except BaseException as caught:  # whatever it is belongs to who asks for the result
        future.set_exception(caught)
    else:
        future.set_result(result)
