"""Find the axis of each tensor along which tokens lie, and tensors that operators read whole.

    h = reshape(layer_norm(x))     (197, 192)         tokens along axis 0
    q = transpose(matmul(h, a))    (1, 3, 197, 64)    along axis 2
    k = matmul(h, b)               (197, 192)         joined: each branch reads all of its rows
    s = matmul(q, transpose(k))    (1, 3, 197, 197)   along axis 2
    y = matmul(softmax(s), v)      (1, 3, 197, 64)    along axis 2; v is joined, too

A row of a product needs one row of the first operand and all rows of the second one, so branches
exchange keys and values, and nothing else. They exchange them where products write them: whole rows
of a matrix lie one after the other, so that putting them together is a view of memory. Each branch
computes the cheap operators that follow, such as transposes, for all tokens (``whole``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tvm import relax

from tvm_stretch.ir.expressions import shape_of
from tvm_stretch.ir.operators import (
    OF_ONE,
    OF_TWO,
    POINTWISE,
    Operator,
    Operators,
    operands,
    remember,
)
from tvm_stretch.ir.views import RESHAPES

_BY_ELEMENT = frozenset({*OF_ONE, *OF_TWO, "where", "isnan"})
_REDUCTIONS = frozenset({"mean", "sum", "max", "min"})
_MOVES = frozenset({*RESHAPES, "permute_dims"})


@dataclass(frozen=True)
class TokenRows:
    """How the operators of a segment work on tokens."""

    axes: Mapping[str, int]  # the axis of the tokens of each tensor
    whole: frozenset[str]  # operators that each branch computes for all tokens
    joined: frozenset[str]  # tensors whose rows branches exchange


def has_tokens(shape: Sequence[int]) -> bool:
    """Whether rows of a tensor are tokens; those of a tensor of 4 dimensions are rows of images."""
    return len(shape) in (2, 3)


def token_axis(shape: Sequence[int]) -> int:
    """The axis of tokens of a segment's first tensor; the last one has the features."""
    return len(shape) - 2


@remember  # a search asks once for each ratio
def find_token_rows(
    operators: Operators, members: tuple[Operator, ...], start: str
) -> TokenRows | str:
    """The tokens of a segment, or why it cannot be computed by rows."""
    axes = {start: token_axis(operators.shape(start))}
    count = operators.shape(start)[axes[start]]
    whole: set[str] = set()
    joined: set[str] = set()
    for member in members:
        axis = _axis_of(member, axes, count)
        if axis is None:
            return f"{member.kind} {member.name!r}: each of its results may need all rows"
        axes[member.name] = axis
        for name in _read_whole(member):
            cheap, source = _source_of(operators, name, start)
            whole.update(cheap)
            joined.update({source} - {start})
    if not whole.isdisjoint(joined):
        return "an operator reads all rows of a tensor that all rows of another one make"
    for name in (*joined, members[-1].name):
        if axes[name] != token_axis(operators.shape(name)):
            return f"{name!r}, whose rows are put together, has them along axis {axes[name]}"
    return TokenRows(axes, frozenset(whole), frozenset(joined))


def _read_whole(operator: Operator) -> list[str]:
    """The tensors of which a row of the result needs all rows: right sides of products."""
    right = operands(operator.call)[1:] if operator.kind == "matmul" else []
    return [arg.name for arg in right if isinstance(arg, relax.Var)]


def _source_of(operators: Operators, name: str, start: str) -> tuple[list[str], str]:
    """The cheap operators that make a tensor, and the tensor with whole rows that they read."""
    path = [name]
    while path[-1] != start and _is_cheap(operators[path[-1]]):
        path.append(operators[path[-1]].inputs[0])
    # a bias belongs to the product before it
    while len(path) > 1 and operators[path[-2]].kind in POINTWISE:
        path.pop()
    return path[:-1], path[-1]


def _is_cheap(operator: Operator) -> bool:
    return operator.kind in _MOVES | POINTWISE and len(operator.inputs) == 1


def _axis_of(operator: Operator, axes: Mapping[str, int], count: int) -> int | None:
    """The axis of tokens of a result; None if its rows need more than rows of the operands."""
    if operator.kind in _BY_ELEMENT:
        return _aligned(operator, axes, count)
    if len(operator.inputs) != 1 and operator.kind != "matmul":
        return None
    axis, shape = axes[operator.inputs[0]], operator.arg_shapes[0]
    if operator.kind in RESHAPES:
        return _reshaped(shape, operator.shape, axis)
    if operator.kind == "permute_dims":
        order = operator.call.attrs.axes
        return [int(a) % len(shape) for a in order].index(axis) if order else None
    if operator.kind in _REDUCTIONS:
        listed = operator.call.attrs.axis
        reduced = [int(a) % len(shape) for a in listed] if listed is not None else [axis]
        return axis if bool(operator.call.attrs.keepdims) and axis not in reduced else None
    if operator.kind == "nn.softmax":
        return axis if int(operator.call.attrs.axis) % len(shape) != axis else None
    return _of_product(operator, axes) if operator.kind == "matmul" else None


def _aligned(operator: Operator, axes: Mapping[str, int], count: int) -> int | None:
    """The axis on which all operands have their tokens; none may be spread along it."""
    rank, found = len(operator.shape), set()
    for arg in operands(operator.call):
        if isinstance(arg, relax.Var):
            axis = axes[arg.name]
            found.add(axis + rank - len(shape_of(arg)))
            if shape_of(arg)[axis] != count:
                return None
    return found.pop() if len(found) == 1 else None


def _reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    for place, size in enumerate(after):
        if size == before[axis] and prod(after[:place]) == prod(before[:axis]):
            return place
    return None


def _of_product(operator: Operator, axes: Mapping[str, int]) -> int | None:
    left, right = operands(operator.call)
    if not isinstance(left, relax.Var) or axes[left.name] != len(shape_of(left)) - 2:
        return None
    if not isinstance(right, relax.Var) and len(shape_of(right)) != 2:
        return None  # a weight for each token
    return len(operator.shape) - 2
