"""Plants a defect of one line in each room, and fails if no test finds it.

    python tests/planted.py            # all: a minute or two; `make test-full` runs them
    python tests/planted.py run read   # some rooms

No file is changed: a process of pytest that is told of a defect (`install`, called by conftest.py)
compiles the module from a changed text. `make changed` must pick the test file, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import NamedTuple

VARIABLE = "TVM_STRETCH_TEST_DEFECT"


class Defect(NamedTuple):
    """What a line of a file has in place of what is right, and the file in unit/ that finds it."""

    path: str
    right: str
    wrong: str
    test: str


DEFECTS = {
    "api": Defect(
        "tvm_stretch/api/differences.py",
        "and not reads_different",
        "",
        "differences",
    ),
    "base": Defect(
        "tvm_stretch/base/files.py", "place != path and status.st_mode", "status.st_mode", "files"
    ),
    "lab": Defect(
        "tvm_stretch/lab/training/loop.py", "-own / (its +", "-its / (own +", "training_loop"
    ),
    "make": Defect(
        "tvm_stretch/make/lowering/memory_plan.py", "room >= size", "room > 0", "memory_plan"
    ),
    "network": Defect(
        "tvm_stretch/network/convolutions.py",
        "0 * bias.value",
        "1 * bias.value",
        "split_integers",
    ),
    "passes": Defect("passes/fold_batch_norm.py", "- mean * scale", "- mean", "fold_batch_norm"),
    "phone": Defect("tvm_stretch/phone/uploads.py", "number * PIECE", "0 * PIECE", "uploads"),
    "plan": Defect(
        "tvm_stretch/plan/scheduling/clock.py", "begin + receiving + ns", "begin + ns", "scheduling"
    ),
    "read": Defect(
        "tvm_stretch/read/onnx/operators/movement.py",
        "len(size) :]",
        "len(size) - 1 : -1]",
        "frontend",
    ),
    "run": Defect(
        "tvm_stretch/run/benchmark.py", "percent / 100) - 1)", "percent / 100))", "runtime"
    ),
    "targets": Defect(
        "targets/cpu/kernels/softmax.py", "0.16667637", "0.17667637", "attention_kernels"
    ),
}


def install() -> bool:
    """Make this process import the defect that the variable names; whether there is one."""
    if (room := os.environ.get(VARIABLE)) is None:
        return False
    defect, as_written = DEFECTS[room], SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        if not self.path.endswith(f"/{defect.path}"):
            return as_written(self, name)
        text = self.get_source(name) or ""
        assert text.count(defect.right) == 1, f"{defect.path} has no {defect.right!r}"
        return compile(text.replace(defect.right, defect.wrong), self.path, "exec")

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    return True


def main(*rooms: str) -> int:
    """Look for the defects of these rooms, by default of all; the exit code is 1 if one hides."""
    from changed import ROOT, files_for

    hidden = []
    for room in rooms or DEFECTS:
        defect = DEFECTS[room]
        file, environment = f"tests/unit/test_{defect.test}.py", {**os.environ, VARIABLE: room}
        assert file in files_for([defect.path]), f"make changed leaves out {file}"
        command = [sys.executable, "-m", "pytest", "-q", "-x", file]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        print(f"{room}: {defect.path}: {failed[0][:120] if failed else 'not found'}", flush=True)
        hidden += [] if failed else [room]
    return bool(hidden)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
