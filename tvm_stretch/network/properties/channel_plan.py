"""Decide which branch computes which channels when a segment is split by channels.

    tensor            held as
    x                 ONCE    one tensor that every branch may read
    conv   (1x1)      COPY    every branch computes all of it
    conv1  (3x3)      PART    each branch computes some channels: it has some of the filters
    conv2  (1x1)      SUM     each branch computes a summand: it has some of the input channels
    conv2 + bias, x   SUM     added by the first branch only
    relu of the sum   ONCE    the branches meet: summands are added, parts are concatenated

Counted from the segment's end, the last dense convolution reads parts and computes summands, and
the one before it computes parts. Every branch repeats the convolutions before these, or they are
split and followed by a meeting, as `ChannelSplit.first` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import InputError, UnsupportedError
from tvm_stretch.network.operators import (
    BINARY,
    CONVOLUTIONS,
    OF_ONE,
    OF_TWO,
    Operator,
    Operators,
    operands,
    remember,
)
from tvm_stretch.network.properties.branch_spans import Span, closed_segment, share
from tvm_stretch.plan.splits import ChannelSplit


class Form(Enum):
    """How branches hold a tensor; see the module docstring."""

    ONCE = "once"
    COPY = "copy"
    PART = "part"
    SUM = "sum"


@dataclass(frozen=True)
class Held:
    """How branches hold one tensor; for parts, with the channels of each branch."""

    form: Form
    spans: tuple[Span, ...] = ()


_ONCE, _COPY, _SUM = Held(Form.ONCE), Held(Form.COPY), Held(Form.SUM)


@dataclass(frozen=True)
class ChannelStep:
    """What the branches do for one operator of the segment."""

    operator: str  # its name
    # operands that are joined before it, with the form in which branches held them
    joins: tuple[tuple[str, Held], ...]
    result: Held  # how branches hold its result
    reads: Mapping[str, Held]  # how branches hold each operand when the operator runs
    # the input channels of each branch, for convolutions that read only some of them
    channels: tuple[Span, ...] = ()


def plan_channel_split(operators: Operators, split: ChannelSplit) -> tuple[ChannelStep, ...]:
    """The operators of the segment in program order, with the form of each result."""
    if split.block < 1 or split.first not in ("repeat", "split"):
        raise InputError(
            "expected a positive number for block and 'repeat' or 'split' for first, got "
            f"{split.block!r} and {split.first!r}"
        )
    members = closed_segment(operators, split.start, split.end)
    walk = _Walk(split, members)
    steps = [walk.step(member) for member in members]
    last = walk.held[split.end]
    meets = last.form in (Form.PART, Form.SUM) or any(step.joins for step in steps)
    if last.form is Form.COPY or not meets:
        raise UnsupportedError(
            f"expected convolutions whose channels can be shared out for segment {split.start!r} "
            f"-> {split.end!r}, got none; choose another segment or split rows"
        )
    return tuple(steps)


class _Walk:
    """Decides on forms of tensors, in program order of a segment."""

    def __init__(self, split: ChannelSplit, members: Sequence[Operator]) -> None:
        self.split = split
        self.levels = _levels(members)
        convs = [member for member in members if member.kind in CONVOLUTIONS]
        # Whether parts reach the last dense convolution, which then computes summands.
        self.ends_in_sums = any(self.levels.get(conv.name, 0) for conv in convs)
        widths = [_group_width(conv) for conv in convs if not _is_dense(conv)]
        self.unit = math.lcm(split.block, *widths)
        self.held: dict[str, Held] = {}
        self.channels: tuple[Span, ...] = ()

    def step(self, operator: Operator) -> ChannelStep:
        """Decide on one operator; if its operands have to be joined first, the step lists them."""
        joins: dict[str, Held] = {}
        while True:
            reads = {name: self.held.get(name, _ONCE) for name in operator.inputs}
            self.channels = ()
            result = self._result(operator, reads)
            if isinstance(result, Held):
                break
            for name in result:
                joins[name] = self.held[name]
                self.held[name] = _ONCE
        self.held[operator.name] = result
        return ChannelStep(operator.name, tuple(joins.items()), result, reads, self.channels)

    def _result(self, operator: Operator, reads: Mapping[str, Held]) -> Held | list[str]:
        """The form of the result, or the operands that must be joined first."""
        if operator.kind in CONVOLUTIONS:
            return self._conv2d(operator, operator.inputs[0], reads)
        sums = [name for name, held in reads.items() if held.form is Form.SUM]
        parts = [name for name, held in reads.items() if held.form is Form.PART]
        if sums:
            return _SUM if _keeps_sums(operator, reads) else sums
        if parts:
            spans = {reads[name].spans for name in parts}
            return Held(Form.PART, spans.pop()) if _keeps_parts(operator, spans) else parts
        return _COPY if any(held.form is Form.COPY for held in reads.values()) else _ONCE

    def _conv2d(self, conv: Operator, data: str, reads: Mapping[str, Held]) -> Held | list[str]:
        held = reads[data]
        apart = held.form in (Form.PART, Form.SUM)
        plain = _is_plain(conv)
        if held.form is Form.SUM or (apart and not plain):
            return [data]
        if not plain:
            return held
        level = self.levels.get(conv.name, 0)
        if level > 1 and not apart and self.split.first == "repeat":
            return _COPY
        if not _is_dense(conv):
            return self._grouped(conv, held)
        if level != 1 if apart else level == 0 and self.ends_in_sums:
            self.channels = held.spans if apart else self._share(conv.arg_shapes[0][1])
            return _SUM
        if apart:
            return [data]
        return Held(Form.PART, self._share(conv.shape[1]))

    def _grouped(self, conv: Operator, held: Held) -> Held:
        """Divide the groups among branches: input and output channels together."""
        width = _group_width(conv)
        inputs = conv.arg_shapes[0][1]
        self.channels = held.spans if held.form is Form.PART else self._share(inputs)
        filters = conv.shape[1] * width // inputs  # of one group
        spans = ((a // width * filters, b // width * filters) for a, b in self.channels)
        return Held(Form.PART, tuple(spans))

    def _share(self, channels: int) -> tuple[Span, ...]:
        return share(channels, self.split.ratios, self.unit)


@remember  # a search asks many times
def _is_plain(conv: Operator) -> bool:
    """Whether the weights are a constant whose first axes are output and input channels."""
    if not isinstance(operands(conv.call)[1], GenericConst):
        return False
    attrs = conv.call.attrs
    plain = ("NCHW", "OIHW")
    return conv.kind != "nn.conv2d" or (str(attrs.data_layout), str(attrs.kernel_layout)) == plain


def _is_dense(operator: Operator) -> bool:
    return operator.kind in CONVOLUTIONS and operator.groups == 1


def _group_width(conv: Operator) -> int:
    """Input channels of one group."""
    return conv.arg_shapes[0][1] // conv.groups


def _levels(members: Sequence[Operator]) -> dict[str, int]:
    """How many dense convolutions follow each tensor on the longest path.

    Paths through a global mean (squeeze-excite) do not count. A concatenation counts as one more
    convolution, because its operands should be parts.
    """
    levels = {members[-1].name: 0}
    for operator in reversed(members):
        if operator.name not in levels or operator.kind in _MEANS:
            continue
        level = levels[operator.name] + _is_dense(operator)
        if operator.kind == "concat":
            level = max(level, 1)
        for name in operator.inputs:
            levels[name] = max(level, levels.get(name, 0))
    return levels


def _keeps_sums(operator: Operator, reads: Mapping[str, Held]) -> bool:
    """Whether the operator may work on summands: only one branch adds the other operand."""
    args = operator.call.args if operator.kind in BINARY else ()
    same_shape = all(
        shape == operator.shape
        for arg, shape in zip(args, operator.arg_shapes, strict=False)
        if isinstance(arg, relax.Var)
    )
    constants = sum(isinstance(arg, GenericConst) for arg in args)
    if operator.kind == "multiply":
        return constants == 1
    no_parts = all(held.form is not Form.PART for held in reads.values())
    exact = str(operator.call.ty.dtype).startswith("float")  # integer operators round their sums
    return operator.kind == "add" and same_shape and no_parts and exact


_BY_CHANNELS = {
    *("integer.average", "integer.mean", "nn.avg_pool2d", "nn.max_pool2d"),
    *(*OF_ONE, *OF_TWO),
}
_MEANS = {"mean", "integer.mean"}


def _keeps_parts(operator: Operator, spans: Iterable[tuple[Span, ...]]) -> bool:
    """Whether each channel of the result needs only the same channel of the operands."""
    shared = list(spans)
    if len(operator.shape) != 4 or len(shared) != 1 or operator.shape[1] != shared[0][-1][1]:
        return False
    attrs = operator.call.attrs
    if operator.kind == "mean":
        return attrs.axis is not None and [int(axis) for axis in attrs.axis] == [2, 3]
    if operator.kind.endswith("pool2d") and str(attrs.layout) != "NCHW":
        return False
    return operator.kind in _BY_CHANNELS
