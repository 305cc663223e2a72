"""ShuffleNetV2 at width 1.0 (Ma et al., "Practical Guidelines for Efficient CNN Design", 2018).

Half of the channels pass a unit unchanged, or, at a stage's beginning, both halves are computed
from all of them; then channels of both mix.
"""

from __future__ import annotations

from .builder import Builder, Tensor
from .entry import Entry, image_network

_STAGES = ((116, 4), (232, 8), (464, 4))
"""Channels and units."""


def unit(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    """A unit; one with a stride begins a stage, and any other keeps the width."""
    half = width // 2
    if stride == 1:
        left, right = b.halves(x)
    else:
        left = b.conv_bn(x, x.channels, 3, stride, groups=x.channels)
        left, right = b.conv_bn(left, half, act="relu"), x
    y = b.conv_bn(right, half, act="relu")
    y = b.conv_bn(y, half, 3, stride, groups=half)
    y = b.conv_bn(y, half, act="relu")
    return b.shuffle(b.concat([left, y]), 2)


def _shufflenet_v2(b: Builder, x: Tensor, classes: int) -> Tensor:
    x = b.conv_bn(x, 24, 3, 2, act="relu")
    x = b.max_pool(x, 3, 2)
    for width, units in _STAGES:
        for index in range(units):
            x = unit(b, x, width, 1 if index else 2)
    x = b.conv_bn(x, 1024, act="relu")
    return b.classifier(x, classes)


NETWORKS: dict[str, Entry] = {
    "shufflenet_v2": image_network(
        _shufflenet_v2, params=2.3, macs=0.146, size=224, source="ShuffleNetV2, tables 5 and 8"
    ),
}
