"""Removes whole channels of a network, and everything that belongs to them.

    conv(64 -> 64) -> norm -> relu -> conv(64 -> 128)
        ->
    conv(64 -> 48) -> norm -> relu -> conv(48 -> 128)      w1[kept], norm[kept], w2[:, kept]

Channels with the smallest weights go: a convolution's
rows count with the scale of its normalisation, and each convolution of a group has the same say. A
multiple of 8 channels is left, which fills vectors on every processor.

Channels that a sum joins, or a grouped convolution, go together:

    conv1 -> norm -> relu -> conv2 -> norm --.
       `----------- conv3 (shortcut) ---> + -> relu     conv2, conv3 and the sum have one group

A convolution computes new channels, elementwise operators, normalisations and pooling keep those
that they read, and a sum has the channels of both summands. The channels of a grouped convolution
stay with its input's, whole groups at a time. A group is fixed if one of its tensors is an input or
a result of the network, or is read by an operator that this file does not know.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm.ir import GenericConst

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.emitting.scale_operators import Scaler, Value, emitted_again
from tvm_stretch.network.emitting.weights import Array, Origin
from tvm_stretch.network.operators import POINTWISE, Operator, Operators
from tvm_stretch.plan.design import Source

_KEEPING = POINTWISE | {
    "clip",
    "image.resize2d",
    "nn.adaptive_avg_pool2d",
    "nn.avg_pool2d",
    "nn.max_pool2d",
}


@dataclass(frozen=True)
class ChannelGroup:
    """A group that is not fixed."""

    tensors: tuple[str, ...]  # the tensors with these channels
    channels: int
    unit: int  # the number of neighbouring channels that stay together
    makers: tuple[str, ...]  # the convolutions that compute them
    is_plain: bool  # whether all tensors are images, and none becomes a part of another tensor


def channel_groups(operators: Operators) -> list[ChannelGroup]:
    """The groups of a network with batch normalisations, in the order of their first tensors."""
    return list(_Groups(operators).groups())


class _Groups:
    """Joins tensors; see the module docstring."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators
        self.above: dict[str, str] = {}
        self.fixed: set[str] = {*operators.params, *operators.outputs}
        self.units: dict[str, int] = defaultdict(lambda: 1)
        # the tensors that each concat reads; its channels follow from theirs
        self.parts: dict[str, list[str]] = {}
        for operator in operators:
            self._add(operator)
        while self._fix_parts():
            pass

    def groups(self) -> Iterator[ChannelGroup]:
        members: dict[str, list[str]] = defaultdict(list)
        for name in self.above:
            members[self._root(name)].append(name)
        parts = {read for reads in self.parts.values() for read in reads}
        for names in members.values():
            group = {*names}
            makers = [n for n in names if n in self.operators and self._makes(self.operators[n])]
            if group & self.fixed or group & {*self.parts} or not makers:
                continue
            channels = self.operators.shape(makers[0])[1]
            unit = math.lcm(*(self.units[name] for name in names))
            if channels % unit:
                continue
            flat = any(self._rank(name) == 2 for name in names)
            is_plain = not (flat or group & parts)
            yield ChannelGroup(tuple(names), channels, unit, tuple(makers), is_plain)

    def _fix_parts(self) -> bool:
        """Fix what a concat reads whose own channels are fixed, or are another tensor's, too."""
        fixed = {self._root(name) for name in self.fixed}
        others = [op.name for op in self.operators if self._makes(op)]
        owners = Counter(self._root(name) for name in (*self.parts, *others))
        before = len(self.fixed)
        for name, reads in self.parts.items():
            if self._root(name) in fixed or owners[self._root(name)] > 1:
                self.fixed.update((name, *reads))
        return len(self.fixed) > before

    def _add(self, operator: Operator) -> None:
        name, reads = operator.name, [n for n in operator.inputs if self._rank(n) in (2, 4)]
        if operator.kind == "nn.batch_norm":
            self._join(name, *reads)
        elif operator.kind == "TupleGetItem":
            source = operator.inputs[0]
            is_norm = self.operators[source].kind == "nn.batch_norm"
            self._join(name, source) if is_norm else self._fix(name, source)
        elif operator.kind == "nn.conv2d" and isinstance(operator.call.args[1], GenericConst):
            self._add_conv(operator)
        elif operator.kind == "concat" and self._is_along_channels(operator):
            self.parts[name] = reads
            self._join(name)
            for read in reads:
                self._join(read)
        elif operator.kind == "matmul" and self._is_dense(operator):
            self._join(reads[0])
            self._fix(name)
        elif self._keeps(operator, reads):
            width = self.operators.shape(name)[1]
            same = [n for n in reads if self.operators.shape(n)[1] == width]
            self._join(name, *same)
            self._fix(*(n for n in reads if n not in same))
        else:
            self._fix(name, *operator.inputs)

    def _add_conv(self, conv: Operator) -> None:
        source = conv.inputs[0]
        self._join(conv.name)
        self._join(source)
        if conv.groups == 1:
            return
        if conv.shape[1] != self.operators.shape(source)[1]:
            self._fix(conv.name, source)
            return
        self._join(conv.name, source)
        unit = conv.shape[1] // conv.groups
        self.units[conv.name] = unit

    def _keeps(self, operator: Operator, reads: list[str]) -> bool:
        """Whether an operator keeps the channels that it reads apart."""
        if not reads or len(reads) < len(operator.inputs) or len(operator.shape) not in (2, 4):
            return False
        before, after = self.operators.shape(reads[0]), operator.shape
        if operator.kind == "reshape":
            return len(before) == 4 and after == (*before[:2], *after[2:]) and before[2:] == (1, 1)
        if operator.kind == "mean":
            return len(before) == 4 and after[:2] == before[:2] and sum(after[2:]) <= 2
        return operator.kind in _KEEPING and len(before) == len(after)

    def _is_along_channels(self, concat: Operator) -> bool:
        return len(concat.shape) == 4 and int(concat.call.attrs.axis) in (1, -3)

    def _is_dense(self, matmul: Operator) -> bool:
        weight = matmul.call.args[1]
        return len(matmul.shape) == 2 and isinstance(weight, GenericConst) and bool(matmul.inputs)

    def _makes(self, operator: Operator) -> bool:
        return operator.kind == "nn.conv2d" and operator.groups == 1

    def _rank(self, name: str) -> int:
        """The number of dimensions of a tensor; those of a normalisation's result for its tuple."""
        kind = self.operators[name].kind if name in self.operators else ""
        if kind == "nn.batch_norm":
            return self._rank(self.operators[name].inputs[0])
        if kind == "split":
            return 0
        return len(self.operators.shape(name))

    def _fix(self, *names: str) -> None:
        self.fixed.update(names)
        for name in names:
            self._join(name)

    def _join(self, first: str, *others: str) -> None:
        self.above.setdefault(first, first)
        for other in others:
            self.above.setdefault(other, other)
            self.above[self._root(other)] = self._root(first)

    def _root(self, name: str) -> str:
        while self.above[name] != name:
            name = self.above[name]
        return name


_MULTIPLE = 8


def prune_channels(
    mod: tvm.IRModule,  # with batch normalisations, as `frontend.load_trainable` returns it
    share: float,  # of the channels; more or fewer go where that leaves a multiple of 8
) -> tuple[tvm.IRModule, dict[str, Source]]:
    """The network without a share of the channels of each group.

    Returns:
        The network, and the channels of ``mod`` from which each of its tensors comes.
    """
    operators = Operators(mod["main"])
    groups = channel_groups(operators)
    kept = {group: _kept(operators, group, share) for group in groups}
    kept = {group: origin for group, origin in kept.items() if len(origin) < group.channels}
    if not kept:
        raise UnsupportedError(
            "expected a network with channels that can be removed, got none; prune networks of "
            "convolutions before they are quantised"
        )
    origins = {maker: origin for group, origin in kept.items() for maker in group.makers}

    def emit(scaler: Scaler, operator: Operator, values: Mapping[str, Value]) -> Value:
        return scaler.again(operator, values, operator.name, origins.get(operator.name))

    rewritten, sources = emitted_again(mod, emit)
    for number, group in enumerate(kept):
        # `imitate` chooses anew among the channels inside a block, which one layer computes
        if group.is_plain and len(group.makers) == 1 and _is_normalised(operators, *group.makers):
            for name in group.tensors:
                if name in sources:
                    sources[name] = replace(sources[name], tied=f"g{number}", unit=group.unit)
    return rewritten, sources


@tvm.transform.module_pass(opt_level=0, name="PruneChannels")
class PruneChannels:
    """`prune_channels` as a pass, for a network that can be trained."""

    def __init__(self, share: float) -> None:
        self.share = share

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return prune_channels(mod, self.share)[0]


def _kept(operators: Operators, group: ChannelGroup, share: float) -> Origin:
    """The channels that stay."""
    scores = np.zeros(group.channels)
    for maker in group.makers:
        rows = _norms(operators, operators[maker])
        scores += rows / max(rows.mean(), 1e-30)
    units = scores.reshape(-1, group.unit).sum(1)
    multiple = _MULTIPLE // np.gcd(_MULTIPLE, group.unit)
    count = (1 - share) * len(units)
    if len(units) >= 2 * multiple:
        count = max(multiple, multiple * round(count / multiple))
    best = np.sort(np.argsort(-units, kind="stable")[: max(1, round(count))])
    return (best[:, None] * group.unit + np.arange(group.unit)).reshape(-1)


def _norms(operators: Operators, conv: Operator) -> Array:
    """The squared norm of each row of a convolution, with the scale of its normalisation."""
    weight = conv.call.args[1].value.numpy()
    norms = np.square(weight.reshape(len(weight), -1).astype("float64")).sum(1)
    for reader in operators.readers[conv.name]:
        if operators[reader].kind == "nn.batch_norm":
            call = operators[reader].call
            scale, _, _, variance = (arg.value.numpy() for arg in call.args[1:5])
            norms = norms * np.square(scale) / (variance + float(call.attrs.epsilon))
    return norms


def _is_normalised(operators: Operators, conv: str) -> bool:
    """Whether only a normalisation reads a convolution, so that its weights can be fitted anew."""
    return [operators[name].kind for name in operators.readers[conv]] == ["nn.batch_norm"]
