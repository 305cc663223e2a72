"""Networks that answer with maps: PoseNet, Fast Style Transfer, RetinaFace.

* PoseNet (Papandreou et al. 2018) as TensorFlow Lite's multi-person model: MobileNetV1 without its
  classifier, and 1x1 convolutions to 17 heatmaps, 34 offsets and twice 32 displacements.
* Fast Style Transfer (Johnson et al. 2016) as PyTorch's example: instance norms, reflected borders,
  five residual blocks, and convolutions after enlarged maps.
* RetinaFace (Deng et al. 2020) on MobileNetV1 of a quarter's width, as its PyTorch version: a
  pyramid of three maps, a context module on each, and for two anchors a pixel 2 scores, 4 numbers
  of a box and 10 of landmarks. Output: all anchors, ``[batch, anchors, 16]``.
"""

from __future__ import annotations

import numpy as np

from .builder import Builder, Tensor
from .entry import Entry, image_network
from .mobilenet import features

_POSE_HEADS = (17, 34, 32, 32)


def _posenet(b: Builder, x: Tensor, classes: int) -> Tensor:
    (x,) = features(b, x, wanted=(13,))
    return b.concat([b.conv(x, channels) for channels in (classes, *_POSE_HEADS[1:])])


# --- Fast Style Transfer --------------------------------------------------------------------------


def _reflected(b: Builder, x: Tensor, filters: int, kernel: int, stride: int = 1) -> Tensor:
    """A convolution whose borders mirror the image."""
    edge = kernel // 2
    pads = b.constant(f"reflect.{edge}", np.array([0, 0, edge, edge] * 2, np.int64))
    out = b.node("Pad", [x.name, pads], mode="reflect")[0]
    sample = np.pad(x.probe, ((0, 0), (0, 0), (edge, edge), (edge, edge)), mode="reflect")
    rows, columns = (extent + 2 * edge for extent in x.shape[2:])
    padded = Tensor(out, (*x.shape[:2], rows, columns), sample)
    return b.conv(padded, filters, kernel, stride, pad=0)


def _instance_norm(b: Builder, x: Tensor, act: str | None = "relu") -> Tensor:
    name = x.name.replace(".out", ".norm")
    scale, offset = np.ones(x.channels, np.float32) + b.offsets(x.channels), b.offsets(x.channels)
    inputs = [x.name, b.constant(f"{name}.scale", scale), b.constant(f"{name}.offset", offset)]
    out = b.node("InstanceNormalization", inputs, epsilon=1e-5)[0]
    mean = x.probe.mean(axis=(2, 3), keepdims=True)
    spread = np.sqrt(x.probe.var(axis=(2, 3), keepdims=True) + 1e-5)
    sample = (x.probe - mean) / spread * scale[:, None, None] + offset[:, None, None]
    return b.act(Tensor(out, x.shape, sample), act)


def _enlarged(b: Builder, x: Tensor, like: Tensor | None = None) -> Tensor:
    """Each pixel becomes four; or as many as another map has."""
    sizes = [2 * extent for extent in x.shape[2:]] if like is None else list(like.shape[2:])
    shape = (*x.shape[:2], *sizes)
    wanted = b.constant("x".join(map(str, shape)), np.array(shape, np.int64))
    out = b.node(
        "Resize",
        [x.name, "", "", wanted],
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )[0]
    sample = x.probe.repeat(2, axis=2).repeat(2, axis=3)
    return Tensor(out, shape, sample)


def _style_transfer(b: Builder, x: Tensor, classes: int) -> Tensor:
    for filters, kernel, stride in ((32, 9, 1), (64, 3, 2), (128, 3, 2)):
        x = _instance_norm(b, _reflected(b, x, filters, kernel, stride))
    for _ in range(5):
        y = _instance_norm(b, _reflected(b, x, 128, 3))
        x = b.add(_instance_norm(b, _reflected(b, y, 128, 3), act=None), x)
    for filters in (64, 32):
        x = _instance_norm(b, _reflected(b, _enlarged(b, x), filters, 3))
    return _reflected(b, x, classes, 9)


# --- RetinaFace -----------------------------------------------------------------------------------

_WIDTH, _ANCHORS = 64, 2


def _context(b: Builder, x: Tensor) -> Tensor:
    """Windows of 3, 5 and 7 pixels as chains of 3x3 convolutions, beside each other."""
    small = b.conv_bn(x, _WIDTH // 2, 3)
    first = b.conv_bn(x, _WIDTH // 4, 3, act="leaky")
    middle = b.conv_bn(first, _WIDTH // 4, 3)
    large = b.conv_bn(b.conv_bn(first, _WIDTH // 4, 3, act="leaky"), _WIDTH // 4, 3)
    return b.act(b.concat([small, middle, large]), "relu")


def _rows(b: Builder, x: Tensor, width: int) -> Tensor:
    """A row for each anchor of each pixel."""
    count = int(np.prod(x.shape[1:])) // width
    shape = (x.shape[0], count, width)
    moved = b.node("Transpose", [x.name], perm=[0, 2, 3, 1])[0]
    wanted = b.constant("x".join(map(str, shape)), np.array(shape, np.int64))
    out = b.node("Reshape", [moved, wanted])[0]
    return Tensor(out, shape, x.probe.transpose(0, 2, 3, 1).reshape(1, -1, width))


def _retinaface(b: Builder, x: Tensor, classes: int) -> Tensor:
    maps = [b.conv_bn(m, _WIDTH, act="leaky") for m in features(b, x, 0.25, "leaky", (5, 11, 13))]
    for index in (1, 0):
        both = b.add(maps[index], _enlarged(b, maps[index + 1], maps[index]))
        maps[index] = b.conv_bn(both, _WIDTH, 3, act="leaky")
    found = [_context(b, m) for m in maps]
    widths = (classes, 4, 10)
    heads = [
        b.concat([_rows(b, b.conv(m, _ANCHORS * width), width) for m in found]) for width in widths
    ]
    shape = (*heads[0].shape[:2], sum(widths))
    out = b.node("Concat", [head.name for head in heads], axis=2)[0]
    return Tensor(out, shape, np.concatenate([head.probe for head in heads], axis=2))


NETWORKS: dict[str, Entry] = {
    # Parameters from the sizes of published weights (13.3, 6.7 and 1.7 MB); multiply-adds counted.
    "posenet": image_network(
        _posenet, params=3.32, macs=0.837, size=257, classes=17, source="TensorFlow Lite: PoseNet"
    ),
    "fast_style_transfer": image_network(
        _style_transfer, params=1.679, macs=10.08, size=256, classes=3,
        source="PyTorch: examples/fast_neural_style",
    ),
    "retinaface": image_network(
        _retinaface, params=0.427, macs=0.981, size=640, classes=2,
        source="Pytorch_Retinaface: mobilenet0.25",
    ),
}  # fmt: skip
