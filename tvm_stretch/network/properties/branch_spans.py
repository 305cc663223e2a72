"""Segments that exact branching may replace, the spans of branches, and the rows that they read.

3x3 convolution, stride 2, padding 1, 112 rows:   rows 20..28 need rows 39..56
rows 0..20 need rows 0..40 and one row of zeros
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.base.files import is_finite
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import (
    CONVOLUTIONS,
    OF_ONE,
    OF_TWO,
    Operator,
    Operators,
    operands,
    remember,
)

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
