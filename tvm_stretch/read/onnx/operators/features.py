"""Operators that make features for classic learners.

TfIdfVectorizer([5 7 5 7], pool 5, 7, (5 7))   counts how often each gram occurs   ->   [2 2 2]
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant
from tvm_stretch.read.onnx.node import Node, Value, converter, static_shape


@converter("ai.onnx.ml.Binarizer")
def _binarizer(node: Node) -> Value:
    above = node.emit(relax.op.greater(node[0], node.scalar(node.attr("threshold", 0.0))))
    return relax.op.astype(above, node.dtype())


@converter("ai.onnx.ml.ArrayFeatureExtractor")
def _array_feature_extractor(node: Node) -> Value:
    """Columns by their numbers; a vector is one row."""
    shape = node.shape()
    row = node.emit(relax.op.reshape(node[0], (1, *shape) if len(shape) == 1 else shape))
    places = node.emit(relax.op.reshape(node[1], (int(np.prod(node.shape(1))),)))
    return relax.op.take(row, places, len(static_shape(row)) - 1)


@converter("TfIdfVectorizer")
def _tf_idf(node: Node) -> Value:
    """Each gram of the pool is compared with all places of a row, so a large pool is refused."""
    if node.attr("pool_int64s") is None:
        raise node.refuse("numbers for the pool", "strings")
    shape, pool = node.shape(), np.asarray(node.attr("pool_int64s"))
    rows = node.emit(relax.op.reshape(node[0], (-1, shape[-1], 1)))
    starts = [*node.attr("ngram_counts"), len(pool)]
    counts = []
    for length, (first, end) in enumerate(pairwise(starts), 1):
        grams = pool[first:end].reshape(-1, length)
        wanted = node.attr("min_gram_length") <= length <= node.attr("max_gram_length")
        if len(grams) * shape[-1] * length > _MOST_COMPARED:
            raise node.refuse(f"at most {_MOST_COMPARED} comparisons", f"{len(grams)} grams")
        if len(grams):
            counts.append(_counts(node, rows, grams if wanted else None, len(grams)))
    occurrences = node.emit(relax.op.concat(counts, 1))
    if node.attr("mode") == "IDF":
        is_there = node.emit(relax.op.greater(occurrences, node.scalar(0.0, "float32")))
        occurrences = node.emit(relax.op.astype(is_there, "float32"))
    weights = node.attr("weights")
    if node.attr("mode") != "TF" and weights is not None:
        occurrences = node.emit(
            relax.op.multiply(occurrences, constant(np.asarray(weights, "float32")))
        )
    places = np.asarray(node.attr("ngram_indexes"))
    results = int(places.max()) + 1
    if places.min() < 0 or len(places) * results > _MOST_COMPARED:
        raise node.refuse(f"places from 0 to {_MOST_COMPARED // len(places)}", f"{places.tolist()}")
    to_places = np.zeros((len(places), results), "float32")
    to_places[np.arange(len(places)), places] = 1
    result = node.emit(relax.op.matmul(occurrences, constant(to_places)))
    return relax.op.reshape(result, (*shape[:-1], results))


_MOST_COMPARED = 1 << 24


def _counts(node: Node, rows: relax.Expr, grams: np.ndarray | None, count: int) -> relax.Expr:
    """How often each gram is in each row, with up to ``max_skip_count`` numbers between two."""
    emit, (images, places, _) = node.emit, static_shape(rows)
    total = emit(relax.op.zeros((images, count), "float32"))
    if grams is None:
        return total
    length = grams.shape[1]
    skips = 1 if length == 1 else node.attr("max_skip_count") + 1
    for step in range(1, skips + 1):
        room = places - (length - 1) * step
        if room < 1:
            break
        same = None
        for k in range(length):
            begin = k * step
            part = emit(relax.op.strided_slice(rows, [1], [begin], [begin + room]))
            own = constant(grams[:, k].astype(str(rows.ty.dtype)).reshape(1, 1, -1))
            equal = emit(relax.op.equal(part, own))
            same = equal if same is None else emit(relax.op.logical_and(same, equal))
        occurs = emit(relax.op.sum(emit(relax.op.astype(same, "float32")), 1))
        total = emit(relax.op.add(total, occurs))
    return total
