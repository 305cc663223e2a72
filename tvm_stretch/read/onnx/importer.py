"""Translate a simplified ONNX graph with static shapes to one Relax function.

    y = Relu(x)   ->   lv: R.Tensor((1, 8, 4, 4)) = R.nn.relu(x)

Converters live in ``operators/``, one function per ONNX operator. Whatever depends on constants and
static shapes only is computed right here. An operator without a converter is replaced by the
function body that ONNX defines for it; one without either is refused by name.

`Floats` notes operators whose quantised operands no integer operator takes, and why: of weights
of int4, or of 8 bits where the values that they meet are not quantised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.numpy_helper
import tvm
from tvm import relax

from tvm_stretch.base.errors import ModelError, StretchError, UnsupportedError, last_line
from tvm_stretch.network.codec import to_text
from tvm_stretch.network.properties.integer_summary import with_floats
from tvm_stretch.network.properties.quantised_values import EIGHT_BITS
from tvm_stretch.network.provenance import from_source, same_source
from tvm_stretch.network.states import LIMITS, Guard
from tvm_stretch.passes.name_operators import name_inner
from tvm_stretch.read.network_limits import MOST_OPERATORS, Constants
from tvm_stretch.read.onnx import operators as onnx_ops  # noqa: F401  registers the converters
from tvm_stretch.read.onnx.block_weights import blocks_of_product
from tvm_stretch.read.onnx.check import (
    Results,
    check_node,
    check_result,
    dtype_name,
    evaluate,
)
from tvm_stretch.read.onnx.control_flow import OPERATORS, Scope, translate_control_flow
from tvm_stretch.read.onnx.functions import function_body
from tvm_stretch.read.onnx.node import (
    CONVERTERS,
    Node,
    Value,
    as_expr,
    check_dtype,
    dtype_of,
    numpy_dtype,
    static_shape,
)
from tvm_stretch.read.onnx.operators.microsoft import is_plain
from tvm_stretch.read.onnx.qoperators import qdq_body
from tvm_stretch.read.onnx.reader import OnnxNetwork, array_of
from tvm_stretch.read.onnx.sized import convert_sized
from tvm_stretch.read.onnx.true_sizes import TrueSizes

_PLAIN = (*EIGHT_BITS, "int32")  # of biases


@dataclass
class Floats:
    """Follows dequantised tensors to the operators that read them."""

    by_reason: dict[str, list[str]] = field(default_factory=dict)  # names of operators
    _reasons: dict[int, tuple[Value, str]] = field(default_factory=dict)
    """By the identity of a value, which is kept: another one could be at the same place."""
    _quantised: dict[int, Value] = field(default_factory=dict)
    """Values that integer operators take, in the same way."""

    def see(self, node: Node, results: Sequence[Value | None]) -> None:
        """Note the values that a node was translated to, and whether they are quantised."""
        reason = _why(node) or self._of_operands(node)
        values = {id(value): value for value in results if value is not None}
        if node.op == "QuantizeLinear":
            return
        if node.op == "DequantizeLinear" or self._are_weights(node):
            if reason:
                self._reasons |= {key: (value, reason) for key, value in values.items()}
            elif not node.is_const(0):
                self._quantised |= values
        elif node.op in _MOVES and self._reads_quantised(node):
            self._quantised |= values
        elif (
            blocks_of_product(node) is None
            and reason
            and not (reason.endswith(_ALONE) and self._reads_quantised(node))
        ):
            names = self.by_reason.setdefault(reason, [])
            if (name := node.name or node.op) not in names:
                names.append(name)

    def _of_operands(self, node: Node) -> str:
        reasons = (self._reasons.get(id(value)) for value in node.inputs if value is not None)
        return next((reason[1] for reason in reasons if reason), "")

    def _reads_quantised(self, node: Node) -> bool:
        return any(id(value) in self._quantised for value in node.inputs if value is not None)

    def _are_weights(self, node: Node) -> bool:
        """Whether it only computes with constants: weights that are moved before they are used."""
        return all(
            value is None or isinstance(value, np.ndarray) or self._is_weight(value)
            for value in node.inputs
        )

    def _is_weight(self, value: Value) -> bool:
        reason = self._reasons.get(id(value))
        return reason is not None and reason[1].startswith(_WEIGHTS)


_WEIGHTS = "weights"
_ALONE = "beside values in float"
_MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that turn quantised values into quantised values."""


def _why(node: Node) -> str:
    """Why what a DequantizeLinear reads is no operand of integer operators; empty if it may be."""
    if node.op != "DequantizeLinear":
        return ""
    kind, what = node.dtype(0), _WEIGHTS if node.is_const(0) else "values"
    if node.attr("block_size", 0):
        return f"{what} of {kind} in blocks of {node.attr('block_size', 0)}"
    if kind not in _PLAIN:
        return f"{what} of {kind}"
    if not is_plain(node, kind, "float32"):
        return f"{what} with scales of {node.dtype(1)}, or computed ones"
    return f"{what} of {kind} {_ALONE}" if kind in EIGHT_BITS and node.is_const(0) else ""


_log = logging.getLogger(__name__)


def import_onnx(network: OnnxNetwork) -> tvm.IRModule:
    """Translate ``network``; see the module docstring.

    Raises:
        UnsupportedError: An operator, or the way it is used, is not supported.
        ModelError: The graph refers to a tensor that nothing produces.
    """
    return _Importer(network).run()


@dataclass
class _Importer:
    """State of one translation."""

    network: OnnxNetwork
    bb: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)
    translated: int = 0
    inlined: int = 0
    constants: Constants = field(init=False)
    floats: Floats = field(default_factory=Floats)
    sizes: TrueSizes = field(default_factory=TrueSizes)
    names: list[str] = field(default_factory=list)  # of outputs
    zeros: list[tuple[relax.Expr, str]] = field(default_factory=list)  # of all nodes

    def __post_init__(self) -> None:
        self.constants = Constants(sum(w.size for w in self.network.weights.values()))

    def run(self) -> tvm.IRModule:
        params = [_parameter(value) for value in self.network.inputs]
        scope: Scope = dict(self.network.weights)
        # A tensor without elements is as good as a constant, and TVM cannot compute with it.
        scope.update({p.name: self.bind(p) for p in params})
        with self.bb.function("main", params):
            try:
                result = self.body(scope)
            except Exception:
                self.bb._end_block()
                raise
            self.bb.emit_func_output(result)
        mod = with_floats(name_inner(self.bb.get()), self.floats.by_reason)
        mod["main"] = mod["main"].with_attr("output_names", self.names)
        if self.zeros:
            count = len(self.names)
            named = enumerate((what for _, what in self.zeros), count)
            limits = [Guard("", place, (0,), (0,), what) for place, what in named]
            mod["main"] = mod["main"].with_attr(LIMITS, to_text((count, limits)))
        return mod

    def body(self, scope: Scope) -> relax.Expr:
        """The whole network as one dataflow block."""
        with self.bb.dataflow():
            values = self.graph(self.network.model.graph, scope, self.network.outputs)
            self.check_declared(scope)
            names, sizes = self.sizes.outputs(self.network.outputs, values)
            self.names = [*self.network.outputs, *names]
            zeros = [value for value, _ in self.zeros]
            outputs = [as_expr(value) for value in (*values, *sizes, *zeros)]
            result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
            return self.bb.emit_output(result, name_hint=same_source(result))

    def check_declared(self, scope: Scope) -> None:
        """Refuse tensors of another type than the model declares."""
        for name, kind in self.network.declared.items():
            value = scope.get(name)
            if value is not None and dtype_of(kind) != dtype_name(value):
                raise ModelError(
                    f"expected the declared type {dtype_of(kind)} for the tensor {name!r}, got "
                    f"{dtype_name(value)}; export the model again"
                )

    def graph(self, graph: onnx.GraphProto, scope: Scope, outputs: Iterable[str]) -> list[Value]:
        """Translate a graph or branch whose outer values are in ``scope``."""
        for tensor in graph.initializer:
            scope[tensor.name] = array_of(tensor.name, tensor)
        if graph.sparse_initializer:
            raise UnsupportedError(
                "expected dense initialisers for the ONNX model, got sparse ones; make them dense"
            )
        for proto in graph.node:
            self.translate(proto, scope, self.network.opset)
        return [_lookup(scope, name) for name in outputs]

    def translate(self, proto: onnx.NodeProto, scope: Scope, opset: int) -> None:
        """Translate one node: compute it, convert it, or translate its function body."""
        node = Node(
            proto.op_type,
            proto.name,
            opset,
            [_lookup(scope, name) if name else None for name in proto.input],
            {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute},
            list(proto.output),
            self.bb,
        )
        self.translated += 1
        if self.translated > MOST_OPERATORS:
            most = f"at most {MOST_OPERATORS} operators up to this one, loops unrolled,"
            raise node.refuse(most, "more")
        own = proto.domain in ("", "ai.onnx")
        expected = self.expected(proto, node)
        results: Sequence[Value | None] | None
        if own and node.op in OPERATORS:
            results = self.control_flow(node, scope)
        else:
            results = evaluate(proto, node, expected)
            for array in results or ():
                self.constants.add(node.label, array.shape)
        name = node.op if own else f"{proto.domain}.{node.op}"
        if results is None and name in CONVERTERS:
            results = self.convert(node, name)
        if results is None:
            results = self.inline(proto, node)
        self.floats.see(node, results)
        self.sizes.see(node, results)
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                if name in expected and value is not None:
                    check_result(node, value, expected[name])
                scope[name] = value

    def expected(self, proto: onnx.NodeProto, node: Node) -> Results:
        """What ONNX knows of the results of ``node``; it breaks rules in function bodies itself."""
        try:
            return check_node(proto, node)
        except ModelError:
            if not self.inlined:
                raise
            return {}

    def control_flow(self, node: Node, scope: Scope) -> list[Value]:
        """Translate the graphs that ``node`` holds, whose inputs and outputs may be any number."""
        try:
            results = translate_control_flow(node, scope, self.graph, self.sizes)
            self.zeros += node.zeros
            return results
        except StretchError:
            raise
        except Exception as error:
            raise node.refuse("graphs that fit its inputs and outputs", last_line(error)) from error

    def convert(self, node: Node, name: str) -> tuple[Value, ...] | None:
        """Translate ``node`` with the converter of this name; None if its function says it."""
        try:
            sized = convert_sized(node, self.sizes) if name == node.op else None
            result = CONVERTERS[name](node) if sized is None else sized
            results = result if isinstance(result, tuple) else (result,)
            if not results:
                return None
            results = tuple(
                v if isinstance(v, np.ndarray) else self.bind(v, node.name) for v in results
            )
        except StretchError:
            raise
        except Exception as error:  # TVM raises many kinds; all mean that it cannot take this node
            raise node.refuse("something TVM can express", last_line(error)) from error
        if any(node.outputs[len(results) :]):
            raise node.refuse(f"{len(results)} outputs", f"{len(node.outputs)}")
        return results

    def inline(self, proto: onnx.NodeProto, node: Node) -> list[Value | None]:
        """Translate the function body that ONNX defines for an operator without converter."""
        holds_graph = any(attribute.HasField("g") for attribute in proto.attribute)
        body = None if holds_graph else qdq_body(proto, node)
        body = body or function_body(proto, node)
        if body is None:
            domain = proto.domain or "ai.onnx"
            raise UnsupportedError(
                f"expected a supported ONNX operator for node {node.name!r}, got "
                f"{domain}.{node.op}; {_way_out(domain, node.op)}"
            )
        scope: Scope = dict.fromkeys(body.input)
        scope.update(zip(body.input, node.inputs, strict=False))
        own = [o.version for o in body.opset_import if o.domain in ("", "ai.onnx")]
        opset = max(own, default=onnx.defs.onnx_opset_version())
        self.inlined += 1
        for inner in body.node:
            inner.name = inner.name or node.name
            self.translate(inner, scope, opset)
        self.inlined -= 1
        wanted = zip(body.output, node.outputs, strict=False)
        return [_lookup(scope, name) if output else None for name, output in wanted]

    def bind(self, expr: relax.Expr, source: str = "") -> Value:
        """Bind ``expr`` to a variable; a tensor without elements is a constant."""
        bound = expr
        if not isinstance(expr, relax.Var | tvm.ir.GenericConst):
            bound = self.bb.emit(expr, name_hint=from_source(source))
        dtype = check_dtype(str(bound.ty.dtype), "a tensor")
        shape = static_shape(bound)
        return np.zeros(shape, numpy_dtype(dtype)) if 0 in shape else bound


def _way_out(domain: str, op: str) -> str:
    """What to do about an operator of ``domain``."""
    if domain.startswith("com.microsoft"):
        return "optimise up to ORT_ENABLE_EXTENDED, or not; quantise with QuantFormat.QDQ"
    return "replace it by supported ones"


def _lookup(scope: Scope, name: str) -> Value:
    if name not in scope:
        raise ModelError(
            f"expected a producer for the tensor {name!r}, got none; export the model again"
        )
    return scope[name]


def _parameter(value: onnx.ValueInfoProto) -> relax.Var:
    """The function parameter for a graph input."""
    tensor = value.type.tensor_type
    dtype = dtype_of(tensor.elem_type) if tensor.elem_type else "no type"
    check_dtype(dtype, f"input {value.name!r}")
    return relax.Var(value.name, relax.TensorType([d.dim_value for d in tensor.shape.dim], dtype))
