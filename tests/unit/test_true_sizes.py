"""Results whose size the data decide have room for the largest one, and answers the true one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts
from tvm_stretch.run.values import shortened, true_sizes

CPU = {"kind": "llvm", "opt-level": 0}


def _model(nodes, inputs, outputs, **constants) -> onnx.ModelProto:
    """A network of float32 inputs and of outputs that have a type and a rank."""
    graph = helper.make_graph(
        nodes,
        "sizes",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
        [
            helper.make_tensor_value_info(name, kind, [None] * rank)
            for name, (kind, rank) in outputs.items()
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _answers(model: onnx.ModelProto, **inputs: np.ndarray) -> tuple[list, list]:
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    result = ts.compile(model, [CPU], cpu_threads=1)(**inputs)
    return list(result) if isinstance(result, tuple) else [result], expected


def _assert_right(model: onnx.ModelProto, **inputs: np.ndarray) -> None:
    for got, want in zip(*_answers(model, **inputs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def _suppression(
    images: int, classes: int, count: int, center: int = 0, **limits: object
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A network of one NonMaxSuppression, and boxes for it."""
    rng = np.random.default_rng(count)
    boxes = rng.random((images, count, 4), dtype="float32")  # corners in any order
    scores = rng.random((images, classes, count)).round(1).astype("float32")  # some are equal
    names = [name if name in limits else "" for name in ("most", "overlap", "least")]
    node = helper.make_node(
        "NonMaxSuppression", ["boxes", "scores", *names], ["y"], center_point_box=center
    )
    shapes = {"boxes": boxes.shape, "scores": scores.shape}
    model = _model([node], shapes, {"y": (TensorProto.INT64, 2)}, **limits)
    return model, {"boxes": boxes, "scores": scores}


def _limits(most: int, overlap: float | None, least: float | None) -> dict[str, object]:
    given = {"overlap": overlap, "least": least}
    floats = {name: np.float32([value]) for name, value in given.items() if value is not None}
    return {"most": np.int64([most]), **floats}


@pytest.mark.parametrize(
    ("sizes", "limits", "center"),
    [
        ((1, 1, 20), (5, 0.5, 0.1), 0),
        ((2, 3, 33), (4, 0.4, 0.3), 0),
        ((1, 2, 10), (100, 0.7, None), 1),
        ((1, 1, 40), (3, 0.0, 0.0), 0),
        ((1, 2, 12), (3, None, None), 0),
        ((1, 1, 8), (3, 0.5, 2.0), 0),  # none is chosen
        ((3, 1, 700), (50, 0.9, 0.05), 0),
    ],
)
def test_boxes_are_those_of_onnx_runtime(sizes, limits, center) -> None:
    model, inputs = _suppression(*sizes, center, **_limits(*limits))
    _assert_right(model, **inputs)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4)])
def test_places_that_are_not_zero(shape) -> None:
    node = helper.make_node("NonZero", ["x"], ["y"])
    model = _model([node], {"x": shape}, {"y": (TensorProto.INT64, 2)})
    rng = np.random.default_rng(0)
    x = (rng.random(shape) > 0.5).astype("float32")
    _assert_right(model, x=x)
    _assert_right(model, x=np.zeros(shape, "float32"))
    _assert_right(model, x=np.ones(shape, "float32"))


@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [((3, 4), 1, 4), ((5, 2), 0, 3), ((2, 3, 4), -2, 3), ((3, 4), None, 7)],
)
def test_slices_where_a_condition_holds(shape, axis, count) -> None:
    given = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("Cast", ["given"], ["condition"], to=TensorProto.BOOL),
        helper.make_node("Compress", ["x", "condition"], ["y"], **given),
    ]
    rank = 1 if axis is None else len(shape)
    model = _model(nodes, {"x": shape, "given": (count,)}, {"y": (TensorProto.FLOAT, rank)})
    x = np.random.default_rng(0).standard_normal(shape, "float32")
    for pattern in (np.arange(count) % 3 == 1, np.zeros(count), np.ones(count)):
        _assert_right(model, x=x, given=pattern.astype("float32"))


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis"), [((9,), None), ((3, 4), None), ((6, 2), 0), ((2, 5, 2), 1)]
)
def test_numbers_and_slices_once(shape, axis, in_order) -> None:
    given = {} if axis is None else {"axis": axis}
    names = ["y", "indices", "inverse", "counts"]
    node = helper.make_node("Unique", ["x"], names, sorted=in_order, **given)
    outputs = {"y": (TensorProto.FLOAT, 1 if axis is None else len(shape))}
    outputs |= dict.fromkeys(names[1:], (TensorProto.INT64, 1))
    model = _model([node], {"x": shape}, outputs)
    for most in (1, 2, 9):
        x = np.random.default_rng(most).integers(-1, most, shape).astype("float32")
        _assert_right(model, x=x)


def test_nan_is_one_number() -> None:
    node = helper.make_node("Unique", ["x"], ["y", "", "", "counts"])
    model = _model([node], {"x": (6,)}, {"y": (1, 1), "counts": (TensorProto.INT64, 1)})
    x = np.array([np.nan, 3, -np.inf, np.nan, 3, np.inf], "float32")
    values, counts = ts.compile(model, [CPU], cpu_threads=1)(x=x)
    np.testing.assert_array_equal(values, [-np.inf, 3, np.inf, np.nan])
    np.testing.assert_array_equal(counts, [1, 2, 1, 2])


def test_too_many_pairs_are_refused() -> None:
    node = helper.make_node("Unique", ["x"], ["y"])
    model = _model([node], {"x": (5000,)}, {"y": (1, 1)})
    with pytest.raises(ts.UnsupportedError, match="pairs of them, or fewer for Unique, got 5000"):
        ts.compile(model, [CPU])


def _detector() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """What exporters write after NonMaxSuppression: boxes and scores of the chosen rows."""
    model, inputs = _suppression(1, 2, 30, **_limits(4, 0.5, 0.3))
    nodes = [
        helper.make_node("Squeeze", ["boxes", "zero"], ["flat"]),
        helper.make_node("Gather", ["y", "two"], ["column"], axis=1),
        helper.make_node("Squeeze", ["column", "one"], ["place"]),
        helper.make_node("Gather", ["flat", "place"], ["chosen"], axis=0),
        helper.make_node("Transpose", ["scores"], ["moved"], perm=[0, 2, 1]),
        helper.make_node("Slice", ["y", "one", "three", "one"], ["tail"]),  # columns 1 and 2
        helper.make_node("Gather", ["y", "swapped"], ["at"], axis=1),
        helper.make_node("GatherND", ["moved", "at"], ["score"]),
        helper.make_node("Unsqueeze", ["score", "one"], ["scored"]),
        helper.make_node("Concat", ["chosen", "scored"], ["rows"], axis=1),
        helper.make_node("Mul", ["rows", "half"], ["result"]),
        helper.make_node("Transpose", ["result"], ["turned"], perm=[1, 0]),
    ]
    model.graph.node.extend(nodes)
    numbers = {"zero": [0], "one": [1], "two": [2], "three": [3], "swapped": [0, 2, 1]}
    constants = {name: np.int64(value) for name, value in numbers.items()}
    for name, value in {**constants, "half": np.float32([0.5])}.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    for name, kind in (("tail", TensorProto.INT64), ("result", 1), ("turned", 1)):
        model.graph.output.append(helper.make_tensor_value_info(name, kind, [None, None]))
    return model, inputs


def test_operators_on_rows_keep_the_true_size(tmp_path: Path) -> None:
    model, inputs = _detector()
    _assert_right(model, **inputs)
    compiled = ts.compile(model, [CPU], cpu_threads=1)
    compiled.export(tmp_path / "net.so")
    loaded = ts.load(tmp_path / "net.so")
    names = [port.name for port in loaded.outputs]
    sizes = ["y:size0", "tail:size0", "result:size0", "turned:size1"]
    assert names == ["y", "tail", "result", "turned", *sizes]
    for got, want in zip(loaded(**inputs), compiled(**inputs), strict=True):
        assert 0 < len(got.reshape(-1)) == want.size
        np.testing.assert_array_equal(got, want)


def test_operators_that_mix_rows_are_refused() -> None:
    """`test_sized.py` has what is done for others."""
    model, _ = _suppression(1, 1, 20, **_limits(5, 0.5, 0.1))
    model.graph.node.append(helper.make_node("Add", ["y", "ones"], ["z"]))
    ones = numpy_helper.from_array(np.ones((5, 3), "int64"), "ones")
    model.graph.initializer.append(ones)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", 7, [None, None]))
    with pytest.raises(ts.UnsupportedError, match="how many elements there are"):
        ts.compile(model, [CPU], cpu_threads=1)


def test_only_names_that_tell_a_size_shorten_an_output() -> None:
    assert true_sizes(["a", "b:size1", "b", "c:size0", "d:sizes"]) == {1: (2, 1)}
    b = np.arange(6).reshape(2, 3)
    a, cut = shortened([b, np.array([2]), b], {1: (2, 1)})
    assert a is b
    np.testing.assert_array_equal(cut, b[:, :2])
