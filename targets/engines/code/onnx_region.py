"""A region of canonical Relax as one ONNX model, for engines that take no kernels of ours.

    conv = R.call_tir(integer_conv2d, (x, w, b, factor))
        ->
    x8 DequantizeLinear, w DequantizeLinear, b DequantizeLinear, Conv, QuantizeLinear y8

Engines want each tensor's scale, and an integer operator only knows factors, such as scale of x *
scale of w / scale of y. `onnx_scales.py` finds scales and zero points that give these factors: with
each such choice the region is the same function of integers. `onnx_operators.py` has a rule for
each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.expressions import flat_args, results_of, shape_of
from tvm_stretch.network.integers import Integer, integer_of
from tvm_stretch.network.operators import kind_of
from tvm_stretch.targets.engines.code.onnx_scales import with_copies

_OPSET, _IR_VERSION = 17, 9


@dataclass
class Graph:
    """The ONNX graph of a region, while it is written."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)  # in their order
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)  # initializers, by name
    # of the ONNX values of Relax variables, by variable
    names: dict[relax.Var, str] = field(default_factory=dict)
    # scale and zero point of tensors of 8 bits, by variable
    scales: dict[relax.Var, tuple[float, int]] = field(default_factory=dict)
    reserved: frozenset[str] = frozenset()  # names that no value of its own may have
    # tensors of 8 bits that are the region's inputs, or only moves of them
    given: set[relax.Var] = field(default_factory=set)
    transposed: set[relax.Var] = field(default_factory=set)  # transposes, and moves of them
    _floats: dict[relax.Var, str] = field(default_factory=dict)

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one result; returns the result's name."""
        name = self._new(f"t{len(self.nodes)}")
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def _new(self, name: str) -> str:
        while name in self.reserved:
            name += "_"
        return name

    def constant(self, value: np.ndarray) -> str:
        """Add an initializer."""
        name = self._new(f"c{len(self.constants)}")
        self.constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def value(self, expr: relax.Expr) -> str:
        """The name of an operand as it is in memory."""
        if isinstance(expr, GenericConst):
            return self.constant(expr.value.numpy())
        return self.names[expr]

    def real(self, expr: relax.Expr) -> str:
        """The name of an operand's real numbers: tensors of 8 bits are dequantised."""
        if expr not in self.scales:
            return self.value(expr)
        if expr not in self._floats:
            dtype = str(expr.ty.dtype)
            self._floats[expr] = self.node(
                "DequantizeLinear", [self.value(expr), *self._scale(self.scales[expr], dtype)]
            )
        return self._floats[expr]

    def dequantised(self, value: np.ndarray, scale: np.ndarray) -> str:
        """A constant with a scale for each entry of its first axis, or one scale."""
        several = len(set(scale.tolist())) > 1
        scale = scale.astype("float32") if several else np.float32(scale.flat[0])
        zero = np.zeros(np.shape(scale), value.dtype)
        operands = map(self.constant, (value, np.asarray(scale), np.asarray(zero)))
        return self.node("DequantizeLinear", [*operands], **({"axis": 0} if several else {}))

    def store(self, var: relax.Var, real: str, integer: Integer | None = None) -> None:
        """Quantise the result of an operator, limited to what its rounding allows."""
        dtype = str(var.ty.dtype)
        limits = np.iinfo(dtype)
        rounding = None if integer is None else integer.rounding
        if rounding is not None and (rounding.low, rounding.high) != (limits.min, limits.max):
            real = self.limited(var, real, rounding.low, rounding.high)
        name = self.node("QuantizeLinear", [real, *self._scale(self.scales[var], dtype)])
        self.names[var] = name

    def limited(self, var: relax.Var, real: str, least: int, most: int) -> str:
        """Real numbers cut where the integers of ``var`` end."""
        scale, zero = self.scales[var]
        if least == zero and most == np.iinfo(str(var.ty.dtype)).max:
            return self.node("Relu", [real])
        low, high = (np.float32((limit - zero) * scale) for limit in (least, most))
        return self.node("Clip", [real, self.constant(low), self.constant(high)])

    def held(self, var: relax.Var) -> str:
        """The real numbers of a tensor, with limits that cut nothing.

        Qualcomm's provider drops the scales of tensors that are only moved. Its transpose then
        refuses them, unless an operator that keeps them stands between it and the region's end.
        """
        limits = np.iinfo(str(var.ty.dtype))
        return self.limited(var, self.real(var), int(limits.min), int(limits.max))

    def move(self, var: relax.Var, call: relax.Call) -> None:
        """Note what a call moves that computes nothing."""
        operands = {arg for arg in flat_args(call) if isinstance(arg, relax.Var)}
        if operands & self.given:
            self.given.add(var)
        if kind_of(call) == "permute_dims" or operands & self.transposed:
            self.transposed.add(var)

    def rounded(self, real: str, scale: tuple[float, int], dtype: str) -> str:
        """Numbers between two operators, quantised and dequantised as engines expect them."""
        encoding = self._scale(scale, dtype)
        return self.node(
            "DequantizeLinear", [self.node("QuantizeLinear", [real, *encoding]), *encoding]
        )

    def copy(self, var: relax.Var, source: relax.Var) -> None:
        """The same tensor; integers of another scale or zero point by a product and a sum."""
        if var not in self.scales:
            self.names[var] = self.names[source]
            return
        (scale, zero), (of_source, zero_of_source) = self.scales[var], self.scales[source]
        dtype, real = str(var.ty.dtype), self.real(source)
        self.names[var] = self.names[source]
        product = ("Mul", scale / of_source, zero_of_source)
        for kind, number, zero_after in (product, ("Add", scale * (zero_of_source - zero), zero)):
            if number != (1.0 if kind == "Mul" else 0.0):
                # the integer 1 with the zero point 0, or 0 with 1, has any scale
                one = np.asarray(number > 0, dtype), np.asarray(number < 0, dtype)
                operands = (one[0], np.float32(abs(number)), one[1])
                constant = self.node("DequantizeLinear", [*map(self.constant, operands)])
                encoding = self._scale((scale, zero_after), dtype)
                scaled = self.node(kind, [real, constant])
                self.names[var] = self.node("QuantizeLinear", [scaled, *encoding])
                real = self.node("DequantizeLinear", [self.names[var], *encoding])

    def _scale(self, scale: tuple[float, int], dtype: str) -> tuple[str, str]:
        number, zero = np.float32(scale[0]), np.dtype(dtype).type(scale[1])
        return self.constant(np.asarray(number)), self.constant(np.asarray(zero))


Rule = Callable[[Graph, relax.Var, relax.Call], str]
"""Adds the nodes of an operator; returns the name of its result's real numbers."""


def export(function: relax.Function, rules: Callable[[relax.Call], Rule | None]) -> bytes:
    """The ONNX model of a region; its inputs are called i0, i1, .., its outputs o0, o1, .."""
    inputs = [f"i{number}" for number in range(len(function.params))]
    outputs = [f"o{number}" for number in range(len(results_of(function)))]
    graph = Graph()
    for _ in written(graph, function, inputs, rules):
        pass
    for result in dict.fromkeys(results_of(function)):  # in order: verdicts are kept by the bytes
        if result in graph.transposed:
            graph.store(result, graph.held(result))
    data: bytes = model_of(graph, function, inputs, outputs).SerializeToString()
    return data


def written(
    graph: Graph,
    function: relax.Function,
    inputs: Sequence[str],
    rules: Callable[[relax.Call], Rule | None],
) -> Iterator[tuple[relax.Var, list[onnx.NodeProto]]]:
    """Write all operators to the graph, and give the result and the nodes of each."""
    bound, graph.scales = with_copies(function)
    graph.names.update(zip(function.params, inputs, strict=True))
    graph.given.update(param for param in function.params if param in graph.scales)
    for var, value in bound:
        before = len(graph.nodes)
        if isinstance(value, relax.Var):
            graph.copy(var, value)
        elif not isinstance(value, relax.Call):
            raise UnsupportedError(
                f"expected operators of one result in a region of an engine, got {var.name}; "
                "place it elsewhere"
            )
        else:
            rule = rules(value)
            if rule is None:
                raise UnsupportedError(
                    f"expected an operator that ONNX has for an engine, got {kind_of(value)} "
                    f"({var.name}); place it elsewhere"
                )
            result, integer = rule(graph, var, value), integer_of(value)
            if var in graph.scales and var not in graph.names:  # by a rule that writes integers
                graph.store(var, result, integer)
            else:
                graph.names[var] = result
            if var in graph.scales and integer is None:
                graph.move(var, value)
        yield var, graph.nodes[before:]


def model_of(
    graph: Graph,
    function: relax.Function,
    inputs: Sequence[str],
    outputs: Sequence[str],
    ir_version: int = _IR_VERSION,
) -> onnx.ModelProto:
    """The ONNX model of a graph that has all operators of a function."""
    results = results_of(function)
    for name, result in zip(outputs, results, strict=True):
        graph.nodes.append(helper.make_node("Identity", [graph.names[result]], [name], name))
    onnx_graph = helper.make_graph(
        _without_copies(graph.nodes),
        "region",
        [_info(name, param) for name, param in zip(inputs, function.params, strict=True)],
        [_info(name, result) for name, result in zip(outputs, results, strict=True)],
        list(graph.constants.values()),
    )
    domains = {"": _OPSET} | {node.domain: 1 for node in onnx_graph.node if node.domain}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(onnx_graph, opset_imports=opsets, ir_version=ir_version)


def _without_copies(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes, with the copies to outputs joined to the nodes whose only result they are."""
    left = list(nodes)
    final = {n.input[0]: n.output[0] for n in left if n.op_type == "Identity"}
    readers = [name for n in left if n.op_type != "Identity" for name in n.input]
    sources = [n.input[0] for n in left if n.op_type == "Identity"]
    produced = {name for n in left for name in n.output}
    joined = {
        name: output
        for name, output in final.items()
        if name in produced and sources.count(name) == 1
    }
    kept = [n for n in left if n.op_type != "Identity" or n.input[0] not in joined]
    for node in kept:
        node.output[0] = joined.get(node.output[0], node.output[0])
        if readers:
            renamed = [joined.get(name, name) for name in node.input]
            del node.input[:]
            node.input.extend(renamed)
    return kept


def _info(name: str, expr: relax.Expr) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(str(expr.ty.dtype)))
    return helper.make_tensor_value_info(name, kind or TensorProto.FLOAT, shape_of(expr))
