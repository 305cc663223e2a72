"""Reductions along axes, running sums and products, orders, places of the largest, and Einsum.

TVM's own orders need routines of its runtime, which a network that runs alone on a phone lacks.
Einsum of two tensors is a product of matrices, which has a kernel template:

    bhqd,bhkd->bhqk   ->   matmul(q, transpose(k)) for each b and h

Indices of both operands and of the result count products, those of both alone are summed. The
other indices of the operands become rows and columns. Other equations (one or three operands,
diagonals, nothing to sum) keep TVM's own operator.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_stretch.network.expressions import ends_of
from tvm_stretch.read.onnx.node import Node, Value, as_expr, converter
from tvm_stretch.read.onnx.operators.elementwise import cast, constant
from tvm_stretch.read.onnx.operators.movement import reshape
from tvm_stretch.targets.kernels.top_k import Running, running_call, top_k_call

_REDUCE = {
    "ReduceMean": relax.op.mean, "ReduceSum": relax.op.sum, "ReduceMax": relax.op.max,
    "ReduceMin": relax.op.min, "ReduceProd": relax.op.prod, "ReduceL1": relax.op.sum,
    "ReduceL2": relax.op.sum, "ReduceLogSum": relax.op.sum, "ReduceLogSumExp": relax.op.sum,
    "ReduceSumSquare": relax.op.sum,
}  # fmt: skip


@converter(*_REDUCE)
def _reduce(node: Node) -> Value:
    axes = reduced_axes(node)
    axes = sorted(axis % node.rank() for axis in axes)
    keepdims = bool(node.attr("keepdims", 1))
    shape = node.shape()
    if any(shape[axis] == 0 for axis in axes):
        return _of_nothing(node, axes, keepdims=keepdims)
    x, function = node[0], _REDUCE[node.op]
    if node.op == "ReduceLogSumExp":
        return _log_sum_exp(node, axes, keepdims=keepdims)
    if node.op in ("ReduceL2", "ReduceSumSquare"):
        x = relax.op.multiply(x, x)
    elif node.op == "ReduceL1":
        x = relax.op.abs(x)
    if node.dtype() == "bool":
        x = relax.op.astype(x, "int8")
    if node.op == "ReduceMean" and "int" in node.dtype():
        return _mean_of_integers(node, axes, keepdims=keepdims)
    result = function(x, axis=axes, keepdims=keepdims) if axes else x
    if node.op == "ReduceL2":
        result = relax.op.sqrt(result)
    elif node.op == "ReduceLogSum":
        result = relax.op.log(result)
    return cast(node, node.emit(result), "bool") if node.dtype() == "bool" else result


def _mean_of_integers(node: Node, axes: list[int], *, keepdims: bool) -> relax.Expr:
    """In float64, as ONNX Runtime and NumPy do: a sum may be larger than the mean's type."""
    if not axes:
        return node[0]
    wide = node.emit(relax.op.astype(node[0], "float64"))
    mean = node.emit(relax.op.mean(wide, axis=axes, keepdims=keepdims))
    return relax.op.astype(mean, node.dtype())


def _log_sum_exp(node: Node, axes: list[int], *, keepdims: bool) -> relax.Expr:
    """Shifted by the maximum, so that nothing overflows."""
    x = node[0]
    if not axes:
        return x
    most = node.emit(relax.op.max(x, axis=axes, keepdims=True))
    infinite = relax.op.equal(relax.op.abs(most), node.scalar(np.inf))
    most = node.emit(relax.op.where(infinite, node.scalar(0), most))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(x, most)), axis=axes, keepdims=True)
    result = node.emit(relax.op.add(relax.op.log(total), most))
    return result if keepdims else relax.op.squeeze(result, axes)


def reduced_axes(node: Node) -> list[int]:
    """The axes that a reduction names, or all of them."""
    named = node.optional_ints(1, "axes")
    return named or ([] if node.attr("noop_with_empty_axes", 0) else list(range(node.rank())))


def neutral(node: Node) -> float:
    """The number that changes no result of a reduction."""
    lowest, highest = ends_of(node.dtype())
    return {
        "ReduceProd": 1, "ReduceMax": lowest, "ReduceMin": highest, "ReduceLogSum": -np.inf,
        "ReduceLogSumExp": -np.inf, "ReduceMean": np.nan,
    }.get(node.op, 0)  # fmt: skip


def _of_nothing(node: Node, axes: list[int], *, keepdims: bool) -> np.ndarray:
    """The neutral element, when there is nothing to reduce."""
    shape = [
        1 if axis in axes else size
        for axis, size in enumerate(node.shape())
        if keepdims or axis not in axes
    ]
    return np.full(shape, neutral(node), node.dtype())


MOST_SORTED = 1 << 30
"""K times the elements of a row: if they come in the worst order, each moves K others."""


@converter("CumSum", "CumProd")
def _cumulate(node: Node) -> relax.Expr:
    axis, shape = int(node.const(1, "axis").item()) % node.rank(), node.shape()
    running = Running(
        product=node.op == "CumProd",
        exclusive=bool(node.attr("exclusive", 0)),
        backwards=bool(node.attr("reverse", 0)),
    )
    three = [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])]
    if 0 in three:
        return node[0]
    sums = running_call(node.bb, node.emit(reshape(node[0], three)), running)
    return reshape(node.emit(sums), shape)


@converter("TopK")
def _top_k(node: Node) -> tuple[relax.Expr, ...]:
    """The places of the first ``k``, and what stands there."""
    k = int(node.const(1, "K").item()) if node.opset >= 10 else int(node.attr("k"))
    axis, shape = node.axis(-1), node.shape()
    extent = shape[axis]
    if not 0 <= k <= extent:
        raise node.refuse(f"K from 0 to {extent}, the number of elements", str(k))
    if k == 0:
        nothing = [0 if i == axis else size for i, size in enumerate(shape)]
        return tuple(as_expr(np.zeros(nothing, dtype)) for dtype in (node.dtype(), "int64"))
    if k * extent > MOST_SORTED:
        raise node.refuse(f"at most {MOST_SORTED} for K times elements", f"{k} times {extent}")
    last = [*(i for i in range(len(shape)) if i != axis), axis]
    moved = node.emit(relax.op.permute_dims(node[0], last))
    matrix = node.emit(reshape(moved, [math.prod(shape) // extent, extent]))
    largest = bool(node.attr("largest", 1))
    places = node.emit(top_k_call(node.bb, matrix, k, largest=largest))
    places = node.emit(reshape(places, [*(shape[i] for i in last[:-1]), k]))
    indices = node.emit(relax.op.permute_dims(places, [last.index(i) for i in range(len(shape))]))
    indices = node.emit(relax.op.clip(indices, 0, extent - 1))  # so no later pass guards them
    return node.emit(relax.op.gather_elements(node[0], indices, axis)), indices


@converter("ArgMax", "ArgMin")
def _arg(node: Node) -> relax.Expr:
    return place_of_extreme(
        node,
        node.axis(0),
        largest=node.op == "ArgMax",
        last=bool(node.attr("select_last_index", 0)),
        keepdims=bool(node.attr("keepdims", 1)),
    )


def place_of_extreme(
    node: Node, axis: int, *, largest: bool, last: bool, keepdims: bool
) -> relax.Expr:
    """The first or last place of the largest or least number along an axis, or of NaN.

    TVM's own compares pairs of a number and its place: NaN makes any pair win, in no vectors.
    """
    x, shape = node[0], node.shape()
    most = relax.op.max if largest else relax.op.min
    is_extreme = relax.op.equal(x, node.emit(most(x, axis=[axis], keepdims=True)))
    if "float" in node.dtype():
        is_extreme = relax.op.logical_or(is_extreme, relax.op.isnan(x))
    extent = shape[axis]
    along = [extent if i == axis else 1 for i in range(len(shape))]
    places = constant(np.arange(extent).reshape(along), "int32")
    nowhere = constant(-1 if last else extent, "int32")
    marked = node.emit(relax.op.where(node.emit(is_extreme), places, nowhere))
    chosen = (relax.op.max if last else relax.op.min)(marked, axis=[axis], keepdims=keepdims)
    return relax.op.astype(node.emit(chosen), "int64")


@dataclass(frozen=True)
class _Equation:
    """The indices of two operands and of the result."""

    left: str
    right: str
    result: str

    @property
    def counted(self) -> str:
        """Indices that count products."""
        return "".join(i for i in self.result if i in self.left and i in self.right)

    @property
    def summed(self) -> str:
        return "".join(i for i in self.left if i in self.right and i not in self.result)

    @property
    def rows(self) -> str:
        return "".join(i for i in self.left if i not in self.right)

    @property
    def columns(self) -> str:
        return "".join(i for i in self.right if i not in self.left)

    @property
    def is_product(self) -> bool:
        """Whether each index is once in an operand, and kept if the other operand lacks it."""
        once = all(len(set(part)) == len(part) for part in (self.left, self.right, self.result))
        return once and bool(self.summed) and set(self.rows + self.columns) <= set(self.result)


@converter("Einsum")
def _einsum(node: Node) -> relax.Expr:
    text = node.attr("equation").replace(" ", "")
    operands = tuple(node[i] for i in range(len(node.inputs)))
    equation = _equation(text, [node.rank(i) for i in range(len(operands))])
    if equation is None or not equation.is_product or "float" not in node.dtype():
        return relax.op.einsum(operands, text)
    sizes: dict[str, int] = {}
    for i, indices in enumerate((equation.left, equation.right)):
        for index, size in zip(indices, node.shape(i), strict=True):
            if sizes.setdefault(index, size) != size:  # it is broadcast
                return relax.op.einsum(operands, text)
    return _product(node, equation, sizes)


def _equation(text: str, ranks: Sequence[int]) -> _Equation | None:
    """The equation of two operands, with letters for the dots; None for others."""
    inputs, arrow, result = text.partition("->")
    parts = inputs.split(",")
    if len(parts) != 2 or len(ranks) != 2:
        return None
    spare = [letter for letter in string.ascii_letters if letter not in text]
    dots = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
    if max(dots) > len(spare) or min(dots) < 0:
        return None
    more = "".join(spare[: max(dots)])
    left, right = (
        part.replace("...", more[len(more) - count :])
        for part, count in zip(parts, dots, strict=True)
    )
    letters = inputs.replace(",", "").replace(".", "")
    free = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    return _Equation(left, right, result.replace("...", more) if arrow else more + free)


def _product(node: Node, equation: _Equation, sizes: dict[str, int]) -> relax.Expr:
    counted, summed = equation.counted, equation.summed

    def matrices(operand: int, indices: str, order: Sequence[str]) -> relax.Expr:
        """An operand with the axes of products first, and two axes for each matrix."""
        axes = [indices.index(index) for part in (counted, *order) for index in part]
        turned = node.emit(relax.op.permute_dims(node[operand], axes))
        extents = [math.prod(sizes[index] for index in part) for part in order]
        return node.emit(relax.op.reshape(turned, [*(sizes[i] for i in counted), *extents]))

    left = matrices(0, equation.left, (equation.rows, summed))
    right = matrices(1, equation.right, (summed, equation.columns))
    order = counted + equation.rows + equation.columns
    product = node.emit(relax.op.matmul(left, right))
    whole = node.emit(relax.op.reshape(product, [sizes[index] for index in order]))
    return relax.op.permute_dims(whole, [order.index(index) for index in equation.result])
