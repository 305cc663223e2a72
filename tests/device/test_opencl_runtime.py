"""The OpenCL processor on whatever device there is (PoCL in CI): numerics, errors, life time."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
import tvm_ffi
from helpers import opencl_graphs as graphs
from hypothesis import given
from tvm import te


def devices() -> list[dict]:
    return json.loads(tvm.get_global_func("tvm_stretch.opencl_devices")())


try:
    devices()
except (RuntimeError, ValueError) as error:
    pytest.skip(f"no OpenCL device: {error}", allow_module_level=True)

SIZE = 1000 // 64 * 64


def weights(size: int = SIZE) -> np.ndarray:
    return np.linspace(-1, 1, size, dtype="float32")


def run(executor: tvm.runtime.Module, x: np.ndarray) -> np.ndarray:
    return executor["invoke"](tvm.runtime.tensor(x)).numpy()


def inputs(seed: int = 0, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype("float32")


def test_devices_are_described() -> None:
    for device in devices():
        assert device["type"] in ("gpu", "cpu", "other")
        assert device["compute_units"] > 0
        assert device["max_group_size"] > 0
        assert device["memory"] in ("shared", "fine", "mapped", "mirror")
        assert isinstance(device["extensions"], list)


def test_chain_over_two_processors() -> None:
    executor = graphs.create_executor(graphs.CHAIN, weights())
    for seed in range(20):
        x = inputs(seed)
        np.testing.assert_allclose(
            run(executor, x), graphs.expected(graphs.CHAIN, x, weights()), rtol=1e-6
        )


@given(graphs.random_steps())
def test_any_network(steps: list[graphs.Step]) -> None:
    executor = graphs.create_executor(steps, weights(64))
    for seed in range(2):
        x = inputs(seed, 64)
        want = graphs.expected(steps, x, weights(64))
        np.testing.assert_allclose(run(executor, x), want, rtol=1e-5, atol=1e-5)


def test_instances_on_eight_threads() -> None:
    executor = graphs.create_executor(graphs.CHAIN, weights())
    failures: list[Exception] = []

    def work(seed: int) -> None:
        try:
            instance = executor["create_instance"]()
            x = inputs(seed)
            want = graphs.expected(graphs.CHAIN, x, weights())
            for _ in range(50):
                np.testing.assert_allclose(run(instance, x), want, rtol=1e-6)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def grow(runs: int) -> tuple[int, int, int]:
    """Bytes, file descriptors and threads that so many runs add."""
    executor = graphs.create_executor(graphs.CHAIN, weights())
    x = tvm.runtime.tensor(inputs())
    y = tvm.runtime.tensor(inputs())
    process = psutil.Process()

    def usage() -> tuple[int, int, int]:
        gc.collect()
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    for _ in range(300):
        executor["invoke"](x, y)
    before = usage()
    for _ in range(runs):
        executor["invoke"](x, y)
    return tuple(a - b for a, b in zip(usage(), before, strict=True))  # type: ignore[return-value]


def test_runs_leave_nothing_behind() -> None:
    memory, files, threads = grow(1000)
    assert (files, threads) == (0, 0)
    assert memory < 2 << 20


@pytest.mark.full
def test_ten_thousand_runs_leave_nothing_behind() -> None:
    memory, files, threads = grow(10_000)
    assert (files, threads) == (0, 0)
    assert memory < 4 << 20


def test_models_come_and_go() -> None:
    process = psutil.Process()

    def once() -> None:
        executor = graphs.create_executor(graphs.CHAIN, weights())
        run(executor, inputs())

    for _ in range(10):
        once()
    gc.collect()
    before = process.num_fds(), process.num_threads()
    for _ in range(20):
        once()
    gc.collect()
    assert (process.num_fds(), process.num_threads()) == before


def test_trace_has_the_device_s_times() -> None:
    executor = graphs.create_executor(graphs.CHAIN, weights())
    for i in range(len(graphs.CHAIN)):
        executor["set_input"]("x", tvm.runtime.tensor(inputs(i)))
        executor["run"]()
    trace = json.loads(executor["trace"]())
    regions = graphs.build_graph(graphs.CHAIN, SIZE).regions
    slack = 200_000  # the two clocks are compared, not the same
    for region, spans in zip(regions, trace["regions"], strict=True):
        kernels = [span for span in spans if span["kind"] == "kernel"]
        assert [span["id"] for span in kernels] == list(region.nodes)
        for span in kernels:
            assert trace["start"] - slack <= span["start"] <= span["end"] <= trace["end"] + slack
            if region.processor == 1:
                assert span["queued"] <= span["submitted"] <= span["start"]
    ends = [max(span["end"] for span in spans) for spans in trace["regions"]]
    assert all(a <= b + slack for a, b in itertools.pairwise(ends))


def test_comparing_clocks_is_no_part_of_a_trace() -> None:
    executor = graphs.create_executor(graphs.CHAIN, weights())
    executor["set_input"]("x", tvm.runtime.tensor(inputs(0)))
    before, until_queued = [], []
    for _ in range(20):
        called = time.monotonic_ns()
        trace = json.loads(executor["trace"]())
        before.append(trace["start"] - called)
        spans = itertools.chain.from_iterable(trace["regions"])
        until_queued.append(min(s["queued"] for s in spans if "queued" in s) - trace["start"])
    assert min(until_queued) < min(before)  # some markers pass through the device


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_branches_run_at_the_same_time() -> None:
    size, rounds = 1 << 12, 400
    steps: list[graphs.Step] = [
        ("scale", 1, ("x",), "a"),
        ("scale", 0, ("x",), "b"),
        ("add", 0, ("a", "b"), "y"),
    ]
    executor = graphs.create_executor(steps, weights(size), rounds=rounds)
    executor["set_input"]("x", tvm.runtime.tensor(inputs(0, size)))
    executor["run"]()
    np.testing.assert_allclose(
        executor["get_output"](0).numpy(),
        graphs.expected(steps, inputs(0, size), weights(size), rounds),
        rtol=1e-2,
        atol=1e-2,
    )
    shares = []
    for _ in range(20):  # other processes may hold one of the cores for a while
        device, host, _ = json.loads(executor["trace"]())["regions"]
        a, b = (
            next(span for span in spans if span["kind"] == "kernel") for spans in (device, host)
        )
        overlap = min(a["end"], b["end"]) - max(a["start"], b["start"])
        shares.append(overlap / min(a["end"] - a["start"], b["end"] - b["start"]))
    assert max(shares) > 0.8, shares


def broken(match: str, code: str) -> None:
    """The code is refused with one clear error, and other models still run."""
    healthy = graphs.create_executor(graphs.CHAIN, weights())
    executor = graphs.create_executor(graphs.CHAIN, weights(), code)
    with pytest.raises((RuntimeError, ValueError), match=match) as caught:
        run(executor, inputs())
    assert str(caught.value).count("expected ") == 1
    want = graphs.expected(graphs.CHAIN, inputs(), weights())
    np.testing.assert_allclose(run(healthy, inputs()), want, rtol=1e-6)


def test_build_failure_shows_the_log() -> None:
    source = "__kernel void scale(__global float* a) { a[0] = undeclared_name; }"
    broken("undeclared_name", graphs.opencl_code(SIZE, source=source))


def test_too_large_group() -> None:
    sizes = {"groups": [1, 1, 1], "group_size": [1 << 20, 1, 1]}
    broken("work-group", graphs.opencl_code(SIZE, **sizes))


def test_too_much_local_memory() -> None:
    source = graphs.SCALE_SOURCE.replace("int rounds)", "int rounds, __local float* scratch)")
    args = [*graphs.BUFFER_0, *graphs.BUFFER_1, ["int32", 1], ["local", 1 << 30]]
    broken("local memory", graphs.opencl_code(SIZE, source=source, args=args))


def test_missing_entry() -> None:
    broken("nothing_here", graphs.opencl_code(SIZE, entry="nothing_here"))


def test_wrong_number_of_arguments() -> None:
    broken("arguments", graphs.opencl_code(SIZE, args=[*graphs.BUFFER_0, *graphs.BUFFER_1]))


def test_argument_of_a_tensor_that_is_not_there() -> None:
    args = [*graphs.BUFFER_0, ["buffer", 9], ["offset", 1], ["int32", 1]]
    broken("number 9", graphs.opencl_code(SIZE, args=args))


def test_scratch_memory() -> None:
    source = """
    __kernel void scale(__global const float* a, int a_first, __global float* out, int out_first,
                        __global float* scratch, int rounds) {
      int i = get_global_id(0);
      scratch[i] = a[a_first + i] * 1.5f;
      out[out_first + i] = scratch[i] + 1.0f;
    }"""
    args = [*graphs.BUFFER_0, *graphs.BUFFER_1, ["scratch", 4 * SIZE], ["int32", 1]]
    code = graphs.opencl_code(SIZE, source=source, args=args, groups=[SIZE, 1, 1])
    executor = graphs.create_executor(graphs.CHAIN, weights(), code)
    want = graphs.expected(graphs.CHAIN, inputs(), weights())
    np.testing.assert_allclose(run(executor, inputs()), want, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda code: code.update(kernels=3),
        lambda code: code.pop("options"),
        lambda code: code["kernels"]["add"][0].pop("groups"),
        lambda code: code["kernels"]["add"][0].update(groups=[1, 0, 1]),
        lambda code: code["kernels"]["add"][0].update(group_size=[1, 1]),
        lambda code: code["kernels"]["add"][0].update(args=[["pointer", 1]]),
        lambda code: code["kernels"]["add"][0].update(args=[["buffer", -1]]),
        lambda code: code["kernels"]["add"][0].update(args=[["int32", 1 << 40]]),
        lambda code: code["kernels"].update(add=[7]),
    ],
)
def test_malformed_code_is_refused(change) -> None:
    code = json.loads(graphs.opencl_code(SIZE))
    change(code)
    with pytest.raises(ValueError, match="expected"):
        tvm.get_global_func("tvm_stretch.create_opencl_code")(json.dumps(code))


def test_code_survives_an_artifact(tmp_path: Path) -> None:
    text = graphs.opencl_code(SIZE)
    data = te.placeholder((1,), name="data")
    function = te.create_prim_func([data, te.compute((1,), lambda i: data[i])])
    library = tvm.tirx.build(tvm.IRModule({"main": function}), target="llvm")
    library.import_module(tvm.get_global_func("tvm_stretch.create_opencl_code")(text))
    library.export_library(str(tmp_path / "code.so"))
    (code,) = tvm.runtime.load_module(str(tmp_path / "code.so")).imports
    assert code.kind == "tvm_stretch.opencl"
    assert code.inspect_source("json") == text
    assert all(source in code.inspect_source() for source in json.loads(text)["sources"])


def test_damaged_code_is_refused() -> None:
    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.tvm_stretch.opencl")
    for damaged in (b"", b"TVMSTRO1", b"TVMSTRO1" + bytes(20), bytes(100)):
        with pytest.raises(ValueError, match="undamaged"):
            load(damaged)
