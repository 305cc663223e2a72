"""Judge groups of cases in processes, each of which may die or hang without harm to other cases.

A worker reads requests and writes verdicts, both as lines of JSON. A group during which a
worker dies is judged again, one case after the other, so that the death counts for one case only.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import Empty, Queue
from typing import Any

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
        with _Worker(suite, target, most, seconds) as worker:
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
        self._process: subprocess.Popen[bytes] | None = None

    def judge(self, group: str, singly: bool, done: set[str]) -> Iterator[tuple[str, str, str]]:
        """Verdicts until `done`, or `dead` with the reason."""
        process = self._process = self._process or self._start()
        assert process.stdin and process.stdout
        request = {"group": group, "singly": singly, "done": sorted(done), "target": self._target}
        with suppress(BrokenPipeError):  # reading says how it ended
            process.stdin.write(json.dumps({**request, "most": self._most}).encode() + b"\n")
        while True:
            ready, _, _ = select.select([process.stdout], [], [], self._seconds)
            line = process.stdout.readline() if ready else b""
            if not line:
                ended = f"no answer in {self._seconds:g} s" if not ready else ""
                self.close()
                yield "", "dead", ended or f"the process ended with code {process.returncode}"
                return
            verdict = tuple(json.loads(line))
            yield verdict
            if verdict[1] == _END:
                return

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", __name__, self._suite]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # `select` does not see lines that a buffer holds
            env={**os.environ, "OMP_NUM_THREADS": "1", "TVM_NUM_THREADS": "1"},
        )

    def close(self) -> None:
        """Ends the process."""
        if self._process:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def suite_of(name: str) -> Any:
    """The module of a suite."""
    name = "onnx_cases" if name == "onnx" else name
    return import_module(name if "." in name else f"benchmarks.conformance.{name}")


def _serve(suite: str) -> None:
    """A worker's main loop; what others print does not get among the lines."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for text in sys.stdin:
        request = json.loads(text)
        asked = (request["group"], request["target"], request["most"], request["singly"])
        for verdict in suite_of(suite).judge(*asked, {*request["done"]}):
            print(json.dumps(verdict), file=out, flush=True)
        print(json.dumps(("", _END, "")), file=out, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
