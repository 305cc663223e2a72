"""Segments that exact branching may replace, the spans of branches, and the rows that they read.

3x3 convolution, stride 2, padding 1, 112 rows:   rows 20..28 need rows 39..56
rows 0..20 need rows 0..40 and one row of zeros

For bands of tokens, the axis of each tensor along which tokens lie, and tensors that operators
read whole:

    h = reshape(layer_norm(x))     (197, 192)         tokens along axis 0
    q = transpose(matmul(h, a))    (1, 3, 197, 64)    along axis 2
    k = matmul(h, b)               (197, 192)         joined: each branch reads all of its rows
    s = matmul(q, transpose(k))    (1, 3, 197, 197)   along axis 2
    y = matmul(softmax(s), v)      (1, 3, 197, 64)    along axis 2; v is joined, too

A row of a product needs one row of the first operand and all rows of the second one, so branches
exchange keys and values, and nothing else. They exchange them where products write them: whole rows
of a matrix lie one after the other, so that putting them together is a view of memory. Each branch
computes the cheap operators that follow, such as transposes, for all tokens (``whole``). Where one
product makes queries, keys and values, the operators between it and the queries are computed for
the branch's own tokens, too (``by_rows``).

A tensor from outside, such as the mask of an attention, is read like a constant: its rows where it
has a row for each token, otherwise all of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.files import is_finite
from tvm_stretch.network.expressions import RESHAPES, axes_of, shape_of
from tvm_stretch.network.operators import (
    CONVOLUTIONS,
    OF_ONE,
    OF_TWO,
    POINTWISE,
    Operator,
    Operators,
    operands,
    remember,
)
from tvm_stretch.network.steps import is_block_product

Span = tuple[int, int]


def share(total: int, ratios: Sequence[float], unit: int = 1) -> tuple[Span, ...]:
    """Cut ``range(total)`` in the given ratios, at multiples of ``unit``.

    >>> share(56, (2, 1)), share(64, (0.3, 0.7), unit=8)
    (((0, 37), (37, 56)), ((0, 16), (16, 64)))
    """
    whole = sum(ratios)
    if len(ratios) < 2 or not all(is_finite(r) and r > 0 for r in ratios):
        raise InputError(
            f"expected two or more positive numbers for ratios, got {tuple(ratios)}; "
            "give one share per branch"
        )
    cuts = [0]
    for index in range(1, len(ratios)):
        exact = total * sum(ratios[:index]) / whole
        cuts.append(min(total, unit * math.floor(exact / unit + 0.5)))
    cuts.append(total)
    spans = tuple(pairwise(cuts))
    if any(begin >= end for begin, end in spans):
        raise UnsupportedError(
            f"expected at least {unit} of {total} for each of the ratios {tuple(ratios)}, got "
            f"{[end - begin for begin, end in spans]}; use fewer branches or more even ratios"
        )
    return spans


@remember  # a search asks once for each ratio
def closed_segment(
    operators: Operators, start: str, end: str, reads: bool = False
) -> tuple[Operator, ...]:
    """The operators between two tensors, if they exchange no other tensor with the rest.

    ``reads``: they may read tensors that do not depend on ``start``.
    """
    members = operators.between(start, end)
    names = {member.name for member in members}
    if end not in names:
        raise UnsupportedError(
            f"expected a tensor computed from {start!r} for end, got {end!r}; "
            "choose another segment"
        )
    for member in members:
        foreign = [name for name in member.inputs if name != start and name not in names]
        if foreign and not reads:
            raise _open(start, end, f"{member.name!r} reads {foreign[0]!r} from outside")
        readers = [name for name in operators.readers[member.name] if name not in names]
        if member.name != end and (readers or member.name in operators.outputs):
            who = repr(readers[0]) if readers else "the caller"
            raise _open(start, end, f"{who} outside reads {member.name!r}")
    return members


def _open(start: str, end: str, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"expected one tensor in and one out for segment {start!r} -> {end!r}, got: {what}; "
        "cut at meeting points"
    )


AVERAGE = "integer.average"
_POOLS = {"nn.avg_pool2d", "nn.max_pool2d"}


@dataclass(frozen=True)
class Window:
    """How the rows that an operator reads slide over its operand."""

    extent: int  # rows from the first to the last that one row of the result reads
    stride: int  # rows from one window to the next
    above: int  # rows of padding above the operand
    height: int  # rows of the operand

    def reads(self, rows: Span) -> Span:
        """Rows of the operand that ``rows`` of the result need; empty if they are all padding."""
        begin, end = self._range(rows)
        return max(0, begin), min(self.height, end)

    def padding(self, rows: Span) -> tuple[int, int]:
        """Rows of padding above and below the rows that ``reads`` returns."""
        begin, end = self._range(rows)
        return max(0, -begin), max(0, end - self.height)

    def _range(self, rows: Span) -> Span:
        begin = rows[0] * self.stride - self.above
        return begin, begin + (rows[1] - rows[0] - 1) * self.stride + self.extent


@remember  # a search asks many times
def window(operator: Operator) -> Window | None:
    """The window of a convolution or pool; None for operators that read row by row."""
    if operator.kind in CONVOLUTIONS:
        kernel = operator.arg_shapes[1][2]
    elif operator.kind in _POOLS:
        kernel = int(operator.call.attrs.pool_size[0])
    elif operator.kind == AVERAGE:
        kernel = operator.attributes.kernel[0]
    else:
        return None
    attrs = operator.attributes
    return Window(
        extent=(kernel - 1) * int(attrs.dilation[0]) + 1,
        stride=int(attrs.strides[0]),
        above=int(attrs.padding[0]),
        height=operator.arg_shapes[0][2],
    )


@remember
def why_not_by_rows(operator: Operator) -> str | None:
    """Why rows of the result cannot be computed from rows of the operands; None if they can."""
    reason = None
    kind, call = operator.kind, operator.call
    if kind not in _BY_ROWS:
        reason = "each of its results may need all rows"
    elif len(operator.shape) != 4:
        reason = f"its result has {len(operator.shape)} dimensions, not 4"
    elif kind == "nn.conv2d" and str(call.attrs.data_layout) != "NCHW":
        reason = f"its layout is {call.attrs.data_layout}, not NCHW"
    elif kind in CONVOLUTIONS and not isinstance(operands(call)[1], GenericConst):
        reason = "its weights are not constant"
    elif kind in _POOLS and str(call.attrs.layout) != "NCHW":
        reason = f"its layout is {call.attrs.layout}, not NCHW"
    elif kind == "concat" and (
        not isinstance(call.args[0], relax.Tuple) or int(call.attrs.axis) % 4 == 2
    ):
        reason = "it puts rows below each other"
    elif kind in OF_TWO and any(_spread(arg, operator.shape) for arg in operands(call)):
        reason = "an operand has one row for all rows"
    return None if reason is None else f"{kind} {operator.name!r}: {reason}"


_BY_ROWS = {"concat", AVERAGE, *CONVOLUTIONS, *_POOLS, *OF_ONE, *OF_TWO}


def _spread(arg: relax.Expr, shape: tuple[int, ...]) -> bool:
    """Whether a variable is broadcast along the rows; a constant may be."""
    own = shape_of(arg)
    return isinstance(arg, relax.Var) and (len(own) < 4 or own[2] != shape[2])


BY_ELEMENT = frozenset({*OF_ONE, *OF_TWO, "where", "isnan"})
"""Operators whose results depend on the elements at the same position alone."""
_REDUCTIONS = frozenset({"mean", "sum", "max", "min"})
_PARTS = frozenset({"split", "TupleGetItem", "strided_slice"})
_MOVES = frozenset({*RESHAPES, *_PARTS, "permute_dims", "broadcast_to"})


@dataclass(frozen=True)
class TokenRows:
    """How the operators of a segment work on tokens."""

    count: int  # of tokens
    axes: Mapping[str, int]  # the axis of the tokens of each tensor
    whole: frozenset[str]  # operators that each branch computes for all tokens
    by_rows: frozenset[str]  # operators that each branch computes for its own tokens
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
        for name in _read_whole(member, axes):
            cheap, source = _source_of(operators, name, start)
            whole.update(cheap)
            joined.update({source} - {start})
    if not whole.isdisjoint(joined):
        return "an operator reads all rows of a tensor that all rows of another one make"
    for name in (*joined, members[-1].name):
        if axes[name] != token_axis(operators.shape(name)):
            return f"{name!r}, whose rows are put together, has them along axis {axes[name]}"
    by_rows = _by_rows(members, whole)
    return TokenRows(count, axes, frozenset(whole), by_rows, frozenset(joined))


def _by_rows(members: Sequence[Operator], whole: Collection[str]) -> frozenset[str]:
    """The operators of which some reader, or the reader of the segment, takes single rows."""
    names = {member.name for member in members if member.name not in whole}
    for member in reversed(members):
        if member.name in names and member.kind == "matmul":
            left = operands(member.call)[0]
            names.update({left.name} if isinstance(left, relax.Var) else ())
        elif member.name in names:
            names.update(member.inputs)
    return frozenset(names & {member.name for member in members})


def _read_whole(operator: Operator, axes: Mapping[str, int]) -> list[str]:
    """The tensors of which a row of the result needs all rows: right sides of products."""
    right = operands(operator.call)[1:] if operator.kind == "matmul" else []
    return [arg.name for arg in right if isinstance(arg, relax.Var) and arg.name in axes]


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
    if operator.kind in BY_ELEMENT:
        return _aligned(operator, axes, count)
    if operator.kind == "concat":
        return _of_parts(operator, axes)
    if operator.kind == "matmul":
        return _of_product(operator, axes)
    if is_block_product(operator.kind):
        return 0 if {axes.get(name) for name in operator.inputs} == {0} else None
    if len(operator.inputs) != 1:
        return None
    axis = axes[operator.inputs[0]]
    if operator.kind == "TupleGetItem":
        return axis
    shape = operator.arg_shapes[0]
    if operator.kind in RESHAPES:
        return _reshaped(shape, operator.shape, axis)
    if operator.kind == "permute_dims":
        return axes_of(operator.call).index(axis)
    if operator.kind in ("split", "strided_slice", "broadcast_to"):
        return axis if _keeps(operator, axis) else None
    if operator.kind in _REDUCTIONS:
        listed = operator.call.attrs.axis
        reduced = [int(a) % len(shape) for a in listed] if listed is not None else [axis]
        return axis if bool(operator.call.attrs.keepdims) and axis not in reduced else None
    if operator.kind == "nn.softmax":
        return axis if int(operator.call.attrs.axis) % len(shape) != axis else None
    return None


def _keeps(operator: Operator, axis: int) -> bool:
    """Whether an operator takes or repeats whole rows of tokens."""
    shape, attrs = operator.arg_shapes[0], operator.call.attrs
    if operator.kind == "split":
        return int(attrs.axis) % len(shape) != axis
    if operator.kind == "broadcast_to":
        return len(operator.shape) == len(shape) and shape[axis] == operator.shape[axis]
    listed = operands(operator.call)[1]
    return isinstance(listed, relax.Tuple) and all(
        int(value.value) % len(shape) != axis for value in listed.fields
    )


def _of_parts(operator: Operator, axes: Mapping[str, int]) -> int | None:
    """The axis of tokens of tensors that lie side by side along another axis."""
    parts, along = operands(operator.call)[0], operator.call.attrs.axis
    if not isinstance(parts, relax.Tuple) or along is None:
        return None
    if not all(isinstance(part, relax.Var) for part in parts.fields):
        return None
    axes_of_parts = {axes.get(part.name) for part in parts.fields}
    axis = axes_of_parts.pop()
    return axis if not axes_of_parts and int(along) % len(operator.shape) != axis else None


def _aligned(operator: Operator, axes: Mapping[str, int], count: int) -> int | None:
    """The axis on which all operands have their tokens; none may be spread along it."""
    rank, places = len(operator.shape), set()
    for arg in operands(operator.call):
        if isinstance(arg, relax.Var) and arg.name in axes:
            axis = axes[arg.name]
            places.add(axis + rank - len(shape_of(arg)))
            if shape_of(arg)[axis] != count:
                return None
    return places.pop() if len(places) == 1 else None


def _reshaped(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    for place, size in enumerate(after):
        if size == before[axis] and prod(after[:place]) == prod(before[:axis]):
            return place
    return None


def _of_product(operator: Operator, axes: Mapping[str, int]) -> int | None:
    left, right = operands(operator.call)
    if not isinstance(left, relax.Var) or axes.get(left.name) != len(shape_of(left)) - 2:
        return None
    if not isinstance(right, relax.Var) and len(shape_of(right)) != 2:
        return None  # a weight for each token
    return len(operator.shape) - 2
