"""What detectors do between their last layers and their boxes, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_stretch as ts

CPU = {"kind": "llvm", "opt-level": 0}
_ONES = numpy_helper.from_array(np.ones(1, "int64"))


def _node(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, ...]],
    outputs: dict[str, tuple[int, int]],  # type and rank
    **constants: object,
) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "detector",
        [value(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [value(name, kind, [None] * rank) for name, (kind, rank) in outputs.items()],
        [numpy_helper.from_array(np.asarray(given), name) for name, given in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _assert_right(model: onnx.ModelProto, *feeds: dict[str, np.ndarray]) -> None:
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = ts.compile(model, [CPU], cpu_threads=1)
    for feed in feeds:
        got = compiled(**feed)
        got = got if isinstance(got, tuple) else (got,)
        for one, want in zip(got, reference.run(None, feed), strict=True):
            assert one.dtype == want.dtype
            np.testing.assert_allclose(one, want, rtol=1e-6)


def _best_of_class(number: int) -> list[onnx.NodeProto]:
    """Its boxes above a threshold, the best three of them."""
    c = f"c{number}_"
    return [
        _node("Gather", f"scores index{number}", f"{c}all", axis=1),
        _node("Greater", f"{c}all threshold", f"{c}above"),
        *(_node("NonZero", f"{c}above", f"{c}marked{i}") for i in range(2)),
        *(_node("Transpose", f"{c}marked{i}", f"{c}places{i}", perm=[1, 0]) for i in range(2)),
        _node("GatherND", f"{c}all {c}places0", f"{c}scores"),
        _node("GatherND", f"boxes {c}places1", f"{c}boxes"),
        _node("Shape", f"{c}scores", f"{c}shape"),
        _node("Gather", f"{c}shape index0", f"{c}count", axis=0),
        _node("Unsqueeze", f"{c}count zero", f"{c}counts"),
        _node("Concat", f"three {c}counts", f"{c}limits", axis=0),
        _node("ReduceMin", f"{c}limits", f"{c}limit", keepdims=0),
        _node("Reshape", f"{c}limit one", f"{c}k"),
        _node("TopK", f"{c}scores {c}k", f"{c}top {c}order", axis=-1),
        _node("Gather", f"{c}boxes {c}order", f"{c}best", axis=0),
        _node("Shape", f"{c}top", f"{c}found"),
        _node("ConstantOfShape", f"{c}found", f"{c}ones", value=_ONES),
        _node("Mul", f"{c}ones index{number}", f"{c}labels"),
    ]


def _suppression() -> list[onnx.NodeProto]:
    """Boxes of different classes are moved apart; without boxes nothing is asked."""
    body = [
        _node("ReduceMax", "b", "most", keepdims=0),
        _node("Add", "most unit", "step"),
        _node("Cast", "l", "classes", to=TensorProto.FLOAT),
        _node("Mul", "classes step", "offsets"),
        _node("Unsqueeze", "offsets one", "column"),
        _node("Add", "b column", "apart"),
        _node("Unsqueeze", "apart zero", "batch"),
        _node("Unsqueeze", "s pair", "batch_scores"),
        _node("NonMaxSuppression", "batch batch_scores many overlap", "selected"),
        _node("Gather", "selected index2", "rows", axis=1),
        _node("Squeeze", "rows one", "kept"),
    ]
    kept, nothing = (
        helper.make_tensor_value_info(name, TensorProto.INT64, [None])
        for name in ("kept", "nothing")
    )
    none = numpy_helper.from_array(np.zeros(0, "int64"))
    return [
        _node("Shape", "b", "whole"),
        _node("ReduceProd", "whole", "elements", keepdims=0),
        _node("Equal", "elements index0", "is_empty"),
        helper.make_node(
            "If",
            ["is_empty"],
            ["keep"],
            then_branch=helper.make_graph(
                [_node("Constant", "", "nothing", value=none)], "none", [], [nothing]
            ),
            else_branch=helper.make_graph(body, "some", [], [kept]),
        ),
        _node("Slice", "keep zero four zero", "first"),
        *(_node("Gather", f"{x} first", y, axis=0) for x, y in ("by", "sz", "lw")),
    ]


@pytest.mark.full
def test_a_detector_s_last_part() -> None:
    nodes = [
        *_best_of_class(0),
        *_best_of_class(1),
        _node("Concat", "c0_best c1_best", "b", axis=0),
        _node("Concat", "c0_top c1_top", "s", axis=0),
        _node("Concat", "c0_labels c1_labels", "l", axis=0),
        *_suppression(),
    ]
    indices = {f"index{i}": np.int64(i) for i in range(2)} | {"index2": np.int64([2])}
    ints = {"zero": [0], "one": [1], "three": [3], "four": [4], "many": [1 << 40], "pair": [0, 1]}
    model = _model(
        nodes,
        {"boxes": (12, 4), "scores": (12, 2)},
        {"y": (1, 2), "z": (1, 1), "w": (TensorProto.INT64, 1)},
        **(indices | {name: np.int64(value) for name, value in ints.items()}),
        **{"threshold": np.float32(0.5), "unit": np.float32(1), "overlap": np.float32([0.3])},
    )
    rng = np.random.default_rng(0)
    corners = np.sort(rng.random((12, 2, 2), dtype="float32"), 1).reshape(12, 4)
    scores = rng.random((12, 2), dtype="float32")
    feeds = [{"boxes": corners, "scores": x} for x in (scores, scores / 4, scores + 1, scores**3)]
    _assert_right(model, *feeds)


_ROWS = [
    _node("Greater", "x threshold", "mask"),
    _node("NonZero", "mask", "marked"),
    _node("Squeeze", "marked zero", "places"),
    _node("Gather", "table places", "rows", axis=0),  # as many as are marked, of (6,)
]
_CASES = {
    "each row becomes several": ([_node("Reshape", "rows pairs", "y")], 2),
    "rows become vectors": ([_node("Reshape", "rows cube", "c"), _node("Flatten", "c", "y")], 2),
    "parts of rows": (
        [_node("Split", "rows", "a b", axis=1), _node("Sub", "a b", "y")],
        2,
    ),
    "where signs differ": (
        [
            _node("Less", "rows threshold", "below"),
            _node("Mod", "rows unit", "rest", fmod=1),
            _node("Greater", "rest threshold", "above"),
            _node("Xor", "below above", "either"),
            _node("Where", "either rows unit", "y"),
        ],
        2,
    ),
    "the best two": (
        [
            _node("ReduceMax", "rows", "best", axes=[1], keepdims=0),
            _node("Shape", "best", "count"),
            _node("Concat", "count two", "counts", axis=0),
            _node("ReduceMin", "counts", "k", keepdims=1),
            _node("TopK", "best k", "y order", axis=0),
        ],
        1,
    ),
    "sums": ([_node("ReduceSum", "rows zero", "y", keepdims=0)], 1),
    "greatest of each row": ([_node("ReduceMax", "rows", "y", axes=[1], keepdims=0)], 1),
    "layers": (
        [_node("Gemm", "rows weights bias", "g"), _node("Softmax", "g", "y", axis=1)],
        2,
    ),
    "ones beside": (
        [
            _node("Shape", "rows", "shape", end=1),
            _node("Expand", "unit shape", "ones"),
            _node("Unsqueeze", "ones one", "column"),
            _node("Concat", "column rows", "y", axis=1),
        ],
        2,
    ),
    "rows of one level among those of all": (
        [
            _node("Reshape", "places column_shape", "column"),
            _node("Shape", "rows", "shape"),
            _node("Shape", "shape", "rank"),
            _node("ConstantOfShape", "rank", "ones", value=_ONES),
            _node("Mul", "ones minus", "unknown"),
            _node("Equal", "shape unknown", "is_unknown"),
            _node("Where", "is_unknown ones shape", "whole"),
            _node("Expand", "column whole", "spread"),
            _node("Neg", "rows", "other"),
            _node("ScatterElements", "table spread other", "y", axis=0),
        ],
        2,
    ),
    "elements among others": (
        [
            _node("Unsqueeze", "places one", "column"),
            _node("Neg", "column", "own"),  # counted from the end
            _node("Slice", "rows zero one one", "firsts"),
            _node("ScatterElements", "table own firsts", "y", axis=0, reduction="add"),
        ],
        2,
    ),
    "as many as there are, of one image": (
        [
            _node("Concat", "rows", "batch", axis=0),
            _node("Shape", "batch", "count", end=1),
            _node("Add", "zero count", "end"),
            _node("Slice", "batch zero end zero", "own"),
            _node("Squeeze", "count zero", "limit"),
            _node("Range", "none limit step", "numbers"),
            _node("Gather", "own numbers", "y", axis=0),
        ],
        2,
    ),
    "nothing is summed": ([_node("ReduceSum", "rows", "y", noop_with_empty_axes=1)], 2),
    "the last row": ([_node("Gather", "rows last", "y", axis=0)], 2),
    "with others": ([_node("Concat", "table rows table rows", "y", axis=0)], 2),
    "marks of marks": (
        [
            _node("ReduceSum", "rows one", "sums", keepdims=0),
            _node("LessOrEqual", "sums threshold", "small"),
            _node("NonZero", "small", "y"),
        ],
        2,
    ),
}


@pytest.mark.parametrize("name", _CASES)
def test_rows_that_count(name: str) -> None:
    nodes, rank = _CASES[name]
    kind = TensorProto.INT64 if name == "marks of marks" else TensorProto.FLOAT
    ints = {"zero": [0], "one": [1], "two": [2], "last": [-1], "pairs": [-1, 2], "cube": [-1, 3, 2]}
    ints |= {"minus": [-1], "column_shape": [-1, 1]}
    numbers = {"none": np.int64(0), "step": np.int64(1)}
    rng = np.random.default_rng(1)
    model = _model(
        [*_ROWS, *nodes],
        {"x": (5,), "table": (5, 6)},
        {"y": (kind, rank)},
        **({key: np.int64(value) for key, value in ints.items()} | numbers),
        **{"weights": rng.random((6, 3), dtype="float32"), "bias": np.ones(3, "float32")},
        **{"threshold": np.float32(0), "unit": np.float32([1])},
    )
    table = rng.standard_normal((5, 6), "float32")
    vectors = [[1, -1, -1, 1, 1], [1, 1, 1, 1, 1], [-1, -1, -1, -1, 2]]
    _assert_right(model, *({"x": np.float32(x), "table": table} for x in vectors))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("ReduceMean", {"axes": [0]}), ("CumSum", {}), ("Softmax", {"axis": 0})],
)
def test_what_mixes_rows_is_refused(op: str, attributes: dict[str, object]) -> None:
    node = _node(op, "rows zero" if op == "CumSum" else "rows", "y", **attributes)
    model = _model(
        [*_ROWS, node],
        {"x": (5,), "table": (5, 6)},
        {"y": (TensorProto.FLOAT, 2)},
        zero=np.int64([0]),
        threshold=np.float32(0),
    )
    with pytest.raises(ts.UnsupportedError, match="which the data decide"):
        ts.compile(model, [CPU], cpu_threads=1)


def test_pictures_that_regions_are_cut_of_are_refused() -> None:
    """There are as many results as regions, and not as many as pictures."""
    picked = _node("Gather", "pictures places", "rows", axis=0)
    cut = _node("RoiAlign", "rows regions which", "y", output_height=2, output_width=2)
    model = _model(
        [*_ROWS[:3], picked, cut],
        {"x": (5,), "pictures": (5, 1, 6, 6)},
        {"y": (TensorProto.FLOAT, 4)},
        **{"zero": np.int64([0]), "threshold": np.float32(0)},
        **{"regions": np.zeros((4, 4), "float32"), "which": np.int64([0, 1, 2, 0])},
    )
    with pytest.raises(ts.UnsupportedError, match="which the data decide"):
        ts.compile(model, [CPU], cpu_threads=1)
