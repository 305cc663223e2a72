"""A cache of full length, and what its values have to be after any order of runs.

Everything is integers, so that NumPy's answers are exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from helpers.fake_targets import TARGET
from onnx import TensorProto, helper

import tvm_stretch as ts
from tvm_stretch.plan.plan import Plan, PlannedRegion
from tvm_stretch.targets.processor import Processor

HEADS, PLACES, WIDTH, ROWS = 2, 9, 16, 2
SHAPE = (1, HEADS, PLACES, WIDTH)


def cache(rows: int | str = ROWS) -> onnx.ModelProto:
    """``past[:, :, position] = new / by``, the sums of all places, and a half of them."""
    nodes = [
        helper.make_node("Div", ["new", "by"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["rows"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["position", "last"], ["places"]),
        helper.make_node("Transpose", ["past"], ["front"], perm=[2, 0, 1, 3]),
        helper.make_node("ScatterND", ["front", "places", "rows"], ["written"]),
        helper.make_node("Transpose", ["written"], ["present"], perm=[1, 2, 0, 3]),
        helper.make_node("ReduceSum", ["present", "axes"], ["sums"], keepdims=0),
        helper.make_node("Relu", ["sums"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("past", TensorProto.FLOAT, SHAPE),
        helper.make_tensor_value_info("position", TensorProto.INT64, [rows]),
        helper.make_tensor_value_info("new", TensorProto.INT32, [rows, 1, HEADS, WIDTH]),
        helper.make_tensor_value_info("by", TensorProto.INT32, [1]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, SHAPE),
    ]
    constants = [
        onnx.numpy_helper.from_array(np.array([1]), "last"),
        onnx.numpy_helper.from_array(np.array([2]), "axes"),
    ]
    graph = helper.make_graph(nodes, "cache", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


STATES: dict[str, object] = {"past": "present"}


def operators() -> tuple[list[str], list[str]]:
    """The operators that make the cache and its sums, and the last ones."""
    plan = ts.compile(cache(), [TARGET], states=STATES, cpu_threads=1).plan
    names = [name for region in plan.regions for name in region.operators]
    return names[: names.index("sum")], names[names.index("sum") :]


Parts = list[tuple[str, list[str]]]
"""Processors and their operators."""


def planned(parts: Parts) -> tuple[PlannedRegion, ...]:
    return tuple(PlannedRegion(f"r{i}", name, tuple(own)) for i, (name, own) in enumerate(parts))


def with_plans(devices: list[Processor], plans: dict[str, Parts]) -> ts.Model:
    processors = ("cpu", *(device.name for device in devices))
    own = {name: Plan(processors, planned(parts)) for name, parts in plans.items()}
    return ts.compile(cache(), [TARGET, *devices], plans=own, states=STATES, cpu_threads=1)


class Beside:
    """A model and what its cache has to be."""

    def __init__(self, model: ts.Model, seed: int = 0) -> None:
        self.model = model
        self.rng = np.random.default_rng(seed)
        self.cache = np.zeros(SHAPE, "float32")
        self.model.reset()

    def inputs(self, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Places, perhaps the same twice, and rows."""
        position = self.rng.integers(-PLACES, PLACES, rows)
        new = self.rng.integers(-9, 9, (rows, 1, HEADS, WIDTH)).astype("int32")
        return position, new, np.array([1], "int32")

    def written(self, position: np.ndarray, new: np.ndarray, _: np.ndarray) -> np.ndarray:
        """The next cache."""
        cache = self.cache.copy()
        for place, row in zip(position, new, strict=True):
            cache[:, :, place] = row
        return cache

    def check(self) -> None:
        """The state is what it has to be."""
        np.testing.assert_array_equal(self.model.states["past"], self.cache)

    def step(self, rows: int = ROWS) -> None:
        """A run that succeeds."""
        given = self.inputs(rows)
        self.cache = self.written(*given)
        wanted = np.maximum(self.cache.sum(2), 0)
        np.testing.assert_array_equal(self.model(*given), wanted)

    def divide_by_zero(self) -> None:
        """A run that writes its rows, and then fails."""
        position, new, by = self.inputs()
        with pytest.raises(ts.InputError, match="zero"):
            self.model(position, new, 0 * by)

    def beyond(self) -> None:
        """Places that the cache does not have."""
        position, new, by = self.inputs()
        with pytest.raises(ts.InputError, match="expected -9 to 8"):
            self.model(position + 2 * PLACES, new, by)

    def cancel(self) -> None:
        """A run that ends before or after the other thread stops it."""
        given = self.inputs()
        future = self.model.run_async(*given)
        time.sleep(self.rng.uniform(0, 5e-4))
        future.cancel()
        try:
            wanted = self.written(*given)
            np.testing.assert_array_equal(future.result(60), np.maximum(wanted.sum(2), 0))
            self.cache = wanted
        except ts.RunCancelledError:
            pass

    def lose_device(self) -> None:
        """The other processor fails after the rows are written."""
        self.model.use("two")
        self.model.parts.devices[0]["fail"]("r1", "device lost", 1)
        with pytest.raises(ts.DeviceError, match="device lost"):
            self.model(*self.inputs())

    def only_measure(self) -> None:
        """Runs whose results are no states."""
        self.model.benchmark(1)

    def change_plan(self) -> None:
        """The next run takes another plan."""
        self.model.use(str(self.rng.choice(["alone", "two"])))

    def reset(self) -> None:
        """Zeros."""
        self.model.reset()
        self.cache = np.zeros(SHAPE, "float32")

    def set_state(self) -> None:
        """Other numbers."""
        self.cache = self.rng.integers(-9, 9, SHAPE).astype("float32")
        self.model.states["past"] = self.cache

    def several(self) -> None:
        """Steps without Python in between."""
        given = [self.inputs() for _ in range(3)]
        wanted = []
        for one in given:
            self.cache = self.written(*one)
            wanted.append(np.maximum(self.cache.sum(2), 0))
        position, new, _ = (np.stack(part) for part in zip(*given, strict=True))
        found = self.model.run_steps(3, position, new, np.array([1], "int32"))
        np.testing.assert_array_equal(found, np.stack(wanted))


ACTIONS: list[Callable[[Beside], None]] = [
    *3 * [Beside.step],
    Beside.divide_by_zero,
    Beside.beyond,
    Beside.cancel,
    Beside.lose_device,
    Beside.only_measure,
    *2 * [Beside.change_plan],
    Beside.reset,
    Beside.set_state,
    Beside.several,
]
