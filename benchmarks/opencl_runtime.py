"""The costs of the OpenCL runtime: launches, transfers, and work on two processors at once.

    python -m benchmarks.opencl_runtime

    launch      host time for one more kernel in a region
    hand-over   CPU -> OpenCL -> CPU of a ready tensor, against what the driver itself takes to
                enqueue a kernel and wait for it
    meeting     one of 40 in a run, of small kernels on the CPU and on OpenCL in turn
    helper      the same where there are no bells, as on GPUs of phones: a thread of ours enqueues
                what waits for the CPU. With all our threads anywhere, on the first core, on the
                last; and how long this one keeps a core busy for each of its regions
    parallel    a branch on each processor, against each branch alone

Every answer is checked before a time is reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tvm

from benchmarks.commands import options

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers import opencl_graphs as graphs  # noqa: E402  stands beside the tests that share it
from native.build_native import built  # noqa: E402

SMALL = 64


def median_us(call: Callable[[], object], rounds: int) -> float:
    """Median microseconds of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times[rounds // 10 :])) / 1e3


def prepared(steps: Sequence[graphs.Step], size: int, rounds: int = 1) -> tvm.runtime.Function:
    """The executor's `run`, after checking what it computes."""
    x, w = np.linspace(0, 1, size, dtype="float32"), np.zeros(size, "float32")
    executor = graphs.create_executor(steps, w, rounds=rounds)
    executor["set_input"]("x", tvm.runtime.tensor(x))
    executor["run"]()
    want = graphs.expected(steps, x, w, rounds)
    np.testing.assert_allclose(executor["get_output"](0).numpy(), want, rtol=1e-3)
    return executor["run"]


def chain(processors: Sequence[int]) -> list[graphs.Step]:
    """One small kernel after the other."""
    names = ["x", *(f"v{i}" for i in range(len(processors) - 1)), "y"]
    return [("scale", p, (names[i],), names[i + 1]) for i, p in enumerate(processors)]


def host_time_of_a_launch(rounds: int, more: int = 100) -> float:
    """Microseconds from one enqueue to the next, from the events of a traced run."""
    w = np.zeros(SMALL, "float32")
    executor = graphs.create_executor(chain([1] * more), w)
    executor["set_input"]("x", tvm.runtime.tensor(w))
    gaps: list[int] = []
    for _ in range(max(rounds // 20, 5)):
        (spans,) = json.loads(executor["trace"]())["regions"]
        queued = [span["queued"] for span in spans if span["kind"] == "kernel"]
        gaps += list(np.diff(queued))
    return float(np.median(gaps)) / 1e3


def hand_over(rounds: int) -> float:
    """Microseconds that a region on OpenCL between two on the CPU adds to these."""
    there_and_back = prepared(chain([0, 1, 0]), SMALL)
    host_only = prepared(chain([0, 0]), SMALL)
    differences = [
        median_us(there_and_back, rounds) - median_us(host_only, rounds) for _ in range(5)
    ]
    return float(np.median(differences))


def meeting(rounds: int, count: int = 20) -> tuple[float, float]:
    """Microseconds from one small region to the next of the other processor, in a long run.

    All of it, and without what the same kernels take in one region of each processor.
    """
    both = prepared(chain([0, 1] * count + [0]), SMALL)
    cpu, device = prepared(chain([0] * (count + 1)), SMALL), prepared(chain([1] * count), SMALL)
    times = np.array([[median_us(run, rounds) for run in (both, cpu, device)] for _ in range(5)])
    in_turn, cpu_alone, device_alone = np.median(times, axis=0)
    gaps = np.array([in_turn - cpu_alone, in_turn - cpu_alone - device_alone]) / (2 * count)
    return float(gaps[0]), float(gaps[1])


def helper(rounds: int, count: int = 20) -> list[tuple[str, float, float]]:
    """Microseconds of a meeting without bells, and of the helper's own work for each region.

    By where all our threads may run. Memory that is copied keeps a driver from having bells.
    """
    cores = sorted(os.sched_getaffinity(0))
    x = np.linspace(0, 1, SMALL, dtype="float32")
    steps = chain([0, 1] * count + [0])
    prepared(steps, SMALL)  # the driver's own threads begin
    before = _threads()
    executor = graphs.create_executor(steps, np.zeros(SMALL, "float32"))
    executor["set_input"]("x", tvm.runtime.tensor(x))
    executor["run"]()
    (thread,) = _threads() - before
    places = {"anywhere": "", "on the first core": cores[0], "on the driver's core": cores[-1]}
    rows = []
    for where, core in places.items():
        executor["set_affinity"](str(core))
        executor["run"]()
        started = _busy_ns(thread)
        taken = median_us(executor["run"], rounds)
        busy = (_busy_ns(thread) - started) / rounds / count / 1e3
        rows.append((where, taken / (2 * count), busy))
    return rows


def _threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def _busy_ns(thread: int) -> int:
    """How long a thread has kept a core busy."""
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])


def driver(rounds: int) -> tuple[float, float]:
    """Microseconds of the driver's own enqueue, and of enqueue and wait."""
    program = built("opencl_driver") / "opencl_driver"
    runs = [
        subprocess.run(
            [program, str(SMALL), str(rounds), "20"], check=True, capture_output=True, text=True
        ).stdout.split()
        for _ in range(5)
    ]
    enqueue, wait = np.median(np.array(runs, float), axis=0)
    return float(enqueue), float(wait)


def parallel(rounds: int, size: int = 1 << 13, work: int = 600) -> tuple[float, float, float]:
    """Milliseconds of a branch on the CPU, one on OpenCL, and of both at once."""
    cpu, device = ("scale", 0, ("x",), "a"), ("scale", 1, ("x",), "b")
    both = [device, cpu, ("add", 0, ("a", "b"), "y")]
    runs = [
        prepared([cpu, ("add", 0, ("a", "a"), "y")], size, work),
        prepared([device, ("add", 0, ("b", "b"), "y")], size, work),
        prepared(both, size, work),
    ]
    times = np.array([[median_us(run, rounds) for run in runs] for _ in range(3)])
    alone_cpu, alone_device, together = np.min(times, axis=0) / 1e3
    return float(alone_cpu), float(alone_device), float(together)


def main() -> None:
    """Print the table of the module docstring."""
    args = options(
        __doc__, None, ("--rounds", 300), ("--helper", False, "only the rows of the helper")
    )
    rounds = args.rounds
    if args.helper:
        for where, each, busy in helper(rounds):
            print(f"helper      {each:6.2f} us a meeting, {busy:.2f} us of its core: {where}")
        return
    device = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())[0]
    print(f"{device['name']} ({device['platform']}), memory {device['memory']}")
    one, many = prepared(chain([1]), SMALL), prepared(chain([1] * 101), SMALL)
    per_kernel = (median_us(many, rounds) - median_us(one, rounds)) / 100
    print(f"launch      {host_time_of_a_launch(rounds):6.2f} us of host time a kernel")
    print(f"kernel      {per_kernel:6.2f} us from one small kernel of a region to the next")
    enqueue, wait = driver(rounds)
    ours = hand_over(rounds)
    print(f"driver      {enqueue:6.2f} us to enqueue, {wait:.2f} us to enqueue and wait")
    print(f"hand-over   {ours:6.2f} us, {ours / wait:.2f} of the driver's enqueue and wait")
    whole, beyond = meeting(rounds)
    print(f"meeting     {whole:6.2f} us in a long run, {beyond:.2f} us beyond the kernels")
    environment = {**os.environ, "TVM_STRETCH_OPENCL_MEMORY": "mirror"}  # settled at first use
    again = [sys.executable, "-m", "benchmarks.opencl_runtime", "--helper", "--rounds", str(rounds)]
    subprocess.run(again, env=environment, cwd=ROOT, check=True)
    cpu, opencl, both = parallel(max(rounds // 15, 5))
    slower = max(cpu, opencl)
    print(f"parallel    CPU {cpu:.2f} ms, OpenCL {opencl:.2f} ms, both {both:.2f} ms: ", end="")
    print(f"{both / slower:.3f} of the slower, {(cpu + opencl) / both:.2f}x of one after the other")


if __name__ == "__main__":
    main()
