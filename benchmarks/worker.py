"""An engine in a process of its own, pinned to its cores and stopped while others run.

The process has the interpreter of the engine's environment.

Idle thread pools spin to be fast at the next call. That is each engine's best setting, so it stays
on; instead a worker is stopped (SIGSTOP) whenever it is not its turn, and the warm-up run after
SIGCONT wakes its pool again. So an idle peer takes no time from the one that is measured.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks import only_avx2
from benchmarks.commands import Child, silence, turns
from benchmarks.engines import ENGINES, load, python_of, setup_of
from benchmarks.models import Model


class Worker:
    """Parent's handle of one engine process; a failure there is a `RuntimeError` here."""

    def __init__(
        self,
        engine: str,
        model: Model,
        threads: int,
        cores: list[int],
        mcpu: str = "",
        avx2: bool = False,
    ) -> None:
        """Starts the process and loads the model there; ours with code for ``mcpu``.

        With ``avx2``, peers are told that there is no AVX-512. Without ``cores``, the process is
        neither pinned nor stopped: its threads wait for a GPU.
        """
        self._is_stopped = bool(cores)
        variables = _environment(engine, threads)
        variables |= only_avx2.environment(engine) if avx2 else {}
        self._child = Child("benchmarks.worker", python=python_of(engine), env=variables)
        self.close = self._child.close
        try:
            self.load_seconds: float = self._exchange((engine, model, threads, cores, mcpu))
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

    def share_of_avx512(self) -> float:
        """How much of the time registers of AVX-512 are in use, with ``avx2``."""
        return self._ask(("share of AVX-512", 0, 0))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask(self, command: tuple[str, int, int]) -> Any:
        self._child.process.send_signal(signal.SIGCONT)
        try:
            return self._exchange(command)
        finally:
            self._pause()

    def _pause(self) -> None:
        if self._is_stopped:
            self._child.process.send_signal(signal.SIGSTOP)

    def _exchange(self, request: tuple[Any, ...]) -> Any:
        try:
            self._child.pipe.send(request)
            ok, value = self._child.pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"process ended with code {self._child.process.wait()}") from None
        if not ok:
            raise RuntimeError(value)
        return value


def _environment(engine: str, threads: int) -> dict[str, str]:
    """Variables that thread pools read when their library is loaded, and none of our paths."""
    count = str(threads)
    pools = {"OMP_NUM_THREADS": count, "TVM_NUM_THREADS": count, "TVM_BIND_THREADS": "0"}
    ours = ("PYTHONPATH", "PYTHONHOME") if ENGINES[engine].is_for_phones else ()
    return {name: value for name, value in os.environ.items() if name not in ours} | pools


def _serve(pipe: Connection) -> None:
    """The worker's main loop."""
    engine, model, threads, cores, mcpu = pipe.recv()
    if cores:
        os.sched_setaffinity(0, cores)  # before the engine starts its threads, which inherit it
    silence()
    try:
        begin = time.perf_counter()
        run = load(engine, model, threads, mcpu)
        run()
        pipe.send((True, time.perf_counter() - begin))
    except ImportError as error:
        pipe.send((False, f"{error}; {setup_of(engine)}"))
        return
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
        return
    while True:
        what, warmup, runs = pipe.recv()
        try:
            if what == "outputs":
                pipe.send((True, [np.array(output) for output in run()]))
            elif what == "share of AVX-512":
                pipe.send((True, only_avx2.share_of_avx512(run)))
            else:
                samples = turns({"": run}, 1, warm_up=warmup, times=runs)
                pipe.send((True, samples.of[""]))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
