"""`TFLite_Detection_PostProcess` of detectors in .tflite files, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.tflite_models import Builder

import tvm_stretch as ts

COUNT, CLASSES = 40, 3
OPTIONS = {
    "num_classes": CLASSES,
    "max_detections": 6,
    "detections_per_class": 4,
    "max_classes_per_detection": 1,
    "nms_iou_threshold": 0.5,
    "nms_score_threshold": 0.4,
    **dict.fromkeys(("x_scale", "y_scale"), 10.0),
    **dict.fromkeys(("h_scale", "w_scale"), 5.0),
}


def _anchors() -> np.ndarray:
    """Centres and sizes."""
    rng = np.random.default_rng(0)
    return np.hstack([rng.random((COUNT, 2)), 0.2 + 0.3 * rng.random((COUNT, 2))]).astype("float32")


def _network(options: dict[str, Any]) -> bytes:
    net = Builder((1, COUNT, 4))
    scores = net.feature_map((1, COUNT, CLASSES + 1), "scores_of_boxes")  # the first: none
    net.inputs.append(scores)
    net.detections(net.input, scores, _anchors(), **options)
    return net.finish()


def _kept(boxes: np.ndarray, scores: np.ndarray, most: int, options: dict[str, Any]) -> list[int]:
    """Places by descending score, without those that overlap a better one."""

    def area(box: np.ndarray) -> float:
        return float((box[2:] - box[:2]).prod())

    def overlap(one: np.ndarray, other: np.ndarray) -> float:
        low, high = np.maximum(one[:2], other[:2]), np.minimum(one[2:], other[2:])
        shared = np.maximum(high - low, 0).prod()
        return shared / (area(one) + area(other) - shared)

    kept: list[int] = []
    for place in np.argsort(-scores, kind="stable"):
        fits = [overlap(boxes[place], boxes[at]) <= options["nms_iou_threshold"] for at in kept]
        if scores[place] >= options["nms_score_threshold"] and len(kept) < most and all(fits):
            kept.append(int(place))
    return kept


def _expected(x: np.ndarray, scores: np.ndarray, options: dict[str, Any]) -> tuple:
    anchors, most = _anchors(), options["max_detections"]
    centre = x[:, :2] / np.float32(10) * anchors[:, 2:] + anchors[:, :2]
    half = np.exp(x[:, 2:] / np.float32(5)) * anchors[:, 2:] / 2
    boxes, scores = np.hstack([centre - half, centre + half]), scores[:, 1:]
    if options.get("use_regular_nms"):
        few = options["detections_per_class"]
        found = [(p, k) for k in range(CLASSES) for p in _kept(boxes, scores[:, k], few, options)]
        found = sorted(found, key=lambda pair: -scores[pair])[:most]
    else:
        best = scores.max(1)
        found = [(p, int(scores[p].argmax())) for p in _kept(boxes, best, most, options)]
    places, kinds = [p for p, _ in found], [k for _, k in found]
    rows = (boxes[places], np.array(kinds), scores[places, kinds])
    padded = [np.zeros((1, most, *row.shape[1:]), "float32") for row in rows]
    for whole, row in zip(padded, rows, strict=True):
        whole[0, : len(found)] = row
    return *padded, np.array([len(found)], "float32")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"nms_score_threshold": 0.985},  # fewer than there is room for
        {"nms_iou_threshold": 0.1, "max_detections": 20},
        {"use_regular_nms": True},
        {"use_regular_nms": True, "max_detections": 20, "nms_score_threshold": 0.9},
    ],
)
def test_detections_are_those_of_numpy(changed) -> None:
    options = {**OPTIONS, **changed}
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, COUNT, 4)).astype("float32")
    scores = rng.random((1, COUNT, CLASSES + 1), dtype="float32")
    model = ts.compile(_network(options), [{"kind": "llvm", "opt-level": 0}], cpu_threads=1)
    expected = _expected(x[0], scores[0], options)
    assert 0 < expected[-1][0] <= options["max_detections"]
    for got, want in zip(model(x, scores), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
