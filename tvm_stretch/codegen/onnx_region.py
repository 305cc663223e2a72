"""A region of canonical Relax as one ONNX model, for engines that take no kernels of ours.

    conv = R.call_tir(integer_conv2d, (x, w, b, factor))
        ->
    x8 DequantizeLinear, w DequantizeLinear, b DequantizeLinear, Conv, QuantizeLinear y8

Engines want each tensor's scale, and an integer operator only knows factors, such as scale of x *
scale of w / scale of y. `QuantisedTensors` finds scales and zero points that give these factors:
with each such choice the region is the same function of integers. `onnx_operators.py` has a rule
for each operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.codegen.onnx_tables import rescaling_of
from tvm_stretch.errors import UnsupportedError
from tvm_stretch.ir.expressions import shape_of
from tvm_stretch.ir.integers import Integer, integer_of, operands_of
from tvm_stretch.ir.operators import kind_of

_OPSET, _IR_VERSION = 17, 9
_MOST_OFF = 4e-3
"""Largest relative error of a factor that the scales found give."""


@dataclass
class Graph:
    """The ONNX graph of a region, while it is written."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)  # in their order
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)  # initializers, by name
    # of the ONNX values of Relax variables, by variable
    names: dict[relax.Var, str] = field(default_factory=dict)
    # scale and zero point of tensors of 8 bits, by variable
    scales: dict[relax.Var, tuple[float, int]] = field(default_factory=dict)
    _floats: dict[relax.Var, str] = field(default_factory=dict)

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node with one result; returns the result's name."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        """Add an initializer."""
        name = f"c{len(self.constants)}"
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
        dtype, (scale, zero) = str(var.ty.dtype), self.scales[var]
        limits = np.iinfo(dtype)
        rounding = None if integer is None else integer.rounding
        if rounding is not None and (rounding.low, rounding.high) != (limits.min, limits.max):
            low, high = (np.float32((v - zero) * scale) for v in (rounding.low, rounding.high))
            if rounding.low == zero and rounding.high == limits.max:
                real = self.node("Relu", [real])
            else:
                real = self.node("Clip", [real, self.constant(low), self.constant(high)])
        name = self.node("QuantizeLinear", [real, *self._scale((scale, zero), dtype)])
        self.names[var] = name

    def _scale(self, scale: tuple[float, int], dtype: str) -> tuple[str, str]:
        number, zero = np.float32(scale[0]), np.dtype(dtype).type(scale[1])
        return self.constant(np.asarray(number)), self.constant(np.asarray(zero))


Rule = Callable[[Graph, relax.Var, relax.Call], None]
"""Adds the nodes of an operator, and the name of its result."""


def bindings(function: relax.Function) -> list[tuple[relax.Var, relax.Expr]]:
    """The variables of a function, with what they are bound to."""
    return [(b.var, b.value) for block in function.body.blocks for b in block.bindings]


def export(function: relax.Function, rules: Callable[[relax.Call], Rule | None]) -> bytes:
    """The ONNX model of a region; its inputs are called i0, i1, .., its outputs o0, o1, .."""
    graph = Graph(scales=QuantisedTensors(function).found())
    for number, param in enumerate(function.params):
        graph.names[param] = f"i{number}"
    for var, value in bindings(function):
        if not isinstance(value, relax.Call):
            raise UnsupportedError(
                f"expected operators of one result in a region of an engine, got {var.name}; "
                "place it elsewhere"
            )
        rule = rules(value)
        if rule is None:
            raise UnsupportedError(
                f"expected an operator that ONNX has for an engine, got {kind_of(value)} "
                f"({var.name}); place it elsewhere"
            )
        rule(graph, var, value)
    results = getattr(function.body.body, "fields", [function.body.body])
    for number, result in enumerate(results):
        graph.nodes.append(
            helper.make_node("Identity", [graph.names[result]], [f"o{number}"], f"o{number}")
        )
    made = helper.make_graph(
        _without_copies(graph.nodes),
        "region",
        [_info(f"i{n}", param) for n, param in enumerate(function.params)],
        [_info(f"o{n}", result) for n, result in enumerate(results)],
        list(graph.constants.values()),
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(made, opset_imports=[opset], ir_version=_IR_VERSION)
    data: bytes = model.SerializeToString()
    return data


def _without_copies(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes, with the copies to outputs joined to the nodes whose only result they are."""
    made = list(nodes)
    final = {n.input[0]: n.output[0] for n in made if n.op_type == "Identity"}
    readers = [name for n in made if n.op_type != "Identity" for name in n.input]
    sources = [n.input[0] for n in made if n.op_type == "Identity"]
    produced = {name for n in made for name in n.output}
    joined = {
        name: output
        for name, output in final.items()
        if name in produced and sources.count(name) == 1
    }
    kept = [n for n in made if n.op_type != "Identity" or n.input[0] not in joined]
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


# --- scales ---------------------------------------------------------------------------------------


_Sum = tuple[relax.Var, list[tuple[relax.Var, float]], float]
"""The result of an addition (or table), its terms with their factors, and the added offset."""


class QuantisedTensors:
    """Scales and zero points of a region's tensors of 8 bits that give its operators' factors.

    Factors are products and quotients of scales, so logarithms of scales solve linear equations:

        add:       scale of a / scale of y = factor of a
        multiply:  scale of a * scale of b / scale of y = factor
        mean:      scale of x / scale of y = factor * number of pixels
        table:     scale of x / scale of y = ratio, if it only changes the scale
        moves:     scale of x = scale of y

    A layer's result has any scale, because the weights take the rest of the factor.
    """

    def __init__(self, function: relax.Function) -> None:
        self.tensors: dict[relax.Var, int] = {}
        self.rows: list[tuple[dict[relax.Var, float], float]] = []
        self.zeros: dict[relax.Var, int] = {}
        self.equal: list[tuple[relax.Var, relax.Var]] = []
        self.sums: list[_Sum] = []
        for param in function.params:
            self._add(param)
        for var, value in bindings(function):
            self._add(var)
            if isinstance(value, relax.Call):
                self._read(var, value)

    def _add(self, var: relax.Var) -> None:
        if isinstance(var.ty, relax.TensorType) and str(var.ty.dtype) in ("uint8", "int8"):
            self.tensors[var] = len(self.tensors)

    def _tensors(self, call: relax.Call) -> list[relax.Var]:
        found: list[relax.Var] = []
        for arg in call.args:
            fields = arg.fields if isinstance(arg, relax.Tuple) else [arg]
            found += [f for f in fields if isinstance(f, relax.Var) and f in self.tensors]
        return found

    def _read(self, var: relax.Var, call: relax.Call) -> None:
        integer = integer_of(call)
        if integer is None:
            if var in self.tensors:  # it moves numbers
                for source in self._tensors(call):
                    self.rows.append(({source: 1.0, var: -1.0}, 0.0))
                    self.equal.append((source, var))
            return
        sources = [s for s in operands_of(call) if isinstance(s, relax.Var)]
        for source, zero in zip(sources, integer.zeros, strict=False):
            self._know(source, zero)
        kind, factors, rounding = integer.kind, integer.factors, integer.rounding
        if rounding is not None and kind not in ("add", "multiply"):
            self._know(var, rounding.zero)
        if kind == "add" and len(sources) == 2:
            for source, factor in zip(sources, factors, strict=False):
                self.rows.append(({source: 1.0, var: -1.0}, float(np.log(factor))))
            self.sums.append((var, [*zip(sources, factors, strict=False)], factors[-1]))
        elif kind == "multiply" and len(sources) == 2:
            row: dict[relax.Var, float] = {var: -1.0}
            for source in sources:
                row[source] = row.get(source, 0.0) + 1.0
            self.rows.append((row, float(np.log(factors[0]))))
            self._know(var, round(factors[1]))
        elif kind == "table" and (found := rescaling_of(call)) is not None:
            self.rows.append(({sources[0]: 1.0, var: -1.0}, float(np.log(found.ratio))))
            offset = found.result_zero - found.ratio * found.zero
            self.sums.append((var, [(sources[0], found.ratio)], offset))
        elif kind == "mean":
            rows, columns = shape_of(sources[0])[2:4]
            factor = factors[0] * rows * columns
            self.rows.append(({sources[0]: 1.0, var: -1.0}, float(np.log(factor))))
        elif kind == "average":
            self.rows.append(({sources[0]: 1.0}, float(np.log(factors[0]))))
            self.rows.append(({var: 1.0}, float(np.log(factors[1]))))

    def _know(self, var: relax.Var, zero: int) -> None:
        if self.zeros.setdefault(var, zero) != zero:
            self._contradicts(var)

    def _contradicts(self, var: relax.Var) -> None:
        raise UnsupportedError(
            f"expected one zero point for {var.name} in a region of an engine, got contradicting "
            "ones; place its operators elsewhere"
        )

    def found(self) -> dict[relax.Var, tuple[float, int]]:
        """Scale and zero point of each tensor."""
        scales, zeros = self._solve(), self._all_zeros()
        for one, other in self.equal:
            if zeros[one] != zeros[other]:
                self._contradicts(other)
        for result, terms, offset in self.sums:  # of an addition; a table's ratio is inexact
            found = offset + sum(factor * zeros[term] for term, factor in terms)
            if len(terms) > 1 and abs(found - zeros[result]) > _MOST_OFF:
                self._contradicts(result)
        for var, zero in zeros.items():
            limits = np.iinfo(str(var.ty.dtype))
            if var in self.tensors and not limits.min <= zero <= limits.max:
                raise UnsupportedError(
                    f"expected a zero point of {var.ty.dtype} for {var.name} in a region of an "
                    f"engine, got {zero}; place its operator elsewhere"
                )
        return {
            var: (float(np.exp(scales[place])), zeros[var]) for var, place in self.tensors.items()
        }

    def _solve(self) -> np.ndarray:
        matrix = np.zeros((len(self.rows), len(self.tensors)))
        right = np.zeros(len(self.rows))
        for number, (row, value) in enumerate(self.rows):
            right[number] = value
            for var, weight in row.items():
                matrix[number, self.tensors[var]] = weight
        solved = np.linalg.lstsq(matrix, right, rcond=None)[0]
        if len(right) and np.abs(matrix @ solved - right).max() > _MOST_OFF:
            raise UnsupportedError(
                "expected scales that give the factors of all integer operators of a region, got "
                "contradicting ones; place its operators elsewhere"
            )
        return solved

    def _all_zeros(self) -> dict[relax.Var, int]:
        zeros = self.zeros
        while True:
            before = len(zeros)
            for one, other in (*self.equal, *((b, a) for a, b in self.equal)):
                if one in zeros and other not in zeros:
                    zeros[other] = zeros[one]
            for result, terms, offset in self.sums:
                self._complete(result, terms, offset)
            unknown = (s for s in self.sums if self._unknown(s[0], s[1]))
            if len(zeros) == before and not self._choose(next(unknown, None)):
                return {var: zeros.get(var, 0) for var in self.tensors}

    def _choose(self, stuck: _Sum | None) -> bool:
        """Choose all unknown zero points of a sum but the last; False if none is unknown.

        Several are unknown if the region only adds a tensor. The best choice makes the last one a
        whole number of its type.
        """
        if stuck is None:
            return False
        result, terms, offset = stuck
        *others, last = dict.fromkeys(self._unknown(result, terms))
        limits = [np.iinfo(str(var.ty.dtype)) for var in (*others, last)]
        ranges = [np.arange(limit.min, limit.max + 1) for limit in limits[:-1]]
        known: dict[relax.Var, np.ndarray | int] = dict(self.zeros)
        known.update(zip(others, np.meshgrid(*ranges, indexing="ij"), strict=True))
        rest = sum((f * known[t] for t, f in terms if t is not last), offset)
        value = np.asarray((known[result] - rest) / sum(f for t, f in terms if t is last))
        outside = (value.round() < limits[-1].min) | (value.round() > limits[-1].max)
        best = np.unravel_index(np.argmin(abs(value - value.round()) + outside), value.shape)
        self.zeros.update((var, int(r[i])) for var, r, i in zip(others, ranges, best, strict=True))
        return True

    def _unknown(
        self, result: relax.Var, terms: Sequence[tuple[relax.Var, float]]
    ) -> list[relax.Var]:
        return [v for v in (result, *(t for t, _ in terms)) if v not in self.zeros]

    def _complete(
        self, result: relax.Var, terms: Sequence[tuple[relax.Var, float]], offset: float
    ) -> None:
        """The last unknown zero point of: zero of result = offset + sum of factor * zero."""
        unknown = set(self._unknown(result, terms))
        if len(unknown) != 1:
            return
        (var,) = unknown
        rest = offset + sum(f * self.zeros[t] for t, f in terms if t is not var)
        if var is result:
            self.zeros[var] = round(rest)
        else:
            own = sum(f for t, f in terms if t is var)
            self.zeros[var] = round((self.zeros[result] - rest) / own)
