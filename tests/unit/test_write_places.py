"""Places of a cache are written without moving the cache."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.relax_helpers import answers
from onnx import TensorProto, helper
from tvm import relax

import tvm_stretch as ts
from tvm_stretch.network.operators import kind_of
from tvm_stretch.read import load_network

SHAPE, AXIS = (1, 2, 9, 16), 2
BACK = (1, 2, 0, 3)


def static_cache(
    count: int = 1, back: tuple[int, ...] = BACK, also: str | None = None
) -> onnx.ModelProto:
    """What exporters make of ``cache[:, :, position] = rows``, and a sum of all places.

    The cache that is turned, before or after it is written, may have one more reader.
    """
    nodes = [
        helper.make_node("Unsqueeze", ["position", "last"], ["places"]),
        helper.make_node("Transpose", ["past"], ["front"], perm=[2, 0, 1, 3]),
        helper.make_node("ScatterND", ["front", "places", "rows"], ["written"]),
        helper.make_node("Transpose", ["written"], ["present"], perm=back),
        helper.make_node("ReduceSum", ["present", "axes"], ["sums"], keepdims=0),
    ]
    if also:
        nodes.append(helper.make_node("ReduceSum", [also, "front_axis"], ["more"], keepdims=0))
    turned = [(SHAPE[2], SHAPE[0], SHAPE[1], SHAPE[3])[axis] for axis in back]
    inputs = [
        helper.make_tensor_value_info("past", TensorProto.FLOAT, SHAPE),
        helper.make_tensor_value_info("position", TensorProto.INT64, [count]),
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, [count, 1, 2, 16]),
    ]
    outputs = [
        helper.make_tensor_value_info("sums", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("present", TensorProto.FLOAT, turned),
    ]
    if also:
        outputs.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, None))
    constants = [
        onnx.numpy_helper.from_array(np.array([1]), "last"),
        onnx.numpy_helper.from_array(np.array([AXIS]), "axes"),
        onnx.numpy_helper.from_array(np.array([0]), "front_axis"),
    ]
    graph = helper.make_graph(nodes, "cache", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def kinds(network: onnx.ModelProto) -> list[str]:
    main = load_network(network)["main"]
    calls = (binding.value for block in main.body.blocks for binding in block.bindings)
    return [kind_of(call) for call in calls if isinstance(call, relax.Call)]


@pytest.mark.parametrize("positions", [[0], [4], [8], [-1], [-9], [3, 7], [8, 0, -4]])
def test_places_are_written_bit_for_bit(positions: list[int]) -> None:
    network = static_cache(len(positions))
    assert kinds(network).count("permute_dims") <= 1  # of the rows
    rng = np.random.default_rng(0)
    past = rng.standard_normal(SHAPE).astype("float32")
    past[0, 0, 1], past[0, 1, 4] = np.nan, np.inf  # they stay, or are replaced
    rows = rng.standard_normal((len(positions), 1, 2, 16)).astype("float32")
    wanted = past.copy()
    wanted[:, :, positions] = rows.transpose(1, 2, 0, 3)
    _, present = answers(load_network(network), past, np.array(positions), rows)
    np.testing.assert_array_equal(present.view("int32"), wanted.view("int32"))


@pytest.mark.parametrize("also", ["front", "written"])
def test_what_else_reads_the_turned_cache(also: str) -> None:
    """The cache is written once, and turned once for the other reader."""
    network = static_cache(also=also)
    found = kinds(network)
    assert (found.count("scatter_nd"), found.count("permute_dims")) == (1, 1)
    rng = np.random.default_rng(0)
    past = rng.standard_normal(SHAPE).astype("float32")
    rows = rng.standard_normal((1, 1, 2, 16)).astype("float32")
    wanted = past.copy()
    wanted[:, :, [4]] = rows.transpose(1, 2, 0, 3)
    _, present, more = answers(load_network(network), past, np.array([4]), rows)
    np.testing.assert_array_equal(present, wanted)
    np.testing.assert_allclose(more, (past if also == "front" else wanted).sum(AXIS), rtol=1e-5)


@pytest.mark.parametrize("back", [(1, 0, 2, 3), (0, 1, 2, 3)])
def test_other_transposes_stay(back: tuple[int, ...]) -> None:
    """A second transpose that does not undo the first one stays, and the first one with it."""
    assert "permute_dims" in kinds(static_cache(back=back))


def test_steps_fill_a_cache() -> None:
    """A place beyond the cache is refused, and the states stay as they were."""
    model = ts.compile(static_cache(), ["llvm"], states={"past": "present"}, cpu_threads=1)
    cache = np.zeros(SHAPE, "float32")
    rng = np.random.default_rng(1)
    for position in (0, 1, 2, 8, 2):
        rows = rng.integers(-9, 9, (1, 1, 2, 16)).astype("float32")
        cache[:, :, position] = rows[0]
        np.testing.assert_array_equal(model(np.array([position]), rows), cache.sum(AXIS))
        np.testing.assert_array_equal(model.states["past"], cache)
    with pytest.raises(ts.StretchError, match="expected -9 to 8"):
        model(np.array([SHAPE[AXIS]]), rows)
    np.testing.assert_array_equal(model.states["past"], cache)
    instance = model.create_instance()
    assert not instance.states["past"].any()
    model.reset()
    assert not model.states["past"].any()
