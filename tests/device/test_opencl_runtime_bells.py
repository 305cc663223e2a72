"""Regions that wait in the driver's queue: they meet others, fail, are cancelled, never get stuck.

On devices that are not the host's CPU the same graphs run without bells, with the same answers.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from helpers import opencl_graphs as graphs
from hypothesis import given
from hypothesis import strategies as st

from tvm_stretch.make.lowering.executor_graph import ProcessorSpec

try:
    DEVICES = json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())
except (RuntimeError, ValueError) as error:
    pytest.skip(f"no OpenCL device: {error}", allow_module_level=True)

SIZE = 128
SECOND = ProcessorSpec("opencl2", "opencl")
W = np.linspace(-1, 1, SIZE, dtype="float32")
X = np.random.default_rng(0).standard_normal(SIZE).astype("float32")


@pytest.fixture(autouse=True)
def no_hooks() -> Iterator[None]:
    graphs.HOOK.clear()
    yield
    graphs.HOOK.clear()


def check(executor: tvm.runtime.Module, steps: list[graphs.Step], x: np.ndarray = X) -> None:
    got = executor["invoke"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, graphs.expected(steps, x, W), rtol=1e-5, atol=1e-5)


@given(graphs.random_steps(3, 16), st.booleans(), st.sampled_from([graphs.FAKE, SECOND]))
def test_any_network(steps: list[graphs.Step], bells: bool, third: ProcessorSpec) -> None:
    executor = graphs.create_executor(steps, W, bells=bells, third=third)
    for x in (X, -X):
        check(executor, steps, x)


def alternating(count: int, *processors: int) -> list[graphs.Step]:
    """Each step waits for the one before it, on the next of the processors."""
    names = ["x", *(f"v{i}" for i in range(count - 1)), "y"]
    return [
        ("scale" if i % 3 else "copy", processors[i % len(processors)], (names[i],), names[i + 1])
        for i in range(count)
    ]


@pytest.mark.parametrize("third", [graphs.FAKE, SECOND])
def test_different_models_on_eight_threads_share_the_driver(third: ProcessorSpec) -> None:
    steps = [alternating(40, 0, 1), alternating(41, 1, 0), alternating(40, 0, 1, 2), graphs.CHAIN]
    executors = [graphs.create_executor(model, W, third=third) for model in steps]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            instance = executors[number % len(steps)]["create_instance"]()
            for _ in range(20):
                check(instance, steps[number % len(steps)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


COUNTER = """
__kernel void scale(__global const float* a, int a_first, __global float* out, int out_first,
                    int rounds) {
  out[out_first + get_global_id(0)] += 1.0f;
}
"""


def counting(*, waits: int) -> tvm.runtime.Module:
    """`y` counts how often the OpenCL region ran that waits for a hook of processor `waits`."""
    steps: list[graphs.Step] = [("hook", waits, ("x",), "a"), ("scale", 1, ("a",), "y")]
    code = graphs.opencl_code(SIZE, source=COUNTER, groups=[SIZE, 1, 1], group_size=[1, 1, 1])
    executor = graphs.create_executor(steps, W, code)
    executor["set_input"]("x", tvm.runtime.tensor(X))
    return executor


def count(executor: tvm.runtime.Module) -> int:
    executor["run"]()
    values = set(executor["get_output"](0).numpy().tolist())
    assert len(values) == 1
    return int(values.pop())


def fail() -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize("waits", [0, 2])
def test_what_waits_for_a_failure_never_runs(waits: int) -> None:
    executor = counting(waits=waits)
    assert count(executor) == 1
    for runs in (2, 3):
        graphs.HOOK.append(fail)
        for _ in range(3):
            with pytest.raises(Exception, match=r"region 'r0' to run on processor.*no luck"):
                executor["run"]()
        graphs.HOOK.clear()
        assert count(executor) == runs


def test_what_waits_for_a_cancelled_region_never_runs() -> None:
    executor = counting(waits=0)
    assert count(executor) == 1
    begun, go_on = threading.Event(), threading.Event()
    graphs.HOOK.extend([begun.set, lambda: go_on.wait(600)])
    caught: list[str] = []

    def run() -> None:
        try:
            executor["run"]()
        except Exception as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(600)
    executor["cancel"]()
    go_on.set()
    thread.join()
    graphs.HOOK.clear()
    assert len(caught) == 1
    assert "got a call of cancel" in caught[0]
    assert count(executor) == 2


def test_cancelled_at_any_time() -> None:
    steps = alternating(30, 0, 1, 1, 0, 2)
    executor = graphs.create_executor(steps, W)
    stop = threading.Event()

    def cancel() -> None:
        while not stop.wait(0.0005):
            executor["cancel"]()

    thread = threading.Thread(target=cancel)
    thread.start()
    outcomes = []
    for _ in range(200):
        try:
            check(executor, steps)
            outcomes.append("well")
        except Exception as error:
            assert "got a call of cancel" in str(error)
            outcomes.append("cancelled")
    stop.set()
    thread.join()
    assert "cancelled" in outcomes
    for _ in range(5):
        check(executor, steps)


def test_long_regions_are_waited_for() -> None:
    """On either side, for longer than anyone looks at memory without sleeping."""
    steps: list[graphs.Step] = [
        ("hook", 0, ("x",), "a"),
        ("scale", 1, ("a",), "b"),
        ("copy", 1, ("b",), "c"),
        ("add", 0, ("c", "w"), "y"),
    ]
    executor = graphs.create_executor(steps, W)
    graphs.HOOK.append(lambda: time.sleep(0.05))
    for _ in range(3):
        check(executor, steps)
    slow = graphs.SCALE_SOURCE.replace(
        "int size", "for (volatile int k = 0; k < 10000000; ++k);\n int size"
    )
    executor = graphs.create_executor(steps, W, graphs.opencl_code(SIZE, source=slow))
    check(executor, steps)


@pytest.mark.skipif(DEVICES[0]["type"] != "cpu", reason="only kernels on the host's CPU wait")
def test_waiting_is_no_work_in_the_timeline() -> None:
    steps = alternating(3, 0, 1)
    steps[0] = ("hook", 0, ("x",), "v0")
    executor = graphs.create_executor(steps, W)
    executor["set_input"]("x", tvm.runtime.tensor(X))
    executor["run"]()
    graphs.HOOK.append(lambda: time.sleep(0.02))
    cpu, device, _ = json.loads(executor["trace"]())["regions"]
    wait, kernel = device
    assert (wait["kind"], wait["id"], kernel["kind"]) == ("wait", 0, "kernel")
    assert wait["end"] - wait["start"] > 10e6
    assert wait["end"] <= kernel["start"] <= kernel["end"]
    assert kernel["start"] >= cpu[-1]["end"] - 200_000
