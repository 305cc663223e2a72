"""EfficientNet (Tan and Le, ICML 2019) and its Lite variants (TensorFlow TPU repository, 2020).

Lite: no squeeze-excite, ReLU6 in place of swish, stem and head not scaled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from .builder import Builder, Pad, Tensor
from .entry import Entry, image_network

_BRANCH = 0.5

# expansion, kernel, stride, channels, blocks of EfficientNet-B0.
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


@dataclass(frozen=True)
class _Style:
    """The differences between EfficientNet and EfficientNet-Lite."""

    act: str
    pad: Pad
    squeeze: bool
    scale_ends: bool


# The Lite networks come from TensorFlow ("same" padding), B5 from pycls (symmetric padding).
_LITE = _Style("relu6", "same", squeeze=False, scale_ends=False)
_FULL = _Style("swish", None, squeeze=True, scale_ends=True)


def round_channels(channels: float, divisor: int = 8) -> int:
    """Round to a multiple of ``divisor``, but never down by more than a tenth."""
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded


def _mb_conv(
    b: Builder, x: Tensor, channels: int, kernel: int, stride: int, expand: int, style: _Style
) -> Tensor:
    hidden = x.channels * expand
    y = b.conv_bn(x, hidden, act=style.act) if expand != 1 else x
    y = b.conv_bn(y, hidden, kernel, stride, pad=style.pad, groups=hidden, act=style.act)
    if style.squeeze:
        y = b.squeeze_excite(y, max(1, x.channels // 4), "swish", "sigmoid")
    residual = stride == 1 and x.channels == channels
    y = b.conv_bn(y, channels, scale=_BRANCH if residual else 1.0)
    return b.add(y, x) if residual else y


def _efficientnet(
    b: Builder, x: Tensor, classes: int, *, width: float, depth: float, style: _Style
) -> Tensor:
    ends = width if style.scale_ends else 1.0
    x = b.conv_bn(x, round_channels(32 * ends), 3, 2, pad=style.pad, act=style.act)
    for stage, (expand, kernel, stride, channels, blocks) in enumerate(_STAGES):
        # Lite does not scale the depth of the first and the last stage either.
        fixed = not style.scale_ends and stage in (0, len(_STAGES) - 1)
        repeats = blocks if fixed else math.ceil(blocks * depth)
        for index in range(repeats):
            step = stride if index == 0 else 1
            x = _mb_conv(b, x, round_channels(channels * width), kernel, step, expand, style)
    x = b.conv_bn(x, round_channels(1280 * ends), act=style.act)
    return b.classifier(x, classes)


def b5_without_squeeze(b: Builder, x: Tensor, classes: int) -> Tensor:
    """EfficientNet-B5 as NN-Stretch deployed it (section 7.2): without squeeze-and-excitation."""
    style = replace(_FULL, squeeze=False)
    return _efficientnet(b, x, classes, width=1.6, depth=2.2, style=style)


# The Lite README's 407 M (and 2.64 G for Lite4) count elementwise operators too; Lite0 has the
# convolutions of B0, whose squeeze-excite adds less than 1 %.
NETWORKS: dict[str, Entry] = {
    "efficientnet_lite0": image_network(
        partial(_efficientnet, width=1.0, depth=1.0, style=_LITE),
        params=4.7, macs=0.39, size=224, source="EfficientNet-Lite README; macs: EfficientNet-B0",
    ),
    "efficientnet_lite4": image_network(
        partial(_efficientnet, width=1.4, depth=1.8, style=_LITE),
        params=13.0, macs=2.6, size=300, source="NN-Stretch, table 6",
    ),
    "efficientnet_b5": image_network(
        partial(_efficientnet, width=1.6, depth=2.2, style=_FULL),
        params=30.4, macs=10.3, size=456, source="NN-Stretch, table 6",
    ),
}  # fmt: skip
