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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.convolutions import conv2d_like
from tvm_stretch.network.emitting.scaled_weights import Array, Origin, Weights, cut, times
from tvm_stretch.network.expressions import constant, with_variables
from tvm_stretch.network.operators import BINARY, Operator, Operators
from tvm_stretch.plan.sources import Source


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
    found = np.arange(begin, begin + size)
    return np.where(found < total, found, -1)


class _Emitter:
    """Binds the names in ``results`` to variables that the function may return."""

    def __init__(self, results: Sequence[str]) -> None:
        self.bindings: list[relax.Binding] = []
        self.builder = relax.BlockBuilder()
        self._results = frozenset(results)

    def emit(self, name: str, value: relax.Expr) -> relax.Var:
        """Bind ``value`` to a new variable with exactly this name."""
        value = self.builder.normalize(value)
        kind = relax.Var if name in self._results else relax.DataflowVar
        var = kind(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var


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
        return Value(self.operators.variables[name], np.arange(self._channels(name)))

    def _channels(self, name: str) -> int:
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
        found = self._again(operator, values, name, origin)
        self.sources[name] = Source(operator.name, found.origin)
        return found

    def _again(
        self, operator: Operator, values: Mapping[str, Value], name: str, origin: Origin | None
    ) -> Value:
        reads = [values[n] for n in operator.inputs]
        emit = getattr(self, f"_emit_{operator.kind.replace('.', '_').lower()}", None)
        if emit is not None:
            return emit(operator, reads, name, origin)
        changed = [n for n in operator.inputs if not self.is_as_before(n, values[n])]
        if not changed:
            return self._as_it_was(operator, values, name)
        if len(operator.shape) not in (2, 4) or not reads:
            raise _cannot_scale(operator)
        return self._elementwise(operator, values, reads, name)

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
        identity = np.eye(self._channels(tensor), dtype="float32")[:, :, None, None]
        weight = self.weights.selected(identity, origin, source.origin)
        if self.weights.warm and not weight.any():
            weight = self.weights.random(weight.shape)
        conv = relax.op.nn.conv2d(source.var, constant(weight))
        found = Value(self.emitter.emit(name, conv), origin)
        made = Source(tensor, origin, is_new=True)
        self.sources[name] = self.sources[f"{name}.norm"] = made
        if self.norm is None:
            return found
        size = len(origin)
        ones, zeros = np.ones(size, "float32"), np.zeros(size, "float32")
        args = [found.var, *(constant(a) for a in (ones, zeros, zeros, ones))]
        call = relax.Call(self.norm.op, args, self.norm.attrs)
        whole = self.emitter.emit(f"{name}.statistics", call)
        return Value(self.emitter.emit(f"{name}.norm", relax.TupleGetItem(whole, 0)), origin)

    # --- operators ---

    def _emit_nn_conv2d(
        self, conv: Operator, reads: Sequence[Value], name: str, origin: Origin | None
    ) -> Value:
        (data,) = reads
        weight = self._constant(conv, 1)
        if conv.groups == 1:
            result = np.arange(weight.shape[0]) if origin is None else origin
            scaled, groups = self.weights.selected(weight, result, data.origin), 1
        else:
            result = data.origin
            groups, rest = divmod(data.channels * conv.groups, conv.shape[1])
            if conv.shape[1] != conv.arg_shapes[0][1] or rest:
                raise _cannot_scale(conv)
            columns = np.arange(weight.shape[1])
            scaled = self.weights.selected(weight, result, columns)
        call = conv2d_like(
            self.emitter.builder, conv.call, [data.var, constant(scaled)], groups=groups
        )
        return Value(self.emitter.emit(name, call), result)

    def _emit_nn_batch_norm(
        self, norm: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        (data,) = reads
        defaults = (1.0, 0.0, 0.0, 1.0)
        args = [
            constant(self.weights.per_channel(self._constant(norm, i + 1), data.origin, default))
            for i, default in enumerate(defaults)
        ]
        call = relax.Call(norm.call.op, [data.var, *args], norm.call.attrs)
        return Value(self.emitter.emit(name, call), data.origin)

    def _emit_tuplegetitem(
        self, item: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        (whole,) = reads
        index, source = int(item.binding.value.index), self.operators[item.inputs[0]]
        var = self.emitter.emit(name, relax.TupleGetItem(whole.var, index))
        if source.kind != "split":
            return Value(var, whole.origin)
        sizes = [int(f.shape.values[1]) for f in source.call.ty.fields]
        before = sum(sizes[:index])
        begin = sum(int(f.shape.values[1]) for f in whole.var.ty.fields[:index])
        own = whole.origin[begin : begin + int(var.ty.shape.values[1])] - before
        return Value(var, np.where((own >= 0) & (own < sizes[index]), own, -1))

    def _emit_split(
        self, split: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        (data,) = reads
        sizes = [int(f.shape.values[1]) for f in split.call.ty.fields]
        cuts = [round(data.channels * c / sum(sizes)) for c in np.cumsum(sizes)[:-1]]
        call = relax.op.split(data.var, [int(c) for c in cuts], axis=1)
        return Value(self.emitter.emit(name, call), data.origin)

    def _emit_concat(
        self, concat: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        if int(concat.call.attrs.axis) not in (1, 1 - len(concat.shape)):
            raise _cannot_scale(concat)
        starts = np.cumsum([0, *(self.operators.shape(n)[1] for n in concat.inputs)])
        pieces = zip(reads, starts, strict=False)
        origin = [np.where(v.origin < 0, -1, v.origin + begin) for v, begin in pieces]
        return self.join(reads, name, np.concatenate(origin))

    def join(self, values: Sequence[Value], name: str, origin: Origin) -> Value:
        """Concatenate tensors along their channels."""
        call = relax.op.concat([value.var for value in values], axis=1)
        self.sources[name] = Source(name, origin)
        return Value(self.emitter.emit(name, call), origin)

    def _emit_reshape(
        self, reshape: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        (data,) = reads
        before, after = self.operators.shape(reshape.inputs[0]), reshape.shape
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
        elif not self.is_as_before(reshape.inputs[0], data):
            raise _cannot_scale(reshape)
        else:
            origin = np.arange(after[1] if len(after) > 1 else 0)
        call = relax.op.reshape(data.var, shape)
        return Value(self.emitter.emit(name, call), origin)

    def _emit_permute_dims(
        self, permute: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        (data,) = reads
        if len(permute.shape) != 5:
            if not self.is_as_before(permute.inputs[0], data):
                raise _cannot_scale(permute)
            return self._as_it_was(permute, {permute.inputs[0]: data}, name)
        rows, columns = self.operators.shape(permute.inputs[0])[1:3]
        now = int(data.var.ty.shape.values[1])
        moved = data.origin.reshape(now, -1).T.reshape(-1)
        origin = np.where(moved < 0, -1, moved % columns * rows + moved // columns)
        call = relax.Call(permute.call.op, [data.var], permute.call.attrs)
        return Value(self.emitter.emit(name, call), origin)

    def _emit_matmul(
        self, matmul: Operator, reads: Sequence[Value], name: str, _: Origin | None
    ) -> Value:
        data = reads[0]
        if len(reads) != 1 or not isinstance(matmul.call.args[1], GenericConst):
            raise _cannot_scale(matmul)
        weight = self._constant(matmul, 1)  # (inputs, outputs)
        if len(matmul.arg_shapes[0]) != 2 or weight.ndim != 2:
            return self._matmul_of_others(matmul, data, weight, name)
        origin, shape = data.origin, (data.channels, weight.shape[1])
        if not self.weights.warm:
            scaled = self.weights.random(shape[::-1]).T
        elif self.is_as_before(matmul.inputs[0], data):
            scaled = weight
        else:
            scaled = weight[origin] / times(origin, weight.shape[0])[:, None]
            scaled[origin < 0] = 0
        call = relax.op.matmul(data.var, constant(scaled.astype(weight.dtype, copy=False)))
        return Value(self.emitter.emit(name, call), np.arange(shape[1]))

    def _matmul_of_others(self, matmul: Operator, data: Value, weight: Array, name: str) -> Value:
        """A product that sums over another axis than channels, which must then be unchanged."""
        if not self.is_as_before(matmul.inputs[0], data):
            raise _cannot_scale(matmul)
        if not self.weights.warm:
            turned = np.swapaxes(weight, 0, -1)  # outputs first
            weight = np.swapaxes(self.weights.random(turned.shape), 0, -1).astype(weight.dtype)
        call = relax.op.matmul(data.var, constant(weight))
        return Value(self.emitter.emit(name, call), np.arange(self._channels(matmul.name)))

    def _elementwise(
        self,
        operator: Operator,
        values: Mapping[str, Value],
        reads: Sequence[Value],
        name: str,
    ) -> Value:
        """An operator that keeps channels apart; its constants per channel are cut likewise."""
        origin = reads[0].origin
        widths = {v.channels for v in reads if v.channels > 1}
        if len(widths) > 1:
            raise _cannot_scale(operator)

        def operand(arg: relax.Expr) -> relax.Expr:
            if isinstance(arg, relax.Var):
                return values[arg.name].var
            if isinstance(arg, GenericConst) and operator.kind in BINARY:
                return cut(arg, origin, len(operator.shape))
            return arg

        call = operator.call
        args = [operand(arg) for arg in call.args]
        again = relax.Call(call.op, args, call.attrs, call.ty_args)
        return Value(self.emitter.emit(name, again), origin)

    def _as_it_was(self, operator: Operator, values: Mapping[str, Value], name: str) -> Value:
        """An operator whose operands are unchanged."""
        again = with_variables(operator.binding.value, lambda var: values[var.name].var)
        return Value(self.emitter.emit(name, again), np.arange(self._channels(operator.name)))

    def is_as_before(self, name: str, value: Value) -> bool:
        """Whether a value has exactly the channels of the original tensor."""
        shape = self.operators.shape(name)
        return len(shape) < 2 or (
            value.channels == shape[1] and bool((value.origin == np.arange(shape[1])).all())
        )

    def _constant(self, operator: Operator, index: int) -> Array:
        arg = operator.call.args[index]
        if not isinstance(arg, GenericConst):
            raise _cannot_scale(operator)
        return np.asarray(arg.value.numpy())


def _cannot_scale(operator: Operator) -> UnsupportedError:
    return UnsupportedError(
        f"expected operators whose channels can be scaled, got {operator.name!r} "
        f"({operator.kind}), which reads a tensor that is stretched; stretch other segments"
    )
