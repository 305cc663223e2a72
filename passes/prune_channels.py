"""Removes whole channels of a network, and everything that belongs to them.

    conv(64 -> 64) -> norm -> relu -> conv(64 -> 128)
        ->
    conv(64 -> 48) -> norm -> relu -> conv(48 -> 128)      w1[kept], norm[kept], w2[:, kept]

Channels that a sum joins, or a grouped convolution, go together
(`network/properties/channel_groups.py`). Channels with the smallest weights go: a convolution's
rows count with the scale of its normalisation, and each convolution of a group has the same say. A
multiple of 8 channels is left, which fills vectors on every processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tvm

from tvm_stretch.base.errors import UnsupportedError
from tvm_stretch.network.emitting.again import emitted_again
from tvm_stretch.network.emitting.scale_operators import Scaler, Value
from tvm_stretch.network.emitting.scaled_weights import Array, Origin
from tvm_stretch.network.operators import Operator, Operators
from tvm_stretch.network.properties.channel_groups import ChannelGroup, channel_groups
from tvm_stretch.plan.sources import Source

_MULTIPLE = 8


def prune_channels(mod: tvm.IRModule, share: float) -> tuple[tvm.IRModule, dict[str, Source]]:
    """The network without a share of the channels of each group.

    Args:
        mod: with batch normalisations, as `frontend.load_trainable` returns it.
        share: of the channels; more or fewer go where that leaves a multiple of 8.

    Returns:
        The network, and the channels of ``mod`` from which each of its tensors comes.

    Raises:
        UnsupportedError: no channel can go.
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

    found, sources = emitted_again(mod, emit)
    for number, group in enumerate(kept):
        # `imitate` chooses anew among the channels inside a block, which one layer computes
        if group.is_plain and len(group.makers) == 1 and _is_normalised(operators, *group.makers):
            for name in group.tensors:
                if name in sources:
                    sources[name] = replace(sources[name], tied=f"g{number}", unit=group.unit)
    return found, sources


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
    found = np.square(weight.reshape(len(weight), -1).astype("float64")).sum(1)
    for reader in operators.readers[conv.name]:
        if operators[reader].kind == "nn.batch_norm":
            call = operators[reader].call
            scale, _, _, variance = (arg.value.numpy() for arg in call.args[1:5])
            found = found * np.square(scale) / (variance + float(call.attrs.epsilon))
    return found


def _is_normalised(operators: Operators, conv: str) -> bool:
    """Whether only a normalisation reads a convolution, so that its weights can be fitted anew."""
    return [operators[name].kind for name in operators.readers[conv]] == ["nn.batch_norm"]
