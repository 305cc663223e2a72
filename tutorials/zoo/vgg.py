"""VGG-16 (Simonyan and Zisserman, ICLR 2015), configuration D, without batch normalisation."""

from __future__ import annotations

from .builder import Builder, Tensor
from .entry import Entry, image_network


def _vgg16(b: Builder, x: Tensor, classes: int) -> Tensor:
    for channels, convs in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convs):
            x = b.conv(x, channels, 3, act="relu")
        x = b.max_pool(x, 2, 2, pad=0)
    x = b.flatten(x)
    x = b.dense(x, 4096, act="relu")
    x = b.dense(x, 4096, act="relu")
    return b.dense(x, classes)


NETWORKS: dict[str, Entry] = {
    "vgg16": image_network(
        _vgg16, params=138.36, macs=15.47, size=224, source="torchvision model table"
    ),
}
