"""SqueezeNet 1.0 and 1.1 (Iandola et al., 2016), without batch normalisation."""

from __future__ import annotations

from functools import partial

from .builder import Builder, Tensor
from .entry import Entry, image_network

# Squeezed channels of the eight fire modules; each half of a module expands them.
_FIRE = ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))


def _fire(b: Builder, x: Tensor, squeezed: int, expanded: int) -> Tensor:
    s = b.conv(x, squeezed, act="relu")
    return b.concat([b.conv(s, expanded, 1, act="relu"), b.conv(s, expanded, 3, act="relu")])


def _squeezenet(
    b: Builder, x: Tensor, classes: int, *, stem: tuple[int, int], pool_before: tuple[int, ...]
) -> Tensor:
    filters, kernel = stem
    x = b.conv(x, filters, kernel, 2, pad=0, act="relu")
    for index, (squeezed, expanded) in enumerate(_FIRE):
        if index in pool_before:
            x = b.max_pool(x, 3, 2, pad=0, ceil=True)
        x = _fire(b, x, squeezed, expanded)
    x = b.conv(x, classes, act="relu")
    return b.flatten(b.global_pool(x))


NETWORKS: dict[str, Entry] = {
    "squeezenet1_0": image_network(
        partial(_squeezenet, stem=(96, 7), pool_before=(0, 3, 7)),
        params=1.25, macs=0.82, size=224, source="torchvision model table",
    ),
    "squeezenet1_1": image_network(
        partial(_squeezenet, stem=(64, 3), pool_before=(0, 2, 4)),
        params=1.24, macs=0.35, size=224, source="torchvision model table",
    ),
}  # fmt: skip
