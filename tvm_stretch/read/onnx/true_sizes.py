"""Follow tensors whose size the data decide to the outputs of the network.

    selected (6, 3), of which 2 rows count  ->  GatherND  ->  boxes (6, 4), of which 2 rows count
                                            ->  outputs `boxes` and `boxes:size0`

A tensor has room for its largest size. No result may depend on elements after its true size: an
operator that works on each row alone keeps the axis, `sized.py` has what others do, and all others
are refused. Two sizes that are computed alike are one `Size`, so such tensors fit each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import constant
from tvm_stretch.read.onnx.node import Node, Value, static_shape

_ELEMENTWISE = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf",
    "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg", "Not",
    "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt",
    "Sub", "Tanh", "Where", "Xor",
}  # fmt: skip
_BATCHED = {
    "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "GlobalAveragePool",
    "MaxPool", "Resize", "RoiAlign",
}  # fmt: skip
"""Operators that work on each item of the first axis alone."""
_ALONG_ONE = {"ArgMax", "ArgMin", "LogSoftmax", "Softmax"}


@dataclass(frozen=True, eq=False)
class Size:
    """A size that the data decide, and the largest it can be."""

    expr: relax.Expr  # a vector of one int64
    most: int


def vector(value: int | Size) -> relax.Expr:
    """A number or a size, as a vector of one int64."""
    return value.expr if isinstance(value, Size) else constant(np.asarray([value], "int64"))


@dataclass
class TrueSizes:
    """The axis that has a true size, and that size, of each tensor that has one."""

    _known: dict[int, tuple[Value, int, Size]] = field(default_factory=dict)
    """By the identity of a value, which is kept: another one could be at the same place."""
    _numbers: dict[int, tuple[Value, np.ndarray]] = field(default_factory=dict)
    """Vectors and numbers that tell sizes, as arrays of integers and of sizes, in the same way."""
    _made: dict[Any, Any] = field(default_factory=dict)
    """Sizes by what they are computed of."""

    def find(self, value: Value | None) -> tuple[int, Size] | None:
        """The axis that has a true size, and that size."""
        entry = self._known.get(id(value))
        return entry and entry[1:]

    def numbers(self, value: Value | None) -> np.ndarray | None:
        """What a value tells, if there are sizes among it."""
        entry = self._numbers.get(id(value))
        return entry and entry[1]

    def tell(self, value: Value, numbers: np.ndarray) -> Value:
        """Note what a value tells; a constant if it tells no size."""
        if not any(isinstance(number, Size) for number in numbers.flat):
            return numbers.astype("int64")
        self._numbers[id(value)] = value, numbers
        return value

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What ``make`` returns; for an equal key what it returned before."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def least(self, node: Node, values: Collection[int | Size]) -> int | Size:
        """The least of some numbers and sizes."""
        sizes = [*dict.fromkeys(size for size in values if isinstance(size, Size))]
        limit = min((x for x in values if not isinstance(x, Size)), default=None)
        if limit is None or any(size.most <= limit for size in sizes):
            if len(sizes) == 1:
                return sizes.pop()
        elif not sizes:
            return limit

        def make() -> Size:
            total, *others = [vector(size) for size in sizes]
            for other in [*others, *([] if limit is None else [vector(limit)])]:
                total = node.emit(relax.op.minimum(total, other))
            return Size(total, min(x.most if isinstance(x, Size) else x for x in values))

        return self.once(("least", frozenset(sizes), limit), make)

    def see(self, node: Node, results: Sequence[Value | None]) -> None:
        """Note which results of a node have a true size; refuse operators that mix in the rest."""
        for place, (axis, size) in node.sizes.items():
            self._note(results[place], axis, size)
        read = {
            index: self._known[id(value)]
            for index, value in enumerate(node.inputs)
            if id(value) in self._known
        }
        values = [value for value in results if value is not None]
        if node.is_settled or not read or all(id(value) in self._known for value in values):
            return  # a function's body was followed already
        sizes = {size for _, _, size in read.values()}
        axes = {_axis_after(node, read, i, axis, values[0]) for i, (_, axis, _) in read.items()}
        after = axes.pop() if len(axes) == len(sizes) == len(values) == 1 else None
        if after is None:
            raise node.refuse(
                "an operator that works on each element, or on each row,",
                "one that depends on how many elements there are, which the data decide",
            )
        self._note(values[0], after, sizes.pop())

    def _note(self, value: Value | None, axis: int, size: Size | relax.Expr) -> None:
        if isinstance(value, np.ndarray) or value is None:
            return
        if not isinstance(size, Size):
            expr, most = size, static_shape(value)[axis]
            size = self.once(expr, lambda: Size(expr, most))
        self._known[id(value)] = value, axis, size

    def outputs(
        self, names: Sequence[str], values: Sequence[Value]
    ) -> tuple[list[str], list[Value]]:
        """Outputs that tell the sizes of others, and their names."""
        sizes = {
            name: self._known[id(value)]
            for name, value in zip(names, values, strict=True)
            if id(value) in self._known
        }
        ports = [f"{name}:size{axis}" for name, (_, axis, _) in sizes.items()]
        return ports, [size.expr for _, _, size in sizes.values()]


def _axis_after(
    node: Node, sized: Collection[int], index: int, axis: int, result: Value
) -> int | None:
    """The axis of a result that has the true size of an input's axis; None if there is none."""
    rank = len(result.shape) if isinstance(result, np.ndarray) else len(static_shape(result))
    if node.op in _ELEMENTWISE:
        after = axis + rank - node.rank(index)
        return after if _are_others_known(node, sized, after - rank) else None
    if node.op in _BATCHED:
        is_rows = index in (1, 2) if node.op == "RoiAlign" else index == 0
        is_turned = node.op == "Gemm" and node.attr("transA", 0)
        return 0 if axis == 0 and is_rows and not is_turned else None
    if node.op == "MatMul":
        return axis if index == 0 and axis < rank - 1 and node.rank(1) == 2 else None
    if node.op in _ALONG_ONE and node.opset >= 13:
        same = axis == node.axis(-1 if "Softmax" in node.op else 0)
        keeps = "Softmax" in node.op or node.attr("keepdims", 1) or axis < node.axis(0)
        return None if same else axis if keeps else axis - 1
    if node.op == "Transpose":
        return list(node.attr("perm", list(range(rank))[::-1])).index(axis)
    if node.op == "Gather":
        along = node.axis(0)
        if index == 1:
            return along + axis
        return None if along == axis else axis if axis < along else axis + node.rank(1) - 1
    if node.op == "GatherND" and index == 1 and not node.attr("batch_dims", 0):
        return axis if axis < node.rank(1) - 1 else None
    if node.op == "Slice":
        cut = node.optional_ints(3, "axes") or range(rank)
        return None if axis in {one % rank for one in cut} else axis
    if node.op == "Concat":
        return axis if node.axis(0) != axis and len(sized) == len(node.inputs) else None
    if node.op in ("Squeeze", "Unsqueeze") and (axes := node.optional_ints(1, "axes")):
        most = max(rank, node.rank())
        other = [one for one in range(most) if one not in {place % most for place in axes}]
        if node.op == "Unsqueeze":
            return other[axis]
        return other.index(axis) if axis in other else None
    return None


def _are_others_known(node: Node, sized: Collection[int], axis: int) -> bool:
    """Whether each input has a true size, or one element, along an axis counted from the end."""
    given = (i for i in range(len(node.inputs)) if node.has(i) and i not in sized)
    return all(node.rank(i) < -axis or node.shape(i)[axis] == 1 for i in given)
