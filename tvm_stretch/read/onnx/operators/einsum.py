"""Einsum of two tensors is a product of matrices, which has a kernel template.

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

from tvm import relax

from tvm_stretch.read.onnx.node import Node, converter


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
