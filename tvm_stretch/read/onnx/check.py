"""Ask ONNX itself about a node: whether its operands fit, what its results are, and constants.

Conv(x: (1, 4, 8, 8), dilations=[0, 0])   ->   ModelError: .. dilations must only contain positive
Concat([1], [-1])                       ->   array([1, -1])
"""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference
from onnx.reference import ReferenceEvaluator

from tvm_stretch.base.errors import ModelError
from tvm_stretch.read.network_limits import MOST_ELEMENTS, too_large
from tvm_stretch.read.onnx.block_weights import block_weights
from tvm_stretch.read.onnx.node import Node, Value, dtype_of, numpy_dtype, static_shape

_MOST_DATA = 1024
"""Constants up to this many elements may say a shape."""

_UNCHECKED = {"Range"}
"""ONNX wants scalars here, but the models that it makes of its own functions give one element."""

Results = Mapping[str, "tuple[str, list[int] | None]"]
"""Element type and shape of each result that is a tensor; None for a shape that is not known."""


def check_node(proto: onnx.NodeProto, node: Node) -> Results:
    """Check ``node`` by the rules of ONNX; what its results are, as far as ONNX knows.

    Nodes that hold graphs, and those whose operands are not known, are left alone.

    Raises:
        ModelError: An operand's type or shape, or an attribute, breaks the rules.
        UnsupportedError: A result would be too large, or an operand holds strings.
    """
    schema = _schema(node.op, node.opset, proto.domain)
    if schema is None or node.op in _UNCHECKED or any(a.HasField("g") for a in proto.attribute):
        return {}
    given = {name: v for name, v in zip(proto.input, node.inputs, strict=True) if v is not None}
    if any(isinstance(v, np.ndarray) and v.dtype.kind in "OSU" for v in given.values()):
        raise node.refuse("numbers", "strings")
    data = {
        name: onnx.numpy_helper.from_array(value)
        for name, value in given.items()
        if isinstance(value, np.ndarray) and value.size <= _MOST_DATA
    }
    if any(name and name not in given for name in proto.input):
        return {}  # an optional result that the node before does not give
    try:
        types = onnx.shape_inference.infer_node_outputs(
            schema,
            proto,
            {name: type_of(value) for name, value in given.items()},
            data,
            opset_imports=[onnx.helper.make_opsetid("", node.opset)],
        )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        reason = re.sub(r"^\[\w+\]\s*", "", (str(error).strip().splitlines() or ["an error"])[0])
        raise ModelError(
            f"expected a valid ONNX node for {node.label}, got: {reason}; export the model again"
        ) from error
    results = {
        name: _described(kind) for name, kind in types.items() if kind.HasField("tensor_type")
    }
    for _, shape in results.values():
        if shape and (refusal := too_large(node.label, shape, MOST_ELEMENTS)):
            raise refusal
    if _is_inferred_wrongly(node):
        results = {name: (dtype, None) for name, (dtype, _) in results.items()}
    return results


def _is_inferred_wrongly(node: Node) -> bool:
    """Whether ONNX's inference tells another shape than its text says and ONNX Runtime computes.

    It counts windows that see nothing but padding. For transposed convolutions whose size is given
    it adds output padding to that size, and leaves out axes that become shorter. An STFT without
    the attribute is onesided.
    """
    if node.attr("ceil_mode", 0) or node.op == "STFT":
        return True
    same = node.attr("auto_pad", "") in ("SAME_UPPER", "SAME_LOWER")
    return node.op == "ConvTranspose" and (same or node.attr("output_shape") is not None)


def check_result(node: Node, value: Value, expected: tuple[str, list[int] | None]) -> None:
    """Refuse a result that differs from what ONNX expects: attributes contradict each other."""
    dtype, shape = expected
    own = list(value.shape) if isinstance(value, np.ndarray) else static_shape(value)
    if shape is not None and own != shape:
        raise ModelError(
            f"expected a result of shape {shape} for {node.label}, got {own} from its operands; "
            "correct its attributes"
        )
    if dtype and numpy_dtype(dtype) != numpy_dtype(dtype_name(value)):
        raise ModelError(
            f"expected a result of type {dtype} for {node.label}, got {dtype_name(value)}; "
            "export the model again"
        )


def dtype_name(value: Value) -> str:
    """Element type of a tensor."""
    return str(value.dtype if isinstance(value, np.ndarray) else value.ty.dtype)


def type_of(value: Value | None) -> onnx.TypeProto:
    """The ONNX type of a tensor; an empty one if the input is left out."""
    if value is None:
        return onnx.TypeProto()
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        return onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, value.shape)
    kind = onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype_name(value)))
    shape = value.shape if isinstance(value, np.ndarray) else static_shape(value)
    return onnx.helper.make_tensor_type_proto(kind, shape)


def _described(kind: onnx.TypeProto) -> tuple[str, list[int] | None]:
    tensor = kind.tensor_type
    dims = tensor.shape.dim
    is_static = tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return (
        dtype_of(tensor.elem_type) if tensor.elem_type else "",
        [d.dim_value for d in dims] if is_static else None,
    )


@lru_cache(maxsize=1024)
def _schema(op: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op, opset, "" if domain == "ai.onnx" else domain)
    except onnx.defs.SchemaError:
        return None


_log = logging.getLogger(__name__)

SMALL = 1 << 16
"""Nodes on more elements are computed here only if that is cheap; Relax folds the others."""

_CHEAP = {
    "Add", "Cast", "Concat", "DequantizeLinear", "Div", "Flatten", "Gather", "Identity", "Mul",
    "Neg", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze",
}  # fmt: skip
_BOUNDED = {"Compress", "Constant", "NonMaxSuppression", "NonZero", "Unique"}
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
