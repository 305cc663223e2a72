"""Shared by both kinds of exact branching: bands, results, and putting branches into `main`.

conv = R.nn.conv2d(x, w)           x.r0.0to9 = R.strided_slice(x, ..)
y = R.nn.relu(conv)          ->    conv.r0 = R.nn.conv2d(x.r0.0to9, w, ..)
z = R.exp(y)                       ..
y = R.concat((y.r0, y.r1), axis=2)
z = R.exp(y)

Shares of channels are filters of one convolution, and input channels of the next:

    h = R.nn.relu(R.nn.conv2d(x, v))       # h: (1, 64, 56, 56)
    y = R.add(R.nn.conv2d(h, w), b)
        ->
    h.c0 = R.nn.relu(R.nn.conv2d(x, v[:40]))           h.c1 = R.nn.relu(R.nn.conv2d(x, v[40:]))
    y.c0 = R.add(R.nn.conv2d(h.c0, w[:, :40]), b)      conv1.c1 = R.nn.conv2d(h.c1, w[:, 40:])
    y = R.add(y.c0, conv1.c1)

Only the first branch adds bias and residual. channel_plan.py decides what the branches hold of each
tensor and where they meet. Sums are added in another order than before, so the result is equal up
to rounding; sums of integers are exact and are rounded where the branches meet:

    y = R.call_tir(integer_round, (y.c0, y.c1, factor))    # y.c0, y.c1: sums in int32
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import InputError
from tvm_stretch.network.convolutions import (
    conv2d_like,
    operator_like,
    rounded_sum,
    summand_of,
    weights_of,
)
from tvm_stretch.network.expressions import constant, shape_of
from tvm_stretch.network.integers import integer_of
from tvm_stretch.network.operators import CONVOLUTIONS, OF_TWO, Operator, Operators, operands
from tvm_stretch.network.properties.branch_spans import Span
from tvm_stretch.network.properties.channel_plan import ChannelStep, Form, Held, plan_channel_split
from tvm_stretch.network.provenance import free_name
from tvm_stretch.network.rewriting import Bindings, with_body
from tvm_stretch.plan.splits import ChannelSplit


class Emitter(Bindings):
    """Collects the bindings that replace a segment.

    Args:
        builder: receives the kernels of integer operators.
        origins: of each new variable, by its name, the tensor of the network that it is a part of.
        taken: names that are no longer free.
    """

    def __init__(
        self, builder: relax.BlockBuilder, origins: dict[str, str], taken: set[str]
    ) -> None:
        super().__init__(builder)
        self.origins, self.taken = origins, taken

    def emit(self, name: str, value: relax.Expr, of: str) -> relax.Var:
        """Bind ``value`` to a new variable with this name, numbered if the name is taken."""
        name = free_name(name, self.taken)
        self.origins[name] = of
        return self.bind_new(name, value)

    def emit_as(self, var: relax.Var, value: relax.Expr) -> relax.Var:
        """Bind ``value`` to a variable of the network, so that its readers need no change."""
        value = self.builder.normalize(value)
        tvm.ir.assert_structural_equal(value.ty, var.ty)
        return self.bind(var, value)


@dataclass(frozen=True, eq=False)
class Replacement:
    """A branched segment that is not yet part of the network."""

    end: str  # the last operator of the segment; the bindings are inserted in its place
    removed: frozenset[str]  # names of the segment's operators
    bindings: tuple[relax.Binding, ...]  # replace the removed operators
    # for each branch the names of its operators, in program order
    branches: tuple[tuple[str, ...], ...]
    # names of the segment's operators that run once, in program order: those that join the
    # branches, and those that follow until the segment's end
    joins: tuple[str, ...]
    origins: Mapping[str, str]  # for each new operator, the operator that it is a part of or joins


def replace_segments(
    mod: tvm.IRModule, segments: Sequence[Replacement], builder: relax.BlockBuilder
) -> tvm.IRModule:
    """Put branched segments into `main`, each in the place of its last operator."""
    removed: set[str] = set()
    for segment in segments:
        twice = removed & segment.removed
        if twice:
            raise InputError(
                f"expected segments that share no operator, got {min(twice)!r} in two; "
                "split a segment once"
            )
        removed |= segment.removed
    added = {segment.end: segment.bindings for segment in segments}
    main = mod["main"]
    blocks = []
    for block in main.body.blocks:
        kept: list[relax.Binding] = []
        for binding in block.bindings:
            name = binding.var.name
            kept += added.get(name, () if name in removed else (binding,))
        blocks.append(type(block)(kept))
    return with_body(mod, relax.SeqExpr(blocks, main.body.body), builder)


def channel_branches(
    operators: Operators, split: ChannelSplit, builder: relax.BlockBuilder, taken: set[str]
) -> Replacement:
    """The bindings of the branches (see the module docstring)."""
    steps = plan_channel_split(operators, split)
    segment = _Segment(operators, split.end, len(split.ratios), Emitter(builder, {}, taken))
    for step in steps:
        for tensor, held in step.joins:
            segment.join(tensor, held)
        segment.compute(operators[step.operator], step)
    last = steps[-1]
    if last.result.form is not Form.ONCE:
        segment.join(split.end, last.result)
    return Replacement(
        end=split.end,
        removed=frozenset(step.operator for step in steps),
        bindings=tuple(segment.emitter.bindings),
        branches=tuple(tuple(names) for names in segment.names),
        joins=tuple(segment.once),
        origins=segment.emitter.origins,
    )


class _Segment:
    """Emits the operators of all branches.

    Branches are emitted one after the other up to a meeting, so that each is a region of its own.
    """

    def __init__(self, operators: Operators, end: str, branches: int, emitter: Emitter) -> None:
        self.builder = emitter.builder
        self.emitter = emitter
        self.operators = operators
        self.end = end
        self.pending = [
            Emitter(emitter.builder, emitter.origins, emitter.taken) for _ in range(branches)
        ]
        self.names: list[list[str]] = [[] for _ in range(branches)]
        self.once: list[str] = []
        self.values: dict[str, list[relax.Var]] = {}  # by tensor, the variable of each branch
        self.slices: dict[tuple[str, int, Span], relax.Var] = {}

    def join(self, tensor: str, held: Held) -> None:
        """Join the branches in the network's own variable."""
        parts = self.values.pop(tensor)
        self._flush()
        if held.form is Form.PART:
            value = relax.op.concat(parts, axis=1)
        elif _is_rounded(self.operators[tensor].call):
            value = rounded_sum(self.builder, self.operators[tensor].call, parts)
        else:
            for index, summand in enumerate(parts[1:-1], start=1):
                added = relax.op.add(parts[0], summand)
                parts[0] = self.emitter.emit(f"{tensor}.sum{index}", added, tensor)
                self.once.append(parts[0].name)
            value = relax.op.add(parts[0], parts[-1])
        self.emitter.emit_as(self.operators.variables[tensor], value)
        self.once.append(tensor)

    def compute(self, operator: Operator, step: ChannelStep) -> None:
        """Emit one operator, once or in each branch."""
        if step.result.form is Form.ONCE:
            self._flush()
            self.emitter.bindings.append(operator.binding)
            self.once.append(operator.name)
            return
        self.values[operator.name] = [
            self._in_branch(index, operator, step) for index in range(len(self.pending))
        ]

    def _flush(self) -> None:
        for names, pending in zip(self.names, self.pending, strict=True):
            names += [binding.var.name for binding in pending.bindings]
            self.emitter.bindings += pending.bindings
            pending.bindings.clear()

    def _in_branch(self, index: int, operator: Operator, step: ChannelStep) -> relax.Var:
        if operator.kind in CONVOLUTIONS:
            value = self._conv2d(index, operator, step)
        elif operator.kind == "add" and step.result.form is Form.SUM:
            summands = self._summands(index, operator, step)
            if len(summands) == 1:
                return summands[0]
            value = relax.op.add(*summands)
        elif operator.kind == "concat":
            fields = [self._whole(index, field.name) for field in operator.call.args[0].fields]
            value = relax.op.concat(fields, axis=int(operator.call.attrs.axis))
        else:
            args = [self._operand(index, operator, step, arg) for arg in operands(operator.call)]
            value = operator_like(self.builder, operator.call, args)
        return self.pending[index].emit(f"{operator.name}.c{index}", value, operator.name)

    def _summands(self, index: int, operator: Operator, step: ChannelStep) -> list[relax.Expr]:
        """Operands of an addition in one branch; the first branch also adds full tensors."""
        summands = []
        for arg in operator.call.args:
            is_summand = isinstance(arg, relax.Var) and step.reads[arg.name].form is Form.SUM
            if is_summand:
                summands.append(self.values[arg.name][index])
            elif index == 0:
                is_variable = isinstance(arg, relax.Var)
                summands.append(self._whole(index, arg.name) if is_variable else arg)
        return summands

    def _conv2d(self, index: int, conv: Operator, step: ChannelStep) -> relax.Expr:
        call, data, groups = conv.call, conv.inputs[0], conv.groups
        inputs = outputs = slice(None)
        if step.channels:
            begin, end = step.channels[index]
            operand = self._channels(index, data, step.reads[data], (begin, end))
            if groups == 1:
                inputs = slice(begin, end)
            else:
                groups = groups * (end - begin) // conv.arg_shapes[0][1]
        else:
            operand = self._whole(index, data)
        if step.result.form is Form.SUM and conv.kind == "integer.conv2d":
            return summand_of(self.builder, call, operand, inputs, first=index == 0)
        if step.result.form is Form.PART:
            outputs = slice(*step.result.spans[index])
        weights = weights_of(call, outputs, inputs)
        return conv2d_like(self.builder, call, [operand, *weights], groups=groups)

    def _operand(
        self, index: int, operator: Operator, step: ChannelStep, arg: relax.Expr
    ) -> relax.Expr:
        """An operand of a pointwise operator, a pool or a mean."""
        spans = step.result.spans
        if isinstance(arg, relax.Var):
            held = step.reads[arg.name]
            if not spans or self.operators.shape(arg.name)[1] == 1:
                return self._whole(index, arg.name)
            return self._channels(index, arg.name, held, spans[index])
        if spans and operator.kind in OF_TWO and isinstance(arg, GenericConst):
            shape = shape_of(arg)
            if len(shape) > 2 and shape[-3] > 1:
                begin, end = spans[index]
                return constant(arg.value.numpy()[..., begin:end, :, :])
        return arg

    def _whole(self, index: int, tensor: str) -> relax.Var:
        """Everything that a branch holds of a tensor."""
        if tensor in self.values:
            return self.values[tensor][index]
        return self.operators.variables[tensor]

    def _channels(self, index: int, tensor: str, held: Held, span: Span) -> relax.Var:
        """Some channels of a tensor: the branch's own part or a slice."""
        if held.form is Form.PART:
            return self.values[tensor][index]
        key = (tensor, index, span)
        if key not in self.slices:
            begin, end = span
            cut = relax.op.strided_slice(self._whole(index, tensor), [1], [begin], [end])
            # named after the segment, because another segment may read these channels too
            label = f"{self.end}.c{index}.{tensor}.{begin}to{end}"
            self.slices[key] = self.pending[index].emit(label, cut, tensor)
        return self.slices[key]


def _is_rounded(call: relax.Call) -> bool:
    """Whether a convolution of integers rounds its sums; summands are not rounded."""
    integer = integer_of(call)
    return integer is not None and integer.rounding is not None
