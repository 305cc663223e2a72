"""Emit operators of a network again with other channels, and with the weights of these channels.

    conv = R.nn.conv2d(x, w)      # x: 64 channels, w: (128, 64, 3, 3)
        ->
    conv.b1 = R.nn.conv2d(x.b1, w[48:128, 0:64] / 2)      # x.b1 holds each of x's channels twice

Every value records its origin: for each of its channels the channel of the original tensor, or -1
for a new channel. Weights are rows and columns of the original ones, selected by these origins. If
a channel is read several times, its weights are divided by that number, so that sums stay the same.
Weights of new channels are random, after He, from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.convolutions import conv2d_like
from tvm_stretch.network.emitting.weights import Array, Origin, Weights, cut, times
from tvm_stretch.network.expressions import constant, with_variables
from tvm_stretch.network.operators import BINARY, SCALED, Operator, Operators
from tvm_stretch.network.rewriting import Bindings, with_body
from tvm_stretch.plan.design import Source


@dataclass(frozen=True)
class Value:
    """A tensor of the new network."""

    var: relax.Var  # variable that holds the tensor
    origin: Origin  # of its channels, which are axis 1

    @property
    def channels(self) -> int:
        """Size of axis 1; for a tensor with grouped channels the number of all channels."""
        return len(self.origin)


def window(total: int, size: int, index: int, count: int, unit: int = 1) -> Origin:
    """The channels from which branch ``index`` of ``count`` starts; -1 beyond ``total``.

    First and last branch hold the first and the last channels, so that every channel is in a
    branch.

    >>> window(8, 6, 1, 2)
    array([2, 3, 4, 5, 6, 7])
    """
    spare = max(0, total - size)
    begin = spare * index // max(1, count - 1) // unit * unit if count > 1 else 0
    indices = np.arange(begin, begin + size)
    return np.where(indices < total, indices, -1)


class _Emitter(Bindings):
    """Binds the names in ``results`` to variables that the function may return."""

    def __init__(self, results: Sequence[str]) -> None:
        super().__init__()
        self._results = frozenset(results)

    def emit(self, name: str, value: relax.Expr) -> relax.Var:
        """Bind ``value`` to a new variable with exactly this name."""
        return self.bind_new(name, value, relax.Var if name in self._results else relax.DataflowVar)


Reads: TypeAlias = Sequence[Value]
Channels: TypeAlias = "Origin | None"
Made: TypeAlias = tuple[relax.Expr, Origin]


@dataclass
class Scaler:
    """Emits replacements for a network's operators into one list of bindings."""

    operators: Operators  # of the original network
    weights: Weights  # makes weights for other channels
    emitter: _Emitter = field(init=False)
    # origin of every tensor that was emitted
    sources: dict[str, Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.emitter = _Emitter(self.operators.outputs)
        norms = [op for op in self.operators if op.kind == "nn.batch_norm"]
        self.norm: relax.Call | None = norms[0].call if norms else None

    def unchanged(self, name: str) -> Value:
        """A tensor of the original network."""
        return Value(self.operators.variables[name], np.arange(self.channels(name)))

    def channels(self, name: str) -> int:
        """Channels of a tensor of the original network."""
        shape = self.operators.shape(name)
        return shape[1] if len(shape) > 1 else 0

    def again(
        self,
        operator: Operator,  # of the original network
        values: Mapping[str, Value],  # replacements of the tensors that it reads
        name: str,  # of the result
        # of the result's channels, unless the operator determines them; without it a convolution
        # computes all original channels
        origin: Origin | None = None,
    ) -> Value:
        """Emit an operator.

        Raises:
            UnsupportedError: the operator does not work with other channels.
        """
        value = self._again(operator, values, name, origin)
        self.sources[name] = Source(operator.name, value.origin)
        return value

    def _again(
        self, operator: Operator, values: Mapping[str, Value], name: str, origin: Origin | None
    ) -> Value:
        reads = [values[n] for n in operator.inputs]
        if operator.kind in SCALED:
            scaled, channels = SCALED[operator.kind](self, operator, reads, origin)
        elif all(self.is_as_before(n, values[n]) for n in operator.inputs):
            scaled, channels = self.as_it_was(operator, reads)
        elif len(operator.shape) not in (2, 4) or not reads:
            raise _cannot_scale(operator)
        else:
            scaled, channels = _elementwise(operator, values, reads)
        return Value(self.emitter.emit(name, scaled), channels)

    def conv_norm(self, source: Value, tensor: str, origin: Origin, name: str) -> Value:
        """A new 1x1 convolution and batch normalisation, without activation.

        With warm weights it passes channels on: each of its channels is the mean of the input
        channels that have its origin.

        Args:
            source: its input.
            tensor: of the original network; the result stands for some of its channels.
            origin: these channels.
            name: of the convolution.
        """
        identity = np.eye(self.channels(tensor), dtype="float32")[:, :, None, None]
        weight = self.weights.selected(identity, origin, source.origin)
        if self.weights.warm and not weight.any():
            weight = self.weights.random(weight.shape)
        conv = relax.op.nn.conv2d(source.var, constant(weight))
        value = Value(self.emitter.emit(name, conv), origin)
        made = Source(tensor, origin, is_new=True)
        self.sources[name] = self.sources[f"{name}.norm"] = made
        if self.norm is None:
            return value
        size = len(origin)
        ones, zeros = np.ones(size, "float32"), np.zeros(size, "float32")
        args = [value.var, *(constant(a) for a in (ones, zeros, zeros, ones))]
        call = relax.Call(self.norm.op, args, self.norm.attrs)
        whole = self.emitter.emit(f"{name}.statistics", call)
        return Value(self.emitter.emit(f"{name}.norm", relax.TupleGetItem(whole, 0)), origin)

    def join(self, values: Sequence[Value], name: str, origin: Origin) -> Value:
        """Concatenate tensors along their channels."""
        call = relax.op.concat([value.var for value in values], axis=1)
        self.sources[name] = Source(name, origin)
        return Value(self.emitter.emit(name, call), origin)

    def as_it_was(self, operator: Operator, reads: Sequence[Value]) -> Made:
        """An operator whose operands are unchanged."""
        values = {name: value.var for name, value in zip(operator.inputs, reads, strict=True)}
        again = with_variables(operator.binding.value, lambda var: values[var.name])
        return again, np.arange(self.channels(operator.name))

    def is_as_before(self, name: str, value: Value) -> bool:
        """Whether a value has exactly the channels of the original tensor."""
        shape = self.operators.shape(name)
        return len(shape) < 2 or (
            value.channels == shape[1] and bool((value.origin == np.arange(shape[1])).all())
        )


@SCALED("nn.conv2d")
def _conv2d(s: Scaler, conv: Operator, reads: Reads, origin: Channels) -> Made:
    (data,) = reads
    weight = _constant(conv, 1)
    if conv.groups == 1:
        result = np.arange(weight.shape[0]) if origin is None else origin
        scaled, groups = s.weights.selected(weight, result, data.origin), 1
    else:
        result = data.origin
        groups, rest = divmod(data.channels * conv.groups, conv.shape[1])
        if conv.shape[1] != conv.arg_shapes[0][1] or rest:
            raise _cannot_scale(conv)
        columns = np.arange(weight.shape[1])
        scaled = s.weights.selected(weight, result, columns)
    return conv2d_like(
        s.emitter.builder, conv.call, [data.var, constant(scaled)], groups=groups
    ), result


@SCALED("nn.batch_norm")
def _batch_norm(s: Scaler, norm: Operator, reads: Reads, _: Channels) -> Made:
    (data,) = reads
    defaults = (1.0, 0.0, 0.0, 1.0)
    args = [
        constant(s.weights.per_channel(_constant(norm, i + 1), data.origin, default))
        for i, default in enumerate(defaults)
    ]
    return relax.Call(norm.call.op, [data.var, *args], norm.call.attrs), data.origin


@SCALED("TupleGetItem")
def _item(s: Scaler, item: Operator, reads: Reads, _: Channels) -> Made:
    (whole,) = reads
    index, source = int(item.binding.value.index), s.operators[item.inputs[0]]
    field = relax.TupleGetItem(whole.var, index)
    if source.kind != "split":
        return field, whole.origin
    sizes = [int(f.shape.values[1]) for f in source.call.ty.fields]
    ends = np.cumsum([0, *(int(f.shape.values[1]) for f in whole.var.ty.fields)])
    own = whole.origin[ends[index] : ends[index + 1]] - sum(sizes[:index])
    return field, np.where((own >= 0) & (own < sizes[index]), own, -1)


@SCALED("split")
def _split(s: Scaler, split: Operator, reads: Reads, _: Channels) -> Made:
    (data,) = reads
    sizes = [int(f.shape.values[1]) for f in split.call.ty.fields]
    cuts = [round(data.channels * c / sum(sizes)) for c in np.cumsum(sizes)[:-1]]
    return relax.op.split(data.var, [int(c) for c in cuts], axis=1), data.origin


@SCALED("concat")
def _concat(s: Scaler, concat: Operator, reads: Reads, _: Channels) -> Made:
    if int(concat.call.attrs.axis) not in (1, 1 - len(concat.shape)):
        raise _cannot_scale(concat)
    starts = np.cumsum([0, *(s.operators.shape(n)[1] for n in concat.inputs)])
    pieces = zip(reads, starts, strict=False)
    origin = [np.where(v.origin < 0, -1, v.origin + begin) for v, begin in pieces]
    return relax.op.concat([v.var for v in reads], axis=1), np.concatenate(origin)


@SCALED("reshape")
def _reshape(s: Scaler, reshape: Operator, reads: Reads, _: Channels) -> Made:
    (data,) = reads
    before, after = s.operators.shape(reshape.inputs[0]), reshape.shape
    shape, origin = list(after), data.origin
    if len(after) == 5:  # channels in groups
        shape[2] = data.channels // after[1]
    elif len(after) == 4 and len(before) in (2, 5):
        shape[1] = data.channels // (after[2] * after[3] if len(before) == 2 else 1)
    elif len(before) == 4 and len(after) == 2 and before[0] == after[0]:
        pixels = before[2] * before[3]
        shape[1] = data.channels * pixels
        spread = data.origin[:, None] * pixels + np.arange(pixels)
        origin = np.where(data.origin[:, None] < 0, -1, spread).reshape(-1)
    elif not s.is_as_before(reshape.inputs[0], data):
        raise _cannot_scale(reshape)
    else:
        origin = np.arange(after[1] if len(after) > 1 else 0)
    return relax.op.reshape(data.var, shape), origin


@SCALED("permute_dims")
def _permute_dims(s: Scaler, permute: Operator, reads: Reads, _: Channels) -> Made:
    (data,) = reads
    if len(permute.shape) != 5:
        if not s.is_as_before(permute.inputs[0], data):
            raise _cannot_scale(permute)
        return s.as_it_was(permute, reads)
    rows, columns = s.operators.shape(permute.inputs[0])[1:3]
    now = int(data.var.ty.shape.values[1])
    moved = data.origin.reshape(now, -1).T.reshape(-1)
    origin = np.where(moved < 0, -1, moved % columns * rows + moved // columns)
    return relax.Call(permute.call.op, [data.var], permute.call.attrs), origin


@SCALED("matmul")
def _matmul(s: Scaler, matmul: Operator, reads: Reads, _: Channels) -> Made:
    data = reads[0]
    if len(reads) != 1 or not isinstance(matmul.call.args[1], GenericConst):
        raise _cannot_scale(matmul)
    weight = _constant(matmul, 1)  # (inputs, outputs)
    if len(matmul.arg_shapes[0]) != 2 or weight.ndim != 2:
        return _matmul_of_others(s, matmul, data, weight)
    origin, shape = data.origin, (data.channels, weight.shape[1])
    if not s.weights.warm:
        scaled = s.weights.random(shape[::-1]).T
    elif s.is_as_before(matmul.inputs[0], data):
        scaled = weight
    else:
        scaled = weight[origin] / times(origin, weight.shape[0])[:, None]
        scaled[origin < 0] = 0
    return relax.op.matmul(data.var, constant(scaled.astype(weight.dtype, copy=False))), np.arange(
        shape[1]
    )


def _matmul_of_others(s: Scaler, matmul: Operator, data: Value, weight: Array) -> Made:
    """A product that sums over another axis than channels, which must then be unchanged."""
    if not s.is_as_before(matmul.inputs[0], data):
        raise _cannot_scale(matmul)
    if not s.weights.warm:
        turned = np.swapaxes(weight, 0, -1)  # outputs first
        weight = np.swapaxes(s.weights.random(turned.shape), 0, -1).astype(weight.dtype)
    return relax.op.matmul(data.var, constant(weight)), np.arange(s.channels(matmul.name))


def _elementwise(operator: Operator, values: Mapping[str, Value], reads: Reads) -> Made:
    """An operator that keeps channels apart; its constants per channel are cut likewise."""
    origin = reads[0].origin
    if len({v.channels for v in reads if v.channels > 1}) > 1:
        raise _cannot_scale(operator)

    def operand(arg: relax.Expr) -> relax.Expr:
        if isinstance(arg, relax.Var):
            return values[arg.name].var
        if isinstance(arg, GenericConst) and operator.kind in BINARY:
            return cut(arg, origin, len(operator.shape))
        return arg

    call = operator.call
    return relax.Call(call.op, [*map(operand, call.args)], call.attrs, call.ty_args), origin


def _constant(operator: Operator, index: int) -> Array:
    arg = operator.call.args[index]
    if not isinstance(arg, GenericConst):
        raise _cannot_scale(operator)
    return np.asarray(arg.value.numpy())


def _cannot_scale(operator: Operator) -> UnsupportedError:
    return UnsupportedError(
        f"expected operators whose channels can be scaled, got {operator.name!r} "
        f"({operator.kind}), which reads a tensor that is stretched; stretch other segments"
    )


Emit = Callable[[Scaler, Operator, Mapping[str, Value]], Value]


def emitted_again(mod: tvm.IRModule, emit: Emit) -> tuple[tvm.IRModule, dict[str, Source]]:
    """The network whose operators ``emit`` writes, and the channels from which tensors come."""
    main = mod["main"]
    operators = Operators(main)
    scaler = Scaler(operators, Weights(warm=True, rng=np.random.default_rng(0)))
    values = {name: scaler.unchanged(name) for name in operators.params}
    for operator in operators:
        values[operator.name] = emit(scaler, operator, values)
    block = relax.DataflowBlock(scaler.emitter.bindings)
    result = with_variables(main.body.body, lambda var: values[var.name].var)
    return with_body(mod, relax.SeqExpr([block], result)), scaler.sources
