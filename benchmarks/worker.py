"""An engine in a process of its own, pinned to its cores and stopped while others run.

Idle thread pools spin to be fast at the next call. That is each engine's best setting, so it stays
on; instead a worker is stopped (SIGSTOP) whenever it is not its turn, and the warm-up run after
SIGCONT wakes its pool again. So an idle peer takes no time from the one that is measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.models import BenchModel, Tensors

if TYPE_CHECKING:
    from benchmarks.engines import Run


class Worker:
    """Parent's handle of one engine process; a failure there is a `RuntimeError` here."""

    def __init__(self, engine: str, model: BenchModel, threads: int, cores: list[int]) -> None:
        """Starts the process and loads the model there."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, engine, model, threads, cores)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _environment(threads):
            self._process.start()
        theirs.close()
        try:
            self.load_seconds: float = self._receive()
        except RuntimeError:
            self.close()
            raise
        self._pause()

    def outputs(self) -> list[np.ndarray]:
        """The engine's answer to the model's random inputs."""
        return self._ask(("outputs", 0, 0))

    def times(self, warmup: int, runs: int) -> list[float]:
        """Milliseconds of `runs` calls after `warmup` calls."""
        return self._ask(("times", warmup, runs))

    def close(self) -> None:
        """Ends the process."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, command: tuple[str, int, int]) -> Any:
        self._signal(signal.SIGCONT)
        self._pipe.send(command)
        try:
            return self._receive()
        finally:
            self._pause()

    def _pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def _signal(self, what: signal.Signals) -> None:
        if self._process.pid and self._process.is_alive():
            os.kill(self._process.pid, what)

    def _receive(self) -> Any:
        try:
            ok, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"process ended with code {self._process.exitcode}") from None
        if not ok:
            raise RuntimeError(value)
        return value


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Variables that thread pools read when their library is loaded."""
    count = str(threads)
    wanted = {
        "OMP_NUM_THREADS": count,
        "TVM_NUM_THREADS": count,
        "TVM_BIND_THREADS": "0",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(
    pipe: Connection, engine: str, model: BenchModel, threads: int, cores: list[int]
) -> None:
    """The worker's main loop."""
    os.sched_setaffinity(0, cores)  # before the engine starts its threads, which inherit it
    _silence()
    try:
        from benchmarks.engines import LOADERS

        begin = time.perf_counter()
        run = LOADERS[engine](model, threads)
        inputs = model.random_inputs()
        run(inputs)
        pipe.send((True, time.perf_counter() - begin))
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
        return
    while True:
        what, warmup, runs = pipe.recv()
        try:
            if what == "outputs":
                pipe.send((True, [np.array(output) for output in run(inputs)]))
            else:
                pipe.send((True, _time_calls(run, inputs, warmup, runs)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))


def _time_calls(run: Run, inputs: Tensors, warmup: int, runs: int) -> list[float]:
    for _ in range(warmup):
        run(inputs)
    samples = []
    for _ in range(runs):
        begin = time.perf_counter_ns()
        run(inputs)
        samples.append((time.perf_counter_ns() - begin) / 1e6)
    return samples


def _silence() -> None:
    """Engines print at load time; the parent's table must not be torn."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
