"""Networks for streams, and frames in which a square changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tutorials.zoo.builder import Builder, Tensor

Body = Callable[[Builder, Tensor], Tensor]

SIDE = 48


def plain(b: Builder, x: Tensor) -> Tensor:
    """Layers of one size, as of networks that answer with an image."""
    for _ in range(3):
        x = b.conv_bn(x, 16, 3, act="relu")
    return b.conv_bn(x, 3, 3)


def residual(b: Builder, x: Tensor) -> Tensor:
    """A stem with steps of two, a maximum, a sum, a 1x1, and a head."""
    x = b.max_pool(b.conv_bn(x, 16, 7, 2, act="relu"), 3, 2, pad=1)
    y = b.conv_bn(b.conv_bn(x, 16, 3, act="relu"), 16, 3)
    x = b.add(y, x, act="relu")
    y = b.conv_bn(b.conv_bn(x, 32, 3, 2, act="relu"), 32, 3)
    return b.classifier(b.add(y, b.conv_bn(x, 32, 1, 2), act="relu"), 10)


def windows(b: Builder, x: Tensor) -> Tensor:
    """Depthwise windows, joined pixels, and parts of a concatenation."""
    x = b.conv_bn(x, 24, 3, 2, act="relu")
    y = b.conv_bn(x, 24, 3, groups=24, act="relu")
    z = b.conv_bn(y, 16, act="relu")
    return b.conv_bn(b.concat([z, y, b.conv_bn(x, 8, 5)]), 8)


def tiles(b: Builder, x: Tensor) -> Tensor:
    """Layers that are computed by Winograd's transforms."""
    for _ in range(3):
        x = b.conv_bn(x, 32, 3, act="relu")
    return x


NETWORKS = (plain, residual, windows)


def network(body: Body) -> onnx.ModelProto:
    b = Builder(0)
    return b.finish(body.__name__, body(b, b.input("x", (1, 3, SIDE, SIDE))))


def frame(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, SIDE, SIDE)).astype("float32")


def patched(top: int, left: int, size: int, seed: int = 1) -> np.ndarray:
    """The first frame with other pixels in a square."""
    changed = frame()
    square = np.s_[:, :, top : top + size, left : left + size]
    changed[square] = frame(seed)[square]
    return changed
