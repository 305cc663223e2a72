"""Compute a group of layers in bands of rows, so that several processors share the work.

    y = R.nn.conv2d(x, w, padding=1)           # x, y: (1, 64, 56, 56)
        ->
    x.r0.0to38 = R.strided_slice(x, rows 0..38)
    y.r0 = R.nn.conv2d(x.r0.0to38, w, padding=(1, 1, 0, 1))       # 37 rows
    x.r1.36to56 = R.strided_slice(x, rows 36..56)
    y.r1 = R.nn.conv2d(x.r1.36to56, w, padding=(0, 1, 1, 1))      # 19 rows
    y = R.concat((y.r0, y.r1), axis=2)

A branch starts from its rows of the result and derives backwards which rows of every tensor it
needs. It computes only these; rows near a cut are computed by both branches (the halo). Processors
exchange nothing before the end of the group. Each element is computed as before, so the result is
the same. Rows of a sequence are its tokens (`token_branches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.convolutions import conv2d_like, operator_like
from tvm_stretch.network.emitting.branches import Emitter, Replacement
from tvm_stretch.network.emitting.token_branches import plan_token_split, token_branches
from tvm_stretch.network.expressions import shape_of
from tvm_stretch.network.operators import CONVOLUTIONS, OF_TWO, Operator, Operators, operands
from tvm_stretch.network.properties.branch_spans import (
    AVERAGE,
    Span,
    TokenRows,
    closed_segment,
    has_tokens,
    share,
    why_not_by_rows,
    window,
)
from tvm_stretch.plan.splits import RowSplit

_IMAGE_ROWS = 2
"""The axis of rows of an image."""


@dataclass(frozen=True)
class RowPlan:
    """The rows that each branch of a row split computes and reads."""

    rows: tuple[Mapping[str, Span], ...]  # for each branch, the rows of each tensor that it needs
    bytes_read: tuple[int, ...]  # of the start tensor, by each branch
    tokens: TokenRows | None = None  # of sequences

    @property
    def joined(self) -> frozenset[str]:
        """Tensors of which each branch reads the rows of all branches."""
        return frozenset() if self.tokens is None else self.tokens.joined

    def fraction(self, branch: int, operator: Operator) -> float:
        """Which part of an operator a branch computes."""
        begin, end = self.rows[branch][operator.name]
        rows = operator.shape[_IMAGE_ROWS] if self.tokens is None else self.tokens.count
        return (end - begin) / rows


def plan_row_split(operators: Operators, split: RowSplit) -> RowPlan:
    """Compute the bands without building them.

    Raises:
        UnsupportedError: The segment cannot be split; the message says why.
        InputError: The ratios or the names of the tensors are invalid.
    """
    if split.start in operators.variables and has_tokens(operators.shape(split.start)):
        return _of_tokens(operators, split)
    members = closed_segment(operators, split.start, split.end)
    for member in members:
        reason = why_not_by_rows(member)
        if reason is not None:
            raise UnsupportedError(
                f"expected operators that work on rows for segment {split.start!r} -> "
                f"{split.end!r}, got {reason}; choose another segment"
            )
    if len(operators.shape(split.start)) != 4:
        raise UnsupportedError(
            f"expected a tensor of 4 dimensions for start, got {split.start!r} of shape "
            f"{operators.shape(split.start)}; choose another segment"
        )
    bands = share(operators.shape(split.end)[2], split.ratios)
    rows = tuple(_walk_back(members, split.end, band) for band in bands)
    return RowPlan(rows, tuple(_bytes(operators, split.start, needed) for needed in rows))


def _of_tokens(operators: Operators, split: RowSplit) -> RowPlan:
    plan = plan_token_split(operators, split)
    tokens = plan.tokens

    def needed(band: Span) -> dict[str, Span]:
        every = dict.fromkeys(tokens.whole, (0, tokens.count))
        return {**dict.fromkeys(tokens.axes, band), **every}

    size = operators.bytes(split.start) // tokens.count
    read = tuple(size * (end - begin) for begin, end in plan.bands)
    return RowPlan(tuple(map(needed, plan.bands)), read, tokens)


def _walk_back(members: tuple[Operator, ...], end: str, band: Span) -> dict[str, Span]:
    """The rows of every tensor that ``band`` of the segment's result needs."""
    needed = {end: band}
    for member in reversed(members):
        read = _reads(member, needed[member.name])
        if read[0] >= read[1]:
            raise UnsupportedError(
                f"expected at least one row of its operand for each branch of {member.name!r}, "
                "got only padding; use fewer branches or more even ratios"
            )
        for name in member.inputs:
            begin, finish = needed.get(name, read)
            needed[name] = min(begin, read[0]), max(finish, read[1])
    return needed


def _reads(operator: Operator, rows: Span) -> Span:
    """Rows of every operand that ``rows`` of the result need."""
    sliding = window(operator)
    return rows if sliding is None else sliding.reads(rows)


def _bytes(operators: Operators, tensor: str, needed: Mapping[str, Span]) -> int:
    begin, end = needed[tensor]
    return operators.bytes(tensor) // operators.shape(tensor)[2] * (end - begin)


def row_branches(
    operators: Operators, split: RowSplit, builder: relax.BlockBuilder, taken: set[str]
) -> Replacement:
    """The bindings of the branches (see the module docstring)."""
    plan = plan_row_split(operators, split)
    if plan.tokens is not None:
        return token_branches(operators, split, builder, taken)
    members = closed_segment(operators, split.start, split.end)
    emitter = Emitter(builder, {}, taken)
    branches, parts = [], []
    for index, needed in enumerate(plan.rows):
        first = len(emitter.bindings)
        band = _Band(emitter, operators, split.end, f".r{index}", needed)
        for member in members:
            band.compute(member)
        parts.append(band.tensor(split.end, needed[split.end]))
        branches.append(tuple(binding.var.name for binding in emitter.bindings[first:]))
    end = operators.variables[split.end]
    emitter.emit_as(end, relax.op.concat(parts, axis=2))
    return Replacement(
        end=split.end,
        removed=frozenset(member.name for member in members),
        bindings=tuple(emitter.bindings),
        branches=tuple(branches),
        joins=(split.end,),
        origins=emitter.origins,
    )


class _Band:
    """Emits one branch."""

    def __init__(
        self,
        emitter: Emitter,
        operators: Operators,
        end: str,
        suffix: str,
        needed: Mapping[str, Span],
    ) -> None:
        self.emitter = emitter
        self.operators = operators
        self.end = end
        self.suffix = suffix
        self.needed = needed
        self.computed: dict[str, relax.Var] = {}
        self.slices: dict[tuple[str, Span], relax.Var] = {}

    def compute(self, operator: Operator) -> None:
        """Emit the rows of ``operator`` that this branch needs."""
        rows = self.needed[operator.name]
        read = _reads(operator, rows)
        value = self._call(operator, rows, read)
        name = operator.name + self.suffix
        self.computed[operator.name] = self.emitter.emit(name, value, operator.name)

    def tensor(self, name: str, rows: Span) -> relax.Var:
        """Rows of a tensor, sliced if more rows exist."""
        if name in self.computed:
            whole, (begin, end) = self.computed[name], self.needed[name]
        else:
            whole = self.operators.variables[name]
            begin, end = 0, self.operators.shape(name)[2]
        if rows == (begin, end):
            return whole
        if (name, rows) not in self.slices:
            cut = relax.op.strided_slice(whole, [2], [rows[0] - begin], [rows[1] - begin])
            # named after the segment, because another segment may read these rows too
            label = f"{self.end}{self.suffix}.{name}.{rows[0]}to{rows[1]}"
            self.slices[name, rows] = self.emitter.emit(label, cut, name)
        return self.slices[name, rows]

    def _call(self, operator: Operator, rows: Span, read: Span) -> relax.Expr:
        call, attrs, builder = operator.call, operator.attributes, self.emitter.builder
        if operator.kind == "concat":
            fields = [self.tensor(field.name, read) for field in call.args[0].fields]
            return relax.op.concat(fields, axis=int(attrs.axis))
        args = [self._operand(operator, arg, read) for arg in operands(call)]
        sliding = window(operator)
        if sliding is None:
            return operator_like(builder, call, args)
        _, left, most, right = (int(p) for p in attrs.padding)
        top, bottom = sliding.padding(rows)
        if operator.kind == AVERAGE:
            args[1] = _constant_rows(args[1], rows)  # counts of pixels for these rows of results
        if operator.kind in {AVERAGE, *CONVOLUTIONS}:
            return conv2d_like(builder, call, args, padding=[top, left, bottom, right])
        function = getattr(relax.op.nn, operator.kind.removeprefix("nn."))
        return function(
            args[0],
            pool_size=[int(k) for k in attrs.pool_size],
            strides=[int(s) for s in attrs.strides],
            # rows that only ``ceil_mode`` adds are no padding, because averages do not count them
            padding=[top, left, min(bottom, most), right],
            dilation=[int(d) for d in attrs.dilation],
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
        )

    def _operand(self, operator: Operator, arg: relax.Expr, rows: Span) -> relax.Expr:
        if isinstance(arg, relax.Var):
            return self.tensor(arg.name, rows)
        if operator.kind in OF_TWO and isinstance(arg, GenericConst):
            return _constant_rows(arg, rows)
        return arg


def _constant_rows(constant: GenericConst, rows: Span) -> relax.Expr:
    """A constant operand; if its rows differ, only ``rows`` of it."""
    shape = shape_of(constant)
    if len(shape) < 2 or shape[-2] == 1:
        return constant
    return relax.const(constant.value.numpy()[..., rows[0] : rows[1], :])
