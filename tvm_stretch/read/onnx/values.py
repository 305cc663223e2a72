"""Compute ONNX nodes whose inputs are all constant.

Concat([1], [-1])   ->   array([1, -1])
"""

from __future__ import annotations

import logging
import math
import warnings

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tvm_stretch.read.onnx.block_weights import block_weights
from tvm_stretch.read.onnx.check import Results
from tvm_stretch.read.onnx.node import Node, numpy_dtype

_log = logging.getLogger(__name__)

SMALL = 1 << 16
"""Nodes on more elements are computed here only if that is cheap; Relax folds the others."""

_CHEAP = {
    "Add", "Cast", "Concat", "DequantizeLinear", "Div", "Flatten", "Gather", "Identity", "Mul",
    "Neg", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
}  # fmt: skip
COUNTING = {"Compress", "NonMaxSuppression", "NonZero", "Unique"}
"""Operators whose results are as large as the data say."""
_BOUNDED = COUNTING | {"Constant"}
"""ONNX may not know their results' shapes before, but they are no larger than what they read."""
_INTEGERS = ("int8", "uint8", "int32")
_RANDOM = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip


def evaluate(proto: onnx.NodeProto, node: Node, expected: Results) -> tuple[np.ndarray, ...] | None:
    """The results of a node of constants; None if its inputs are computed, or too large.

    ``expected`` is what ONNX knows of the results.
    """
    if node.op == "CastLike" and node.is_const(0):
        return (np.asarray(node.inputs[0]).astype(numpy_dtype(node.dtype(1))),)
    if node.op == "Identity":
        return None  # takes no computing
    if node.op == "DequantizeLinear" and node.dtype(0) in _INTEGERS:
        return None  # an integer operator may want what it reads
    given = [value for value in node.inputs if value is not None]
    if proto.domain not in ("", "ai.onnx") or node.op in _RANDOM:
        return None
    if any(attribute.HasField("g") for attribute in proto.attribute):
        return None
    if not all(isinstance(value, np.ndarray) for value in given):
        return None
    if node.op in ("Div", "Mod") and given[1].dtype.kind in "iu" and not given[1].all():
        return None  # NumPy's answer is 0; `guard_operators` refuses it
    if (weights := block_weights(node)) is not None:
        return (weights,)
    size = sum(value.size for value in given)
    if size > SMALL and node.op not in _CHEAP:
        return None
    if node.op not in _BOUNDED and not _fits(expected, max(SMALL, size)):
        return None
    feeds = dict(zip([name for name in proto.input if name], given, strict=True))
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = _evaluator(proto, feeds, node.opset).run(None, feeds)
    except Exception as error:  # whatever the reference raises, the converter may still do it
        _log.debug("not computed: %s %s: %s", node.op, node.name, error)
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    arrays = tuple(np.asarray(result) for result in results)
    return arrays if sum(a.size for a in arrays) <= max(SMALL, size) else None


def _fits(expected: Results, most: int) -> bool:
    """Whether the results are known to be small; asked before they cost any memory."""
    sizes = [None if shape is None else math.prod(shape) for _, shape in expected.values()]
    return bool(sizes) and all(size is not None and size <= most for size in sizes)


def _evaluator(
    proto: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int
) -> ReferenceEvaluator:
    """A model of ``proto`` alone for ONNX's reference implementation."""
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in feeds.items()
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "constant", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", opset)]
    return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
