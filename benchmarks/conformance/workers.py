"""Judge groups of cases in processes, each of which may die or hang without harm to other cases.

A worker gets requests and sends verdicts along a pipe. A group during which a worker dies is judged
again, one case after the other, so that the death counts for one case only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from queue import Empty, Queue
from typing import Any

from benchmarks.commands import Child, silence

Line = dict[str, str]
_END = "done"


def run(
    suite: str,
    target: str,
    groups: dict[str, set[str]],  # with the cases that are known already
    write: Callable[[Line], None],
    jobs: int,
    most: int,
    seconds: float,
) -> None:
    """Judge the groups; `write` gets one line for each case, from any thread."""
    waiting: Queue[str] = Queue()
    for group in groups:
        waiting.put(group)

    def work() -> None:
        with closing(_Worker(suite, target, most, seconds)) as worker:
            while True:
                try:
                    group = waiting.get_nowait()
                except Empty:
                    return
                for case, verdict, detail in _whole_group(worker, group, groups[group]):
                    line = {"suite": suite, "group": group, "case": case, "target": target}
                    write({**line, "verdict": verdict, "detail": detail})

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()


def _whole_group(worker: _Worker, group: str, done: set[str]) -> Iterator[tuple[str, str, str]]:
    done, singly = {*done}, False
    while True:
        current, why = "", ""
        for case, verdict, detail in worker.judge(group, singly, done):
            if verdict == "begins":
                current = case
                continue
            if verdict == "dead":
                why = detail
                break
            if case:
                done.add(case)
            yield case, verdict, detail
            if verdict == _END:
                return
        if current or singly:
            yield current, "dead", why
            done.add(current)
            if not current:
                return
        singly = True


class _Worker:
    """A process, started when it is needed."""

    def __init__(self, suite: str, target: str, most: int, seconds: float) -> None:
        self._suite, self._target, self._most, self._seconds = suite, target, most, seconds
        self._child: Child | None = None

    def judge(self, group: str, singly: bool, done: set[str]) -> Iterator[tuple[str, str, str]]:
        """Verdicts until `done`, or `dead` with the reason."""
        threads = {"OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"}
        child = self._child = self._child or Child(
            __name__, self._suite, env={**os.environ, **threads}
        )
        with suppress(BrokenPipeError):  # reading says how it ended
            child.pipe.send((group, self._target, self._most, singly, done))
        verdict = ("", "", "")
        while verdict[1] != _END:
            try:
                if not child.pipe.poll(self._seconds):
                    raise EOFError(f"no answer in {self._seconds:g} s")
                verdict = child.pipe.recv()
            except (EOFError, ConnectionError) as error:
                self.close()
                ended = f"the process ended with code {child.process.returncode}"
                verdict = ("", "dead", str(error) if str(error).startswith("no answer") else ended)
                yield verdict
                return
            yield verdict

    def close(self) -> None:
        """Ends the process."""
        if self._child:
            self._child.close()
            self._child = None


def suite_of(name: str) -> Any:
    """The module of a suite."""
    name = "onnx_cases" if name == "onnx" else name
    return import_module(name if "." in name else f"benchmarks.conformance.{name}")


def _serve(pipe: Connection, suite: str) -> None:
    """A worker's main loop."""
    silence()
    while True:
        for verdict in suite_of(suite).judge(*pipe.recv()):
            pipe.send(verdict)
        pipe.send(("", _END, ""))


if __name__ == "__main__":
    with suppress(EOFError):  # the parent has ended
        _serve(Connection(int(sys.argv[1])), sys.argv[2])
