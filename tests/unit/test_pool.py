"""TVM's thread pool under the executor: how many workers there are, and on which cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tvm
from helpers.cpu_targets import TARGET
from helpers.small_models import build_model, kernel_ir, parallel_ir
from tvm import topi

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


_COUNT_THREADS = """
import os
os.environ.pop("TVM_NUM_THREADS", None)
import numpy as np, tvm
import tvm_stretch.run.load as runtime
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
model = runtime.load({path!r})
model(np.zeros((64, 4096), "float32"))
print(count() - before, len(os.sched_getaffinity(0)))
"""


_TWO_CORES = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
"""
"""TVM starts a worker for each core that it may use, and leaves those idle that it need not."""


def in_a_process_of_its_own(code: str) -> str:
    """What the code prints. Not forked: a forked child runs models on a thread more."""
    command = [sys.executable, "-c", _TWO_CORES + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_pool_has_as_many_workers_as_the_graph_says(threads: int, tmp_path: object) -> None:
    """Nothing but the graph decides; with one thread, TVM's pool is not even started."""
    path = tmp_path / "model.so"
    mod = parallel_ir() if threads > 1 else scaled_ir_of_same_shape()
    build_model(mod, TARGET, threads=threads).export(path)
    text = in_a_process_of_its_own(_COUNT_THREADS.format(path=str(path)))
    started, cores = map(int, text.split())
    assert started == min(threads, cores) - 1


_THREADS_ON_CORE = """
import os
for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS"):  # with this, TVM leaves its pool alone
    os.environ.pop(name, None)
from pathlib import Path
import numpy as np, tvm
import tvm_stretch.run.load as runtime
cores = os.sched_getaffinity(0)
core = min(cores)
before = set(os.listdir("/proc/self/task"))
model = runtime.load({path!r})
model.set_affinity([core])
model(np.zeros((64, 4096), "float32"))
workers = set(os.listdir("/proc/self/task")) - before
assert all(os.sched_getaffinity(int(worker)) == {{core}} for worker in workers), "the pool's"
assert os.sched_getaffinity(0) == cores, "the caller's thread is as free as before"
model.set_affinity(None)
model(np.zeros((64, 4096), "float32"))
assert all(len(cores - os.sched_getaffinity(int(worker))) == 1 for worker in workers)
print(len(workers))
"""


@needs_two_cores
def test_affinity_holds_for_the_pool_and_ends_with_the_run(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    build_model(parallel_ir(), TARGET, threads=2).export(path)
    assert int(in_a_process_of_its_own(_THREADS_ON_CORE.format(path=str(path)))) == 1


def scaled_ir_of_same_shape() -> tvm.IRModule:
    return kernel_ir(lambda b, p: [b.emit_te(topi.exp, p[0])], {"x": ((64, 4096), "float32")})


_APART = """
import os
{environment}
import numpy as np, tvm
import tvm_stretch.run.load as runtime
cores = os.sched_getaffinity(0)
before = set(os.listdir("/proc/self/task"))
model = runtime.load({path!r})
for _ in range(3):
    model(np.zeros((64, 4096), "float32"))
    (worker,) = set(os.listdir("/proc/self/task")) - before
    avoided = cores - os.sched_getaffinity(int(worker))
    assert len(avoided) == 1, avoided  # the caller's core then; which it is, the system decides
    assert os.sched_getaffinity(0) == cores, "the caller's thread is free"
"""


@needs_two_cores
@pytest.mark.parametrize("binding", ["0", pytest.param("1", marks=pytest.mark.full)])
def test_workers_keep_off_the_core_of_their_caller(binding: str, tmp_path: Path) -> None:
    """Else both may take turns on one core, run after run; see tests/native/test_cores.cc, too."""
    path = tmp_path / "model.so"
    build_model(parallel_ir(), TARGET, threads=2).export(path)
    environment = f'os.environ["TVM_BIND_THREADS"] = "{binding}"'
    in_a_process_of_its_own(_APART.format(path=str(path), environment=environment))


_CROWDED = """
import os
cores = os.sched_getaffinity(0)
os.sched_setaffinity(0, {{min(cores)}})
import numpy as np, tvm
import tvm_stretch.run.load as runtime
before = set(os.listdir("/proc/self/task"))
model = runtime.load({path!r})
model(np.zeros((64, 4096), "float32"))
workers = set(os.listdir("/proc/self/task")) - before
print(all(os.sched_getaffinity(int(worker)) == {{min(cores)}} for worker in workers))
"""


@pytest.mark.full
def test_workers_share_the_only_core(tmp_path: Path) -> None:
    path = tmp_path / "model.so"
    build_model(parallel_ir(), TARGET, threads=2).export(path)
    assert in_a_process_of_its_own(_CROWDED.format(path=str(path))) == "True\n"
