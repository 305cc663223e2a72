"""MobileNetV1 (2017), V2 (2018) and V3 (2019), width 1.0, by Howard, Sandler et al.

Padding is TensorFlow's ("same"), where these networks come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from .builder import Builder, Tensor
from .entry import Entry, image_network

_BRANCH = 0.5


def features(
    b: Builder,
    x: Tensor,
    width: float = 1.0,
    act: str = "relu6",
    wanted: Sequence[int] = (),
) -> list[Tensor]:
    """The feature maps of MobileNetV1 after these of its 13 blocks.

    Args:
        width: of the network, as in the paper.
        act: the activation, also of networks that are built on it.
    """
    x = b.conv_bn(x, int(32 * width), 3, 2, pad="same", act=act)
    channels = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
    found = []
    for number, (before, after) in enumerate(zip((32, *channels), channels, strict=False), 1):
        stride = 2 if after > before > 32 else 1
        x = b.conv_bn(x, x.channels, 3, stride, pad="same", groups=x.channels, act=act)
        x = b.conv_bn(x, int(after * width), act=act)
        found += [x] if number in wanted else []
    return found


def _mobilenet_v1(b: Builder, x: Tensor, classes: int) -> Tensor:
    return b.classifier(features(b, x, wanted=(13,))[0], classes)


def _mobilenet_v2(b: Builder, x: Tensor, classes: int) -> Tensor:
    x = b.conv_bn(x, 32, 3, 2, pad="same", act="relu6")
    # expansion, channels, blocks, stride
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expand, channels, blocks, stride in stages:
        for index in range(blocks):
            step = stride if index == 0 else 1
            x = _inverted(b, x, channels, 3, step, x.channels * expand, "relu6")
    x = b.conv_bn(x, 1280, act="relu6")
    return b.classifier(x, classes)


def _inverted(
    b: Builder,
    x: Tensor,
    channels: int,
    kernel: int,
    stride: int,
    hidden: int,
    act: str,
    squeezed: int = 0,
) -> Tensor:
    """Inverted residual: expand, depthwise, optionally squeeze-excite, project."""
    y = b.conv_bn(x, hidden, act=act) if hidden != x.channels else x
    y = b.conv_bn(y, hidden, kernel, stride, pad="same", groups=hidden, act=act)
    if squeezed:
        y = b.squeeze_excite(y, squeezed, "relu", "hard_sigmoid")
    residual = stride == 1 and x.channels == channels
    y = b.conv_bn(y, channels, scale=_BRANCH if residual else 1.0)
    return b.add(y, x) if residual else y


# kernel, hidden, channels, squeezed (0: none), activation, stride: tables 1 and 2 of the paper.
_LARGE = (
    (3, 16, 16, 0, "relu", 1),
    (3, 64, 24, 0, "relu", 2),
    (3, 72, 24, 0, "relu", 1),
    (5, 72, 40, 24, "relu", 2),
    (5, 120, 40, 32, "relu", 1),
    (5, 120, 40, 32, "relu", 1),
    (3, 240, 80, 0, "hard_swish", 2),
    (3, 200, 80, 0, "hard_swish", 1),
    (3, 184, 80, 0, "hard_swish", 1),
    (3, 184, 80, 0, "hard_swish", 1),
    (3, 480, 112, 120, "hard_swish", 1),
    (3, 672, 112, 168, "hard_swish", 1),
    (5, 672, 160, 168, "hard_swish", 2),
    (5, 960, 160, 240, "hard_swish", 1),
    (5, 960, 160, 240, "hard_swish", 1),
)
_SMALL = (
    (3, 16, 16, 8, "relu", 2),
    (3, 72, 24, 0, "relu", 2),
    (3, 88, 24, 0, "relu", 1),
    (5, 96, 40, 24, "hard_swish", 2),
    (5, 240, 40, 64, "hard_swish", 1),
    (5, 240, 40, 64, "hard_swish", 1),
    (5, 120, 48, 32, "hard_swish", 1),
    (5, 144, 48, 40, "hard_swish", 1),
    (5, 288, 96, 72, "hard_swish", 2),
    (5, 576, 96, 144, "hard_swish", 1),
    (5, 576, 96, 144, "hard_swish", 1),
)


def _mobilenet_v3(
    b: Builder,
    x: Tensor,
    classes: int,
    *,
    blocks: tuple[tuple[int, int, int, int, str, int], ...],
    last: int,
    features: int,
) -> Tensor:
    x = b.conv_bn(x, 16, 3, 2, pad="same", act="hard_swish")
    for kernel, hidden, channels, squeezed, act, stride in blocks:
        x = _inverted(b, x, channels, kernel, stride, hidden, act, squeezed)
    x = b.conv_bn(x, last, act="hard_swish")
    x = b.dense(b.flatten(b.global_pool(x)), features, act="hard_swish")
    return b.dense(x, classes)


NETWORKS: dict[str, Entry] = {
    "mobilenet_v1": image_network(
        _mobilenet_v1, params=4.2, macs=0.569, size=224, source="MobileNets, table 8"
    ),
    # The paper's table 4 says 3.4 M, TF-slim's own table 3.47 M for the same network.
    "mobilenet_v2": image_network(
        _mobilenet_v2, params=3.47, macs=0.3, size=224, source="TF-slim MobileNet README"
    ),
    "mobilenet_v3_large": image_network(
        partial(_mobilenet_v3, blocks=_LARGE, last=960, features=1280),
        params=5.4, macs=0.219, size=224, source="MobileNetV3, table 3",
    ),
    "mobilenet_v3_small": image_network(
        partial(_mobilenet_v3, blocks=_SMALL, last=576, features=1024),
        params=2.5, macs=0.056, size=224, source="MobileNetV3, table 3",
    ),
}  # fmt: skip
