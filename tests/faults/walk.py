"""Lets the n-th step of a kind fail, for n from one until nothing fails any more.

    python tests/faults/walk.py                       every scenario and kind: hours
    python tests/faults/walk.py cpu allocation 7      each 7th allocation of one scenario

After each fault there was one clear error or the right answer; then the same model, and one that is
loaded anew, answer rightly. A table of counts is printed; what was bad is told before it.
"""

from __future__ import annotations

import ctypes.util
import functools
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PLACES = [str(path) for path in (FOLDER, FOLDER.parent, FOLDER.parent / "unit", ROOT)]
"""Where modules of the tests are."""
FILES = ("write", "rename", "read")
KINDS = ("allocation", "opencl", "message", "command", *FILES)
VARIABLES = {memory: {"TVM_STRETCH_OPENCL_MEMORY": memory} for memory in ("mirror", "mapped")}
"""Settings by scenario: OpenCL devices that hold or map memory in another way."""
LIBC = "cannot allocate memory for thread-local data: ABORT"
"""glibc ends a process that has no memory for a thread's variables: no program can catch it."""
SECONDS = 60
"""Limit for a step and what follows it; a longer one counts as hanging."""

_CONTROL = struct.Struct("<iiqqqi")


@functools.cache
def injector(sanitized: bool = False) -> Path:
    """The library, built where it is older than its source.

    Args:
        sanitized: for programs under a sanitizer, which has a malloc of its own.
    """
    name = "injector_of_new.so" if sanitized else "injector.so"
    built, source = ROOT / "build" / "faults" / name, FOLDER / "injector.cc"
    built.parent.mkdir(parents=True, exist_ok=True)
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        own = built.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-iquote{ROOT}"]
        flags += ["-DFAULTS_NEW_ONLY"] if sanitized else []
        subprocess.run(["g++", *flags, source, "-o", own, "-ldl"], check=True)
        own.replace(built)
    return built


class Control:
    """What all processes with the injector share."""

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, 4096)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 4096)

    def arm(self, kind: str, number: int) -> None:
        """Count from now on, and let a step fail.

        Args:
            kind: one of `KINDS`; with a plus sign, all later steps fail, too. "silence" is a
                command that gets no answer, from a process that lives.
        """
        lasts, silent = kind.endswith("+"), kind == "silence"
        _CONTROL.pack_into(self._memory, 0, 0, lasts, number, 0, 0, silent)
        known = "command" if silent else kind.rstrip("+")
        struct.pack_into("<i", self._memory, 0, 1 + KINDS.index(known))

    def disarm(self) -> tuple[int, int]:
        """How many steps there were, and how many of them failed."""
        struct.pack_into("<i", self._memory, 0, 0)
        _kind, _lasts, _number, seen, failed, _silent = _CONTROL.unpack_from(self._memory)
        return seen, failed


# --- a process that walks -------------------------------------------------------------------------


class Walker:
    """Walks one kind of one scenario."""

    def __init__(self, name: str, kind: str, folder: Path) -> None:
        import numpy as np
        from scenarios import SCENARIOS

        self._np, self._kind, self._folder = np, kind, folder
        self._scenario = SCENARIOS[name]
        self._control = Control(Path(os.environ["FAULTS"]))
        self._path = folder / "model.so"
        self._is_of_files = kind.rstrip("+") in FILES
        model = self._scenario.make()
        self._expected = self._scenario.run(model)
        model.export(self._path)
        self._check(self._load_and_run())

    def step(self, number: int) -> dict[str, Any]:
        """The n-th step fails, and how that ended."""
        import tvm_stretch as ts

        held: list[Any] = []
        fault = ""
        if self._kind.rstrip("+") in ("write", "rename"):
            shutil.rmtree(self._folder / "cache", ignore_errors=True)
        self._control.arm(self._kind, number)
        try:
            self._check(self._attempt(held))
        except ts.StretchError as error:
            fault = str(error)
        except BaseException as error:
            seen, failed = self._control.disarm()
            text = f"raw error {type(error).__name__}: {error}"
            return {"seen": seen, "failed": failed, "bad": text}
        seen, failed = self._control.disarm()
        outcome = {"seen": seen, "failed": failed, "outcome": "error" if fault else "answer"}
        if fault and not fault.startswith("expected "):
            return {**outcome, "bad": f"unclear error: {fault}"}
        if self._kind.startswith("allocation") and fault.endswith("export the model again"):
            return {**outcome, "bad": f"an error of another thing: {fault}"}
        return {**outcome, "told": fault, **self._afterwards(held)}

    def _attempt(self, held: list[Any]) -> list[Any]:
        if self._is_of_files:
            model = self._scenario.make()
            model.export(self._path)
        return self._load_and_run(held)

    def _load_and_run(self, held: list[Any] | None = None) -> list[Any]:
        model = self._scenario.load(self._path)
        if held is not None:
            held.append(model)
        try:
            return self._scenario.run(model)
        finally:
            if held is None:
                self._scenario.close(model)

    def _afterwards(self, held: list[Any]) -> dict[str, Any]:
        """Return what is still wrong once no call fails any more."""
        try:
            for model in held:
                self._again(model)
                self._scenario.close(model)
            # An export also removes what one before it could not.
            self._check(self._attempt([]) if self._is_of_files else self._load_and_run())
        except Exception as error:
            return {"bad": f"the next run: {type(error).__name__}: {error}"}
        left = {path.name for path in self._folder.iterdir()} - {"model.so", "cache", "control"}
        return {"bad": f"files left behind: {left}"} if left else {}

    def _again(self, model: Any) -> None:
        """The same model; a DSP that failed is started again after a pause.

        One that fails between two runs is noticed by the second one.
        """
        import tvm_stretch as ts

        give_up, told = time.monotonic() + 10, 0
        while True:
            try:
                return self._check(self._scenario.run(model))
            except ts.DeviceError as error:
                told += "after a pause" not in str(error)
                may_fail = self._kind in ("command", "silence") and told <= 1
                if not may_fail or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def _check(self, found: list[Any]) -> None:
        for one, other in zip(found, self._expected, strict=True):
            self._np.testing.assert_array_equal(one, other)


def resources() -> dict[str, int]:
    """Count what this process holds, which may not grow."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "kilobytes": pages * 4,
    }


def walk(name: str, kind: str, first: int, every: int) -> None:
    """Print a line before each step, and one after it."""
    walker = Walker(name, kind, Path(os.environ["FAULTS_FOLDER"]))
    number, fails = first, True
    while fails:
        print(json.dumps({"begins": number}), flush=True)
        ended = walker.step(number)
        print(json.dumps({**ended, "number": number, **resources()}), flush=True)
        fails = ended["failed"] > 0
        number += every


# --- the process that watches it ------------------------------------------------------------------


@contextmanager
def environment(name: str, kind: str) -> Iterator[dict[str, str]]:
    """Variables for a process that walks."""
    with tempfile.TemporaryDirectory(prefix="faults.") as text:
        folder = Path(text)
        Control(folder / "control")
        yield {
            **os.environ,
            "PYTHONPATH": ":".join(PLACES),
            "LD_PRELOAD": str(injector()),
            "FAULTS": str(folder / "control"),
            "FAULTS_ROOT": f"{folder}/model:{folder}/.model:{folder}/cache",
            "FAULTS_FOLDER": text,
            "TVM_STRETCH_CACHE_DIR": str(folder / "cache"),
            "TVM_BIND_THREADS": "0",
            **VARIABLES.get(name, {}),
            "TVM_STRETCH_OPENCL_LIB": str(injector()),
            "FAULTS_OPENCL": ctypes.util.find_library("OpenCL") or "libpocl.so.2",
            **({"POCL_KERNEL_CACHE": "0"} if kind.rstrip("+") in FILES else {}),
        }


def watched(name: str, kind: str, every: int = 1, first: int = 1) -> list[dict[str, Any]]:
    """The outcome of every step; a process that dies or hangs is followed by another."""
    outcomes: list[dict[str, Any]] = []
    while True:
        with environment(name, kind) as variables:
            lines, status = _one_process(name, kind, first, every, variables)
        began = [line["begins"] for line in lines if "begins" in line]
        ended = [line for line in lines if "number" in line]
        outcomes += ended
        if status == "":
            return outcomes
        if not began:
            raise RuntimeError(status)
        outcomes.append({"number": began[-1], **_ended(status)})
        first = began[-1] + every
        if sum("bad" in one for one in outcomes) > 200:
            return outcomes


def _ended(status: str) -> dict[str, str]:
    return {"outcome": "libc"} if LIBC in status else {"bad": status}


def _one_process(
    name: str, kind: str, first: int, every: int, variables: dict[str, str]
) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, str(Path(__file__).resolve()), "--walk", name, kind]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*command, str(first), str(every)],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        for line in _in_time(process):
            lines.append(json.loads(line))
        status = process.wait()
        errors.seek(0)
        said = errors.read()[-2000:]
    if status == 0:
        return lines, ""
    return lines, f"ended with {status}: {said}"


def _in_time(process: subprocess.Popen[str]) -> Iterator[str]:
    """Its lines; it is killed if it says nothing for long."""
    import threading

    assert process.stdout is not None
    timer = threading.Timer(2 * SECONDS, process.kill)
    timer.start()
    for line in process.stdout:
        timer.cancel()
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        if line.startswith("{"):
            yield line
    timer.cancel()


def row(name: str, kind: str, outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of a walk."""
    counts = Counter("bad" if "bad" in one else one["outcome"] for one in outcomes)
    whole = [one for one in outcomes if "kilobytes" in one]
    # the least of several steps: a connection that closes is held for a moment
    quarter = len(whole) // 4 + 1
    early, late = whole[quarter - 1 : 2 * quarter], whole[-quarter:]
    grown = {
        what: min(one[what] for one in late) - min(one[what] for one in early)
        for what in resources()
        if whole
    }
    return {
        "scenario": name,
        "kind": kind,
        "steps": max((one.get("seen", 0) for one in outcomes), default=0),
        "injected": sum(one.get("failed", 1) > 0 for one in outcomes),
        "errors": counts["error"],
        "answers": counts["answer"],
        "libc": counts["libc"],
        "bad": counts["bad"],
        "grown": grown,
    }


def main(words: list[str]) -> int:
    """Walk and print the table."""
    sys.path[:0] = PLACES
    if words and words[0] == "--walk":
        walk(words[1], words[2], int(words[3]), int(words[4]))
        return 0
    from scenarios import SCENARIOS

    every = int(words[2]) if len(words) > 2 else 1
    rows = []
    for name, scenario in SCENARIOS.items():
        for kind in scenario.kinds:
            if words and (name != words[0] or (len(words) > 1 and kind != words[1])):
                continue
            outcomes = watched(name, kind, every)
            for one in outcomes:
                if "bad" in one:
                    print(name, kind, one["number"], re.sub(r"\s+", " ", one["bad"])[-700:])
            rows.append(row(name, kind, outcomes))
            print(json.dumps(rows[-1]), flush=True)
    return int(any(one["bad"] for one in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
