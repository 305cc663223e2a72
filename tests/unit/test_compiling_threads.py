"""Several threads compile: one after the other, and the answers are right."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.base import compiling as turns
from tvm_stretch.base.compiling import compiling


def network(number: int) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A network that differs from the others, its input and its answer."""
    dice = np.random.default_rng(number)
    width = 4 + number % 5
    weight = dice.standard_normal((width, 3 + number // 5)).astype("f")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, width])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    x = dice.standard_normal((2, width)).astype("f")
    return model.SerializeToString(), x, np.maximum(x @ weight, 0)


@pytest.mark.parametrize(
    "compiles", [8, pytest.param(120, marks=pytest.mark.full)], ids=["some", "many"]
)
def test_threads_compile_run_and_export(tmp_path: Path, compiles: int) -> None:
    def work(number: int) -> None:
        source, x, expected = network(number)
        model = ts.compile(source, cpu_threads=1)
        np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-5)
        if number % 4 == 0:
            model.export(tmp_path / f"{number}.so")
            loaded = ts.load(tmp_path / f"{number}.so")
            np.testing.assert_array_equal(loaded(x), model(x))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(compiles)))


def test_broken_networks_beside_good_ones() -> None:
    """What one thread is told does not depend on what others do."""
    source, x, expected = network(3)
    broken = onnx.load_from_string(source)
    broken.graph.node[1].op_type = "RandomNormalLike"

    def work(number: int) -> None:
        if number % 2:
            with pytest.raises(ts.UnsupportedError, match="RandomNormalLike"):
                ts.compile(broken, cpu_threads=1)
        else:
            model = ts.compile(source, cpu_threads=1)
            np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-5)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(6)))


def test_turns() -> None:
    """They may be entered again, and others wait."""
    order = []

    def other() -> None:
        with compiling():
            order.append("other")

    thread = threading.Thread(target=other)
    with compiling(), compiling():
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


def test_a_fork_waits_for_no_thread_of_its_parent() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with compiling():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if turns._turn.acquire(timeout=1) else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
