"""Translate a simplified ONNX graph with static shapes to one Relax function.

    y = Relu(x)   ->   lv: R.Tensor((1, 8, 4, 4)) = R.nn.relu(x)

Converters live in ``onnx_ops``, one function per ONNX operator. Whatever depends on constants and
static shapes only is computed right here. An operator without a converter is refused by name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax

from tvm_stretch.errors import ModelError, StretchError, UnsupportedError
from tvm_stretch.frontend.onnx_reader import OnnxNetwork

_log = logging.getLogger(__name__)

Value = np.ndarray | relax.Expr
Converter = Callable[["Node"], "Value | tuple[Value, ...]"]
CONVERTERS: dict[str, Converter] = {}

FOLD_LIMIT = 1 << 16
"""Constants of more elements are left to Relax's constant folding, which compiles code."""

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_DTYPES = {
    "float32", "float64", "float16", "bfloat16", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip


def converter(*op_types: str) -> Callable[[Converter], Converter]:
    """Register the decorated function as the converter of ``op_types``."""

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            CONVERTERS[op_type] = function
        return function

    return register


@dataclass
class Node:
    """One ONNX node while it is translated: what a converter may ask for."""

    op: str
    name: str
    opset: int
    inputs: list[Value | None]
    attrs: dict[str, Any]
    outputs: list[str]
    bb: relax.BlockBuilder

    def __getitem__(self, index: int) -> relax.Expr:
        """Input ``index`` as an expression."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise self.refuse(f"input {index}", "nothing")
        return as_expr(value)

    def has(self, index: int) -> bool:
        """Whether the optional input ``index`` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def const(self, index: int, what: str) -> np.ndarray | None:
        """The constant input ``index``, None if it is not given; ``what`` names it in the refusal."""
        if not self.has(index):
            return None
        value = self.inputs[index]
        if not isinstance(value, np.ndarray):
            raise self.refuse(f"a constant {what}", "a computed one")
        return value

    def ints(self, index: int, what: str) -> list[int] | None:
        """The constant input ``index`` as integers, or the attribute ``what`` of older opsets."""
        if self.has(index):
            return [int(v) for v in self.const(index, what).reshape(-1)]
        given = self.attrs.get(what)
        return None if given is None else [int(v) for v in given]

    def attr(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Attribute ``name``, strings as str."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def shape(self, index: int = 0) -> list[int]:
        """Static shape of input ``index``."""
        value = self.inputs[index]
        return list(value.shape) if isinstance(value, np.ndarray) else static_shape(value)

    def dtype(self, index: int = 0) -> str:
        """Element type of input ``index``."""
        value = self.inputs[index]
        return str(value.dtype) if isinstance(value, np.ndarray) else str(value.ty.dtype)

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """Bind ``expr`` to a variable."""
        return self.bb.emit(expr)

    def refuse(self, expected: str, got: str) -> UnsupportedError:
        """The error that says why this node cannot be taken."""
        label = f"{self.op} {self.name!r}" if self.name else self.op
        return UnsupportedError(f"expected {expected} for {label}, got {got}; rewrite this part of the model")


def as_expr(value: Value) -> relax.Expr:
    """``value`` as a Relax expression."""
    if isinstance(value, np.ndarray):
        if str(value.dtype) not in _DTYPES:
            raise UnsupportedError(
                f"expected one of the types {sorted(_DTYPES)} for a constant, got {value.dtype}; convert the model"
            )
        return relax.const(np.ascontiguousarray(value).reshape(value.shape), str(value.dtype))
    return value


def static_shape(expr: relax.Expr) -> list[int]:
    """The static shape of a tensor expression."""
    shape = getattr(expr.ty, "shape", None)
    if shape is None or not all(isinstance(d, tvm.tirx.IntImm) for d in shape.values):
        raise UnsupportedError(
            f"expected a static shape for every tensor, got {expr.ty}; a shape depends on the data"
        )
    return [int(d) for d in shape.values]


@dataclass
class _Importer:
    """State of one translation."""

    network: OnnxNetwork
    values: dict[str, Value] = field(default_factory=dict)
    bb: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)

    def run(self) -> tvm.IRModule:
        graph = self.network.model.graph
        self.values.update(self.network.weights)
        for tensor in graph.initializer:
            self.values[tensor.name] = onnx.numpy_helper.to_array(tensor)
        params = [_parameter(value) for value in self.network.inputs]
        self.values.update({value.name: p for value, p in zip(self.network.inputs, params, strict=True)})
        with self.bb.function("main", params):
            with self.bb.dataflow():
                for node in graph.node:
                    self.translate(node)
                outputs = [as_expr(self.lookup(name)) for name in self.network.outputs]
                result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
                result = self.bb.emit_output(result)
            self.bb.emit_func_output(result)
        return self.bb.get()

    def lookup(self, name: str) -> Value:
        if name not in self.values:
            raise ModelError(f"expected a producer for the tensor {name!r}, got none; export the model again")
        return self.values[name]

    def translate(self, proto: onnx.NodeProto) -> None:
        node = Node(
            proto.op_type,
            proto.name,
            self.network.opset,
            [self.lookup(name) if name else None for name in proto.input],
            {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute},
            list(proto.output),
            self.bb,
        )
        results = self.fold(proto, node)
        if results is None:
            results = self.convert(proto, node)
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                self.values[name] = value

    def convert(self, proto: onnx.NodeProto, node: Node) -> tuple[Value, ...]:
        domain = proto.domain or "ai.onnx"
        if domain != "ai.onnx" or node.op not in CONVERTERS:
            raise UnsupportedError(
                f"expected a supported ONNX operator for node {node.name!r}, got {domain}.{node.op}; "
                "replace it by supported ones"
            )
        try:
            result = CONVERTERS[node.op](node)
            results = result if isinstance(result, tuple) else (result,)
            results = tuple(v if isinstance(v, np.ndarray) else self.bind(v) for v in results)
        except StretchError:
            raise
        except Exception as error:  # TVM raises many kinds; all mean that it cannot take this node
            reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            raise node.refuse("something TVM can express", reason) from error
        missing = [name for name in node.outputs[len(results) :] if name]
        if missing:
            raise node.refuse(f"{len(results)} outputs", f"{len(node.outputs)}")
        return results

    def bind(self, expr: relax.Expr) -> relax.Expr:
        bound = expr if isinstance(expr, relax.Var | tvm.ir.GenericConst) else self.bb.emit(expr)
        static_shape(bound)
        return bound

    def fold(self, proto: onnx.NodeProto, node: Node) -> tuple[np.ndarray, ...] | None:
        """Compute a node that depends only on small constants; None if it does not."""
        given = [v for v in node.inputs if v is not None]
        if node.op in _RANDOM or not all(isinstance(v, np.ndarray) for v in given):
            return None
        if proto.domain or sum(v.size for v in given) > FOLD_LIMIT or any(a.HasField("g") for a in proto.attribute):
            return None
        names = [name for name in proto.input if name]
        try:
            evaluator = _evaluator(proto, dict(zip(names, given, strict=True)), node.opset)
            results = evaluator.run(None, dict(zip(names, given, strict=True)))
        except Exception as error:  # whatever the reference raises, the converter may still do it
            _log.debug("not folded %s %s: %s", node.op, node.name, error)
            return None
        arrays = tuple(np.asarray(r) for r in results)
        return arrays if all(str(a.dtype) in _DTYPES for a in arrays) else None


def _evaluator(proto: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> ReferenceEvaluator:
    """A model of ``proto`` alone for ONNX's reference implementation."""
    inputs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(n) for n in proto.output if n]
    graph = onnx.helper.make_graph([proto], "fold", inputs, outputs)
    return ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)]))


def _parameter(value: onnx.ValueInfoProto) -> relax.Var:
    """The function parameter for a graph input."""
    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else "undefined"
    if dtype not in _DTYPES:
        raise UnsupportedError(
            f"expected one of the types {sorted(_DTYPES)} for input {value.name!r}, got {dtype}; convert the model"
        )
    shape = [dim.dim_value for dim in tensor.shape.dim]
    return relax.Var(value.name, relax.TensorType(shape, dtype))


def import_onnx(network: OnnxNetwork) -> tvm.IRModule:
    """Translate ``network``; see the module docstring.

    Raises:
        UnsupportedError: An operator, or the way it is used, is not supported.
        ModelError: The graph refers to a tensor that nothing produces.
    """
    from tvm_stretch.frontend import onnx_ops  # noqa: F401, PLC0415  registers the converters

    return _Importer(network).run()
