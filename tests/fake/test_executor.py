"""The executor on scripted processors: what overlaps, in which order, what moves, what fails."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest
import tvm
from helpers.fake_targets import TARGET, fake_processor
from helpers.memory_growth import keeps_growing
from tvm import relax, rpc

import tvm_stretch as ts
from tvm_stretch.network.operators import Calls
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.read import load_network

SHAPE = (1, 4, 8, 8)
X = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")

# (region, processor, operators); an operator is (name, what it reads): the sum of two tensors, or a
# number minus one tensor, each time another number so that no two operators are equal.
Step = tuple[str, str, list[tuple[str, ...]]]


def build(steps: list[Step], **scripts: dict[str, object]) -> ts.Model:
    """The network of these steps on the CPU and on fake processors; returns the last operator."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    values: dict[str, relax.Expr] = {"x": x}
    with bb.function("main", [x]):
        with bb.dataflow():
            for _, _, operators in steps:
                for name, *reads in operators:
                    operands = [values[read] for read in reads]
                    if len(operands) == 1:
                        constant = relax.const(minuend(values), "float32")
                        values[name] = bb.emit(relax.op.subtract(constant, *operands))
                    else:
                        values[name] = bb.emit(relax.op.add(*operands))
            out = bb.emit_output(values[name])
        bb.emit_func_output(out)
    mod = load_network(bb.get())
    fakes = sorted({processor for _, processor, _ in steps} - {"cpu"})
    names = operator_names(mod, [name for _, _, ops in steps for name, *_ in ops])
    regions = tuple(
        PlannedRegion(region, processor, tuple(names[name] for name, *_ in operators))
        for region, processor, operators in steps
    )
    processors = [fake_processor(name, **scripts.get(name, {})) for name in fakes]
    plan = Plan(("cpu", *fakes), regions)
    return ts.compile(mod, [TARGET, *processors], plan=plan, cpu_threads=1)


def minuend(values: dict[str, object]) -> np.float32:
    """What the next operator of one tensor subtracts it from."""
    return np.float32(0.5 + len(values) / 8)


def operator_names(mod: tvm.IRModule, order: list[str]) -> dict[str, str]:
    """The compiler's names of the operators, which stand in the order they were written."""
    return dict(zip(order, Calls(mod["main"]).calls, strict=True))


def answer(steps: list[Step], x: np.ndarray = X) -> np.ndarray:
    """What the network computes."""
    values = {"x": x}
    for _, _, operators in steps:
        for name, *reads in operators:
            operands = [values[read] for read in reads]
            one = len(operands) == 1
            values[name] = minuend(values) - operands[0] if one else np.add(*operands)
    return values[name]


def check(model: ts.Model, steps: list[Step], x: np.ndarray = X) -> None:
    is_close(model(x), steps, x)


def is_close(y: np.ndarray, steps: list[Step], x: np.ndarray = X) -> None:
    np.testing.assert_allclose(y, answer(steps, x), rtol=1e-4, atol=1e-5)


def log(model: ts.Model, index: int = 1) -> dict[str, list]:
    """What a fake processor did since the last call."""
    return json.loads(model.module.imports[index]["log"]())


def latency(milliseconds: float, *regions: str) -> dict[str, object]:
    return {"regions": {name: {"latency_us": int(1000 * milliseconds)} for name in regions}}


def happens(attempt: Callable[[], bool]) -> bool:
    """Whether it succeeds in one of several attempts: the machine may be busy with other work."""
    return any(attempt() for _ in range(5))


def soon(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.001)


FORK: list[Step] = [
    ("left", "a", [("l", "x")]),
    ("right", "b", [("r", "x"), ("rr", "r")]),
    ("join", "cpu", [("y", "l", "rr")]),
]


def test_parallel_regions_take_as_long_as_the_slower() -> None:
    model = build(FORK, a=latency(60, "left"), b=latency(60, "right"))
    check(model, FORK)

    def overlaps() -> bool:
        assert min(model.benchmark(repeat=10).samples) >= 0.060
        timeline = model.timeline()
        return timeline.duration < 90e6 and timeline.overlap > 0.5

    assert happens(overlaps), "not the sum of 120 ms"


def test_the_cpu_works_while_others_do() -> None:
    steps: list[Step] = [
        ("slow", "a", [("s", "x")]),
        ("quick", "cpu", [("q", "x"), ("qq", "q")]),
        ("join", "cpu", [("y", "s", "qq")]),
    ]
    model = build(steps, a=latency(50, "slow"))
    check(model, steps)

    def overlaps() -> bool:
        _, quick, join = model.timeline().regions
        waits = [span.end - span.start for span in join.spans if span.kind == "wait"]
        return quick.end < 50e6 < join.start and max(waits, default=0) > 20e6

    assert happens(overlaps), "the first region does not wait, the second one does"


def test_a_slow_processor_does_not_delay_the_launch_of_another() -> None:
    steps: list[Step] = [
        ("a0", "a", [("p", "x")]),
        ("a1", "a", [("q", "p")]),
        ("a2", "a", [("r", "q")]),
        ("b0", "b", [("s", "x")]),  # stands last, could run first
        ("join", "cpu", [("y", "r", "s")]),
    ]
    model = build(steps, a=latency(30, "a0", "a1", "a2"))
    check(model, steps)

    def starts_early() -> bool:
        regions = model.timeline().regions
        return regions[3].end < regions[0].start + 30e6

    assert happens(starts_early)


def test_order_within_a_processor_and_between_them() -> None:
    """Regions of `a` wait for `b` in between; later ones never overtake."""
    steps: list[Step] = [
        ("a0", "a", [("p", "x")]),
        ("b0", "b", [("q", "p")]),
        ("a1", "a", [("r", "q", "x")]),
        ("a2", "a", [("s", "x")]),  # ready at once
        ("b1", "b", [("t", "r", "s")]),
        ("a3", "a", [("y", "t", "p")]),
    ]
    model = build(steps, a=latency(2, "a0"), b=latency(3, "b0", "b1"))
    for seed in range(3):
        check(model, steps, np.random.default_rng(seed).standard_normal(SHAPE).astype("float32"))
        assert log(model, 1)["regions"] == ["a0", "a1", "a2", "a3"]
        assert log(model, 2)["regions"] == ["b0", "b1"]
    regions = {region.name: region for region in model.timeline().regions}
    assert regions["b0"].start >= regions["a0"].end
    assert regions["a1"].start >= regions["b0"].end
    assert regions["a2"].start >= regions["a1"].end


def test_tensors_are_received_once() -> None:
    """Both the input and `c` are read by three regions of `a`."""
    steps: list[Step] = [
        ("c0", "cpu", [("c", "x")]),
        ("a0", "a", [("p", "c", "x")]),
        ("c1", "cpu", [("d", "p")]),
        ("a1", "a", [("q", "c", "d")]),
        ("c2", "cpu", [("e", "q")]),
        (
            "a2",
            "a",
            [
                (
                    "y",
                    "e",
                    "c",
                ),
                ("z", "y", "x"),
            ],
        ),
    ]
    model = build(steps, a={})
    check(model, steps)
    moved = log(model)
    assert len(moved["receives"]) == 4, "x, c, d, e: each once"
    assert len(moved["sends"]) == 3, "p, q, z"


def test_without_mirrors_nothing_has_to_move() -> None:
    check(build(FORK, a={"mirrored": False}, b={}), FORK)


# --- failures ---


def test_a_failure_names_its_region_and_the_next_run_works() -> None:
    script = {"regions": {"left": {"fails": "device lost", "failures": 2}}}
    model = build(FORK, a=script)
    other = build(FORK)
    for _ in range(2):
        with pytest.raises(ts.DeviceError, match=r"region 'left' .* 'a', got: device lost"):
            model(X)
        check(other, FORK)
    check(model, FORK)
    check(model.create_instance(), FORK)


def test_what_depends_on_a_failure_never_runs() -> None:
    steps: list[Step] = [
        ("a0", "a", [("p", "x")]),
        ("b0", "b", [("q", "p")]),
        ("c0", "cpu", [("r", "q")]),
        ("a1", "a", [("y", "r")]),
    ]
    model = build(steps, a={"regions": {"a0": {"fails": "broken"}}})
    with pytest.raises(ts.DeviceError, match=r"'a0' .* broken"):
        model(X)
    assert log(model, 1)["regions"] == ["a0"]
    assert log(model, 2)["regions"] == []


def test_failures_of_two_processors_are_one_error() -> None:
    fails = {"fails": "gone"}
    model = build(FORK, a={"regions": {"left": fails}}, b={"regions": {"right": fails}})
    with pytest.raises(ts.DeviceError, match="'left'"):
        model(X)


# --- running in the background ---

CHAIN: list[Step] = [
    ("a0", "a", [("p", "x")]),
    ("b0", "b", [("q", "p")]),
    ("c0", "cpu", [("y", "q")]),
]


def test_run_async_returns_what_a_call_does() -> None:
    model = build(FORK, a=latency(20, "left"))
    inputs = [np.full(SHAPE, i, "float32") for i in range(5)]
    futures = [model.run_async(x) for x in inputs]
    assert not futures[-1].done()
    for x, future in zip(inputs, futures, strict=True):
        is_close(future.result(60), FORK, x)
    with pytest.raises(ts.InputError):
        model.run_async(X, X)


def test_errors_come_with_the_future() -> None:
    model = build(FORK, a={"regions": {"left": {"fails": "device lost", "failures": 1}}})
    first, second = model.run_async(X), model.run_async(x=X)
    with pytest.raises(ts.DeviceError, match="device lost"):
        first.result(60)
    is_close(second.result(60), FORK)


def test_cancel_stops_regions_that_have_not_begun() -> None:
    model = build(CHAIN, a=latency(150, "a0"))
    check(model, CHAIN)

    def stops() -> bool:
        log(model, 1), log(model, 2)
        running, waiting = model.run_async(X), model.run_async(X)
        soon(lambda: log(model, 1)["regions"] != [])
        assert waiting.cancel()
        assert waiting.cancelled()
        running.cancel()
        if running.exception(60) is None:
            return False  # the cancellation came too late
        assert isinstance(running.exception(), CancelledError)
        return log(model, 2)["regions"] == []

    assert happens(stops), "b0 had not begun"
    check(model, CHAIN)


def test_cancel_after_the_end_changes_nothing() -> None:
    model = build(CHAIN)
    future = model.run_async(X)
    future.result(60)
    assert not future.cancel()
    check(model, CHAIN)
    model.module["cancel"]()
    check(model, CHAIN)


# --- artifacts, threads, endurance ---


def test_artifacts_of_several_processors(tmp_path: Path) -> None:
    """Each processor has its own code again: `left` runs on `a`."""
    scripts = {
        name: {"regions": {"left": {"fails": f"{name} broke", "failures": 1}}} for name in "ab"
    }
    model = build(FORK, **scripts)
    model.export(tmp_path / "fork.so")
    loaded = ts.load(tmp_path / "fork.so")
    with pytest.raises(ts.DeviceError, match=r"'left' .* a broke"):
        loaded(X)
    check(loaded, FORK)
    check(loaded.create_instance(), FORK)
    assert [p.name for p in loaded.graph.processors] == ["cpu", "a", "b"]


def test_over_rpc(tmp_path: Path) -> None:
    build(FORK, a=latency(1, "left")).export(tmp_path / "fork.so")
    session = rpc.LocalSession()
    session.upload(str(tmp_path / "fork.so"))
    module = session.load_module("fork.so")
    module["set_input"]("x", tvm.runtime.tensor(X, session.cpu(0)))
    module["run"]()
    is_close(module["get_output"](0).numpy(), FORK)
    _, right, join = json.loads(module["trace"]())["regions"]
    assert [span["kind"] for span in right] == ["receive", "kernel", "send"]
    assert "wait" in [span["kind"] for span in join]


def test_errors_over_rpc(tmp_path: Path) -> None:
    """Whatever their class is there, the text names region, processor and way out."""
    script = {"regions": {"left": {"fails": "device lost"}}}
    build(FORK, a=script).export(tmp_path / "fork.so")
    session = rpc.LocalSession()
    session.upload(str(tmp_path / "fork.so"))
    module = session.load_module("fork.so")
    module["set_input"]("x", tvm.runtime.tensor(X, session.cpu(0)))
    with pytest.raises(Exception, match=r"'left' .* 'a', got: device lost; .*spare=True"):
        module["run"]()


def test_affinity() -> None:
    model = build(FORK)
    for cores in ([0], range(1000), None):
        model.set_affinity(cores)
        check(model, FORK)
    with pytest.raises(ts.InputError, match="expected cores that this process may use"):
        model.set_affinity([1000])


def test_eight_executors_on_eight_threads() -> None:
    steps = [*FORK[:2], ("join", "cpu", [("j", "l", "rr")]), ("last", "a", [("y", "j", "x")])]
    model = build(steps)
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = model.create_instance()
        x = np.full(SHAPE, number, "float32")
        wrong.extend(
            number for _ in range(60) if not np.allclose(mine(x), answer(steps, x), rtol=1e-4)
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) + len(list(Path("/proc/self/task").iterdir()))


def test_ten_thousand_runs_leave_nothing_behind() -> None:
    script = {"regions": {"left": {"fails": "now and then", "failures": 500}}}
    model = build(FORK, a=script)
    run = model.module["run"]
    model.module["set_input"]("x", tvm.runtime.tensor(X))

    def runs(count: int) -> None:
        for i in range(count):
            try:
                run()
            except ts.DeviceError as error:
                assert "now and then" in str(error)
            if i % 100 == 0:
                log(model, 1), log(model, 2)

    runs(1000)
    gc.collect()
    before = handles()
    assert not keeps_growing(lambda: runs(10_000))
    assert handles() <= before
    check(model, FORK)


def test_instances_give_back_their_memory_and_threads() -> None:
    model = build(FORK)
    check(model, FORK)
    gc.collect()  # models of other tests, whose threads then end
    before = handles()
    while time.sleep(0.1) or handles() != before:
        before = handles()
    for _ in range(50):
        instance = model.create_instance()
        check(instance, FORK)
        assert handles() == before + 3, "two threads, one file"
        del instance
    assert handles() == before
