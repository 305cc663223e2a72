"""Quantised operators of ONNX and of ONNX Runtime (QuantFormat.QOperator), as others write them.

    y = QLinearAdd(a, .., b, .., sy, zy)   ->   y = QuantizeLinear(Add(DequantizeLinear(a, ..), ..))

So there is one way from any quantised network to integer operators: `passes/form_integers.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx
from onnx import helper

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.read.onnx.node import Node

_OF_ONE = {
    "QLinearAveragePool": "AveragePool",
    "QLinearGlobalAveragePool": "GlobalAveragePool",
    "QLinearLeakyRelu": "LeakyRelu",
    "QLinearSigmoid": "Sigmoid",
}
_OF_TWO = {"QLinearAdd": "Add", "QLinearMatMul": "MatMul", "QLinearMul": "Mul"}
_DROPPED = {"channels_last", "opset"}
"""Attributes of ONNX Runtime's that ONNX's operators lack."""


class _Body:
    """Collects the nodes that stand for one operator; its inputs are ``i0``, ``i1``, .."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[onnx.NodeProto] = []
        self.is_turned = node.op.startswith("Nhwc") or bool(node.attr("channels_last", 0))

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """A node; the name of its result."""
        return self.add_many(op, inputs, 1, **attributes)[0]

    def add_many(self, op: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """A node; the names of its results."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(count)]
        kept = {key: value for key, value in attributes.items() if key not in _DROPPED}
        self.nodes.append(helper.make_node(op, list(inputs), names, self.node.name, **kept))
        return names

    def given(self, index: int) -> bool:
        """Whether the operator has this input."""
        return self.node.has(index)

    def dequantised(self, first: int, axis: int | None = None) -> str:
        """The tensor whose numbers, scale and zero point begin at input ``first``."""
        self.node.given(first)
        numbers = f"i{first}" if first else self.first("i0")
        names = [numbers, self.scale(first + 1)]
        if self.given(first + 2):
            names.append(f"i{first + 2}")
        along = self.many(first + 1)
        if along and axis is None:
            raise self.refuse_many(first + 1)
        return self.add("DequantizeLinear", names, **({"axis": axis} if along else {}))

    def scale(self, index: int) -> str:
        """A scale; sums of float16 would not be exact."""
        self.node.given(index)
        half = self.node.dtype(index) == "float16"
        return self.add("Cast", [f"i{index}"], to=onnx.TensorProto.FLOAT) if half else f"i{index}"

    def many(self, index: int) -> bool:
        """Whether input ``index`` is more than one scale."""
        return self.node.shape(index) not in ([], [1])

    def refuse_many(self, index: int) -> UnsupportedError:
        """The error that says which tensor has more than one scale."""
        return self.node.refuse(f"one scale as input {index}", f"{self.node.shape(index)}")

    def quantised(self, x: str, first: int) -> str:
        """The result, whose scale and zero point begin at input ``first``."""
        scale = self.scale(first)
        if self.many(first):
            raise self.refuse_many(first)
        zero = [f"i{first + 1}"] if self.given(first + 1) else []
        return self.last(self.add("QuantizeLinear", [x, scale, *zero]))

    def first(self, x: str) -> str:
        """``x``, the operator's first input, with channels before rows and columns."""
        last = self.node.rank() - 1
        return self.add("Transpose", [x], perm=[0, last, *range(1, last)]) if self.is_turned else x

    def last(self, x: str) -> str:
        """The result ``x`` with channels where the operator has them."""
        axes = [0, *range(2, self.node.rank()), 1]
        return self.add("Transpose", [x], perm=axes) if self.is_turned else x

    def bias(self, index: int, scales: tuple[int, int]) -> str:
        """An int32 bias, whose scale is the product of those of data and weights."""
        scale = self.add("Mul", [self.scale(i) for i in scales])
        axis = {"axis": 0} if self.many(scales[1]) else {}
        return self.add("DequantizeLinear", [f"i{index}", scale], **axis)


def _of_one(body: _Body) -> str:
    result = body.add(_OF_ONE[body.node.op], [body.dequantised(0)], **body.node.attrs)
    return body.quantised(result, 3)


def _softmax(body: _Body) -> str:
    """Before operator set 13 over all axes from one on, which is the same if those are of one."""
    before_13 = body.node.attr("opset", 13) < 13
    axis, shape = body.node.axis(1 if before_13 else -1), body.node.shape()
    if before_13 and math.prod(shape[axis + 1 :]) > 1:
        raise body.node.refuse("a softmax over the last axis before opset 13", f"axis {axis}")
    return body.quantised(body.add("Softmax", [body.dequantised(0)], axis=axis), 3)


def _of_two(body: _Body) -> str:
    columns = body.node.rank(3) - 1 if body.node.op == "QLinearMatMul" else None
    right = body.dequantised(3, axis=columns)
    return body.quantised(body.add(_OF_TWO[body.node.op], [body.dequantised(0), right]), 6)


def _conv(body: _Body) -> str:
    operands = [body.dequantised(0), body.dequantised(3, axis=0)]
    if body.given(8):
        operands.append(body.bias(8, (1, 4)))
    return body.quantised(body.add("Conv", operands, **body.node.attrs), 6)


def _gemm(body: _Body) -> str:
    axis = 0 if body.node.attr("transB", 0) else 1
    operands = [body.dequantised(0), body.dequantised(3, axis=axis)]
    if body.given(6):
        operands.append(body.bias(6, (1, 4)))
    # QGemm's alpha belongs to the scale of the bias too
    attributes = {**body.node.attrs, "beta": body.node.attr("alpha", 1.0)}
    result = body.add("Gemm", operands, **attributes)
    return body.quantised(result, 7) if body.given(7) else result


def _where(body: _Body) -> str:
    return body.quantised(body.add("Where", ["i0", body.dequantised(1), body.dequantised(4)]), 7)


def _integer_product(body: _Body, operands: list[str], scales: list[str], bias: int) -> str:
    """A product of integers as floats, with the bias that input ``bias`` may be."""
    sums = body.add("MatMulInteger", operands)
    floats = body.add("Cast", [sums], to=onnx.TensorProto.FLOAT)
    result = body.add("Mul", [floats, body.add("Mul", scales)])
    return body.add("Add", [result, f"i{bias}"]) if body.given(bias) else result


def _dynamic_matmul(body: _Body) -> str:
    numbers, scale, zero = body.add_many("DynamicQuantizeLinear", ["i0"], 3)
    operands = [numbers, "i1", zero, *(["i3"] if body.given(3) else [])]
    return _integer_product(body, operands, [scale, "i2"], 4)


def _matmul_to_float(body: _Body) -> str:
    zeros = [f"i{i}" if body.given(i) else "" for i in (4, 5)]
    return _integer_product(body, ["i0", "i1", *zeros], ["i2", "i3"], 6)


def _max_pool(body: _Body) -> str:
    return body.last(body.add("MaxPool", [body.first("i0")], **body.node.attrs))


def _concat(body: _Body) -> str:
    parts = [body.dequantised(i) for i in range(2, len(body.node.inputs), 3)]
    return body.quantised(body.add("Concat", parts, **body.node.attrs), 0)


BODIES: dict[str, Callable[[_Body], str]] = {
    **dict.fromkeys(_OF_ONE, _of_one),
    **dict.fromkeys(_OF_TWO, _of_two),
    "QLinearConv": _conv,
    "QLinearSoftmax": _softmax,
    "QGemm": _gemm,
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _matmul_to_float,
    "NhwcMaxPool": _max_pool,
}
"""What stands for an operator, by its name."""


def qdq_body(proto: onnx.NodeProto, node: Node) -> onnx.FunctionProto | None:
    """The function that stands for a quantised operator; None for others.

    Raises:
        UnsupportedError: The result is not what ONNX's operator gives.
    """
    if proto.domain not in ("", "ai.onnx", "com.microsoft") or node.op not in BODIES:
        return None
    body = _Body(node)
    result = BODIES[node.op](body)
    opset = max(node.opset, 13)
    return helper.make_function(
        "tvm_stretch",
        node.op,
        [f"i{index}" for index in range(len(node.inputs))],
        [result],
        body.nodes,
        [helper.make_opsetid("", opset)],
    )
