"""Caches that several lengths share: each appends rows of its own, and copies no others."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.small_models import copied
from onnx import TensorProto, helper

import tvm_stretch as ts
from tvm_stretch.base.errors import InputError

HEADS, PLACES, WIDTH = 3, 6, 32
LENGTHS = (2, 1, 5)


def cache(width: int = WIDTH) -> onnx.ModelProto:
    """Products of new rows and all rows; the new ones are divided by `by`, never by zero."""
    nodes = [
        helper.make_node("Div", ["new", "by"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["row"], to=TensorProto.FLOAT),
        helper.make_node("Concat", ["past", "row"], ["present"], axis=2),
        helper.make_node("Transpose", ["present"], ["keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["row", "keys"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("past", TensorProto.FLOAT, [1, HEADS, "before", width]),
        helper.make_tensor_value_info("new", TensorProto.INT32, [1, HEADS, "n", width]),
        helper.make_tensor_value_info("by", TensorProto.INT32, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, HEADS, "n", "after"]),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, [1, HEADS, "after", width]),
    ]
    graph = helper.make_graph(nodes, "cache", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(width: int = WIDTH, targets: tuple[str, ...] = ("llvm",)) -> ts.Model:
    return ts.compile(
        cache(width),
        targets,
        lengths={"n": LENGTHS},
        shapes={"past": (1, HEADS, PLACES, width)},
        states={"past": "present"},
        cpu_threads=1,
    )


def rows_of(n: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 9, (1, HEADS, n, width)).astype("int32")


def follow(model: ts.Model, order: list[int], width: int = WIDTH) -> None:
    """Runs the model beside NumPy; integers, so that every answer is exact."""
    past = np.asarray(model.states["past"])
    for step, n in enumerate(order):
        new = rows_of(n, width, step)
        grown = np.concatenate([past, new.astype("float32")], axis=2)
        wanted = new.astype("float32") @ grown.transpose(0, 1, 3, 2)
        np.testing.assert_array_equal(model(new, np.array([1], "int32")), wanted)
        past = grown[:, :, n:]
        np.testing.assert_array_equal(model.states["past"], past)


def mixed(count: int) -> list[int]:
    return np.random.default_rng(count).choice(LENGTHS, count).tolist()


def test_no_length_copies_old_rows(tmp_path: Path) -> None:
    """Every order of lengths, over memory that is used up several times."""
    model = compiled()
    row = WIDTH * 4
    (state,) = model.graph.states
    assert (state.axis, state.grown, state.slide) == (2, max(LENGTHS), max(LENGTHS) * row)
    assert [own.slides for own in model.graph.lengths] == [(n * row,) for n in LENGTHS]
    assert copied(model) <= sum(HEADS * n * row for n in LENGTHS)  # the new rows of each
    follow(model, [n for order in itertools.permutations(LENGTHS) for n in order])
    for n in LENGTHS:
        follow(model, [n] * 15)
    follow(model, mixed(40))
    model.export(tmp_path / "model.so")
    follow(ts.load(tmp_path / "model.so"), mixed(10))
    instance = model.create_instance()
    before = np.asarray(model.states["past"])
    follow(instance, mixed(9))
    np.testing.assert_array_equal(model.states["past"], before)
    model.states["past"] = before + 1
    np.testing.assert_array_equal(model.states["past"], before + 1)
    follow(model, mixed(8))
    model.reset()
    assert not model.states["past"].any()
    follow(model, mixed(7))


@pytest.mark.parametrize("last", LENGTHS)
def test_runs_that_fail_or_only_measure_keep_the_rows(last: int) -> None:
    model = compiled()
    follow(model, [*mixed(6), last])
    before = np.asarray(model.states["past"])
    for n in LENGTHS:
        with pytest.raises(InputError, match="zero"):
            model(rows_of(n, WIDTH, n), np.zeros(1, "int32"))
        np.testing.assert_array_equal(model.states["past"], before)
        model.use(f"n={n}")
        model.benchmark(2)
        model.profile(1)
        np.testing.assert_array_equal(model.states["past"], before)
    follow(model, mixed(6))


def test_loops_go_on_where_a_prompt_ended() -> None:
    model = compiled()
    follow(model, [5, 2])
    past, count = np.asarray(model.states["past"]), 20
    new = np.stack([rows_of(1, WIDTH, step) for step in range(count)])
    found = model.run_steps(count, new, np.array([1], "int32"))
    rows = np.concatenate([past, *new], axis=2)
    for step in range(count):
        window = rows[:, :, step : step + PLACES + 1]
        np.testing.assert_array_equal(found[step], new[step] @ window.transpose(0, 1, 3, 2))
    follow(model, [5, 1])


@pytest.mark.parametrize(
    ("width", "targets"),
    [
        (5, ("llvm",)),  # kernels do not read rows of 20 bytes where they lie
        # drivers know a tensor by its address
        pytest.param(WIDTH, ("opencl",), marks=pytest.mark.full),
    ],
)
def test_what_cannot_slide_is_copied(width: int, targets: tuple[str, ...]) -> None:
    model = compiled(width, targets)
    assert [state.slide for state in model.graph.states] == [0]
    assert [own.slides for own in model.graph.lengths] == [(0,)] * len(LENGTHS)
    follow(model, mixed(12), width)
