"""YOLOv2 (Redmon and Farhadi, "YOLO9000", CVPR 2017) as Darknet's yolov2.cfg for COCO.

Output: the last feature map, ``[batch, 5 * (5 + classes), size / 32, size / 32]``: for each of five
anchors x, y, width, height, objectness and classes, before any sigmoid or softmax.
"""

from __future__ import annotations

from .builder import Builder, Tensor
from .entry import Entry, image_network

_ANCHORS = 5


def _conv(b: Builder, x: Tensor, filters: int, kernel: int) -> Tensor:
    return b.conv_bn(x, filters, kernel, act="leaky")


def _squeezed(b: Builder, x: Tensor, filters: int, convs: int) -> Tensor:
    """3x3 convolutions with 1x1 convolutions to half as many channels between them."""
    for index in range(convs):
        x = _conv(b, x, filters // 2, 1) if index % 2 else _conv(b, x, filters, 3)
    return x


def _yolov2(b: Builder, x: Tensor, classes: int) -> Tensor:
    for filters, convs in ((32, 1), (64, 1), (128, 3), (256, 3)):
        x = b.max_pool(_squeezed(b, x, filters, convs), 2, 2, pad=0)
    fine = _squeezed(b, x, 512, 5)
    x = _squeezed(b, b.max_pool(fine, 2, 2, pad=0), 1024, 5)
    x = _conv(b, _conv(b, x, 1024, 3), 1024, 3)
    passthrough = b.space_to_depth(_conv(b, fine, 64, 1), 2)
    x = _conv(b, b.concat([passthrough, x]), 1024, 3)
    return b.conv(x, _ANCHORS * (5 + classes))


# Darknet's page gives 62.94 G operations at 608; two per multiply-add, scaled to the paper's 416.
# Parameters: yolov2.weights holds 50.98 M numbers, 0.02 M of them BN statistics.
NETWORKS: dict[str, Entry] = {
    "yolov2": image_network(
        _yolov2, params=50.96, macs=14.73, size=416, classes=80, source="Darknet: yolov2.weights"
    ),
}
