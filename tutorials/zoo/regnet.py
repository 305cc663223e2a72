"""RegNetX (Radosavovic et al., "Designing Network Design Spaces", CVPR 2020).

A straight line gives every block its width: ``w_0 + w_a * index``, rounded to ``w_0 * w_m**k`` and
to a multiple of the group width; equal widths in a row form a stage. Parameters are those of pycls.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby

import numpy as np

from .builder import Builder, Tensor
from .entry import Entry, image_network

_BRANCH = 0.5


def stages(w_0: int, w_a: float, w_m: float, depth: int, group: int) -> list[tuple[int, int]]:
    """``(width, blocks)`` of each stage."""
    line = w_0 + w_a * np.arange(depth)
    steps = np.round(np.log(line / w_0) / np.log(w_m))
    widths = np.round(w_0 * w_m**steps / 8) * 8
    widths = np.round(widths / group) * group
    return [(int(width), len(list(run))) for width, run in groupby(widths)]


def _block(b: Builder, x: Tensor, width: int, stride: int, group: int) -> Tensor:
    shortcut = x if x.channels == width and stride == 1 else b.conv_bn(x, width, 1, stride)
    y = b.conv_bn(x, width, act="relu")
    y = b.conv_bn(y, width, 3, stride, groups=width // group, act="relu")
    y = b.conv_bn(y, width, scale=_BRANCH)
    return b.add(y, shortcut, act="relu")


def _regnet(
    b: Builder,
    x: Tensor,
    classes: int,
    *,
    w_0: int,
    w_a: float,
    w_m: float,
    depth: int,
    group: int,
) -> Tensor:
    x = b.conv_bn(x, 32, 3, 2, act="relu")
    for width, blocks in stages(w_0, w_a, w_m, depth, group):
        for index in range(blocks):
            x = _block(b, x, width, 2 if index == 0 else 1, group)
    return b.classifier(x, classes)


# NN-Stretch's table 6 gives 11.2 M and 20.6 M parameters: those of RegNetY-1.6GF and -4.0GF. Its
# figures of multiply-adds and its stages (table 1) are those of RegNetX, as here.
NETWORKS: dict[str, Entry] = {
    "regnetx_1_6gf": image_network(
        partial(_regnet, w_0=80, w_a=34.01, w_m=2.25, depth=18, group=24),
        params=9.2, macs=1.6, size=224, source="pycls model zoo",
    ),
    "regnetx_4gf": image_network(
        partial(_regnet, w_0=96, w_a=38.65, w_m=2.43, depth=23, group=40),
        params=22.1, macs=4.0, size=224, source="pycls model zoo",
    ),
}  # fmt: skip
