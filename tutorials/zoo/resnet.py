"""ResNet (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016).

Bottlenecks stride in their 3x3 convolution, as in torchvision and pycls ("v1.5").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .builder import Builder, Tensor
from .entry import Entry, image_network

# Residual branches are half as large as the trunk, so that its variance grows slowly.
_BRANCH = 0.5

Block = Callable[[Builder, Tensor, int, int], Tensor]


def _basic(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    y = b.conv_bn(x, width, 3, stride, act="relu")
    y = b.conv_bn(y, width, 3, scale=_BRANCH)
    return b.add(y, _shortcut(b, x, width, stride), act="relu")


def _bottleneck(b: Builder, x: Tensor, width: int, stride: int) -> Tensor:
    y = b.conv_bn(x, width, act="relu")
    y = b.conv_bn(y, width, 3, stride, act="relu")
    y = b.conv_bn(y, 4 * width, scale=_BRANCH)
    return b.add(y, _shortcut(b, x, 4 * width, stride), act="relu")


def _shortcut(b: Builder, x: Tensor, channels: int, stride: int) -> Tensor:
    if stride == 1 and x.channels == channels:
        return x
    return b.conv_bn(x, channels, 1, stride)


def _resnet(
    b: Builder, x: Tensor, classes: int, *, block: Block, depths: tuple[int, ...]
) -> Tensor:
    x = b.conv_bn(x, 64, 7, 2, act="relu")
    x = b.max_pool(x, 3, 2)
    for stage, depth in enumerate(depths):
        for index in range(depth):
            x = block(b, x, 64 << stage, 2 if stage > 0 and index == 0 else 1)
    return b.classifier(x, classes)


def _small_resnet(b: Builder, x: Tensor, classes: int, *, depth: int) -> Tensor:
    """For small images: three stages of basic blocks, no pool before them."""
    x = b.conv_bn(x, 16, 3, act="relu")
    for stage in range(3):
        for index in range(depth):
            x = _basic(b, x, 16 << stage, 2 if stage > 0 and index == 0 else 1)
    return b.classifier(x, classes)


# Figures for 34 and 50: NN-Stretch, table 6, whose 3.7 G for ResNet-34 is pycls's rounding up of
# 3.67; 18: torchvision.
NETWORKS: dict[str, Entry] = {
    "resnet18": image_network(
        partial(_resnet, block=_basic, depths=(2, 2, 2, 2)),
        params=11.69, macs=1.82, size=224, source="torchvision model table",
    ),
    "resnet34": image_network(
        partial(_resnet, block=_basic, depths=(3, 4, 6, 3)),
        params=21.8, macs=3.7, size=224, source="NN-Stretch, table 6",
    ),
    "resnet50": image_network(
        partial(_resnet, block=_bottleneck, depths=(3, 4, 6, 3)),
        params=25.6, macs=4.1, size=224, source="NN-Stretch, table 6",
    ),
    # NN-Stretch's table 3 has it with CIFAR-100 at 96x96.
    "resnet56": image_network(
        partial(_small_resnet, depth=9),
        params=0.85, macs=0.126, size=32, classes=10, source="Deep Residual Learning, table 6",
    ),
}  # fmt: skip
