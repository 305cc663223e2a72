"""Inception-v3 (Szegedy et al., CVPR 2016) and v4 (AAAI 2017), without the auxiliary classifier."""

from __future__ import annotations

from functools import partial

from .builder import Builder, Pair, Tensor
from .entry import Entry, image_network

_ROW = (1, 7)
_COLUMN = (7, 1)


def _conv(b: Builder, x: Tensor, filters: int, kernel: Pair = 1) -> Tensor:
    """Convolution that keeps the size."""
    kh, kw = (kernel, kernel) if isinstance(kernel, int) else kernel
    return b.conv_bn(x, filters, (kh, kw), pad=(kh // 2, kw // 2), act="relu")


def _valid(b: Builder, x: Tensor, filters: int, kernel: int = 3, stride: int = 1) -> Tensor:
    """Convolution without padding."""
    return b.conv_bn(x, filters, kernel, stride, pad=0, act="relu")


def _chain(b: Builder, x: Tensor, *layers: tuple[int, Pair]) -> Tensor:
    for filters, kernel in layers:
        x = _conv(b, x, filters, kernel)
    return x


def _shrink(b: Builder, x: Tensor) -> Tensor:
    return b.max_pool(x, 3, 2, pad=0)


def _smooth(b: Builder, x: Tensor) -> Tensor:
    return b.avg_pool(x, 3, 1)


def _fork(b: Builder, x: Tensor, filters: int) -> Tensor:
    """A 1x3 and a 3x1 convolution, concatenated."""
    return b.concat([_conv(b, x, filters, (1, 3)), _conv(b, x, filters, (3, 1))])


# -- v3 ----------------------------------------------------------------------------------------


def _v3_35(b: Builder, x: Tensor, pooled: int) -> Tensor:
    return b.concat(
        [
            _conv(b, x, 64),
            _chain(b, x, (48, 1), (64, 5)),
            _chain(b, x, (64, 1), (96, 3), (96, 3)),
            _conv(b, _smooth(b, x), pooled),
        ]
    )


def _v3_17(b: Builder, x: Tensor, mid: int) -> Tensor:
    return b.concat(
        [
            _conv(b, x, 192),
            _chain(b, x, (mid, 1), (mid, _ROW), (192, _COLUMN)),
            _chain(b, x, (mid, 1), (mid, _COLUMN), (mid, _ROW), (mid, _COLUMN), (192, _ROW)),
            _conv(b, _smooth(b, x), 192),
        ]
    )


def _v3_8(b: Builder, x: Tensor) -> Tensor:
    return b.concat(
        [
            _conv(b, x, 320),
            _fork(b, _conv(b, x, 384), 384),
            _fork(b, _chain(b, x, (448, 1), (384, 3)), 384),
            _conv(b, _smooth(b, x), 192),
        ]
    )


def _inception_v3(b: Builder, x: Tensor, classes: int) -> Tensor:
    x = _conv(b, _valid(b, _valid(b, x, 32, 3, 2), 32), 64, 3)
    x = _shrink(b, x)
    x = _valid(b, _conv(b, x, 80), 192)
    x = _shrink(b, x)
    for pooled in (32, 64, 64):
        x = _v3_35(b, x, pooled)
    wide = _valid(b, _chain(b, x, (64, 1), (96, 3)), 96, 3, 2)
    x = b.concat([_valid(b, x, 384, 3, 2), wide, _shrink(b, x)])
    for mid in (128, 160, 160, 192):
        x = _v3_17(b, x, mid)
    narrow = _valid(b, _conv(b, x, 192), 320, 3, 2)
    wide = _valid(b, _chain(b, x, (192, 1), (192, _ROW), (192, _COLUMN)), 192, 3, 2)
    x = b.concat([narrow, wide, _shrink(b, x)])
    for _ in range(2):
        x = _v3_8(b, x)
    return b.classifier(x, classes)


# -- v4 ----------------------------------------------------------------------------------------


def _v4_stem(b: Builder, x: Tensor) -> Tensor:
    x = _conv(b, _valid(b, _valid(b, x, 32, 3, 2), 32), 64, 3)
    x = b.concat([_shrink(b, x), _valid(b, x, 96, 3, 2)])
    narrow = _valid(b, _conv(b, x, 64), 96)
    wide = _valid(b, _chain(b, x, (64, 1), (64, _ROW), (64, _COLUMN)), 96)
    x = b.concat([narrow, wide])
    return b.concat([_valid(b, x, 192, 3, 2), _shrink(b, x)])


def _v4_35(b: Builder, x: Tensor) -> Tensor:
    return b.concat(
        [
            _conv(b, x, 96),
            _chain(b, x, (64, 1), (96, 3)),
            _chain(b, x, (64, 1), (96, 3), (96, 3)),
            _conv(b, _smooth(b, x), 96),
        ]
    )


def _v4_17(b: Builder, x: Tensor) -> Tensor:
    return b.concat(
        [
            _conv(b, x, 384),
            _chain(b, x, (192, 1), (224, _ROW), (256, _COLUMN)),
            _chain(b, x, (192, 1), (192, _COLUMN), (224, _ROW), (224, _COLUMN), (256, _ROW)),
            _conv(b, _smooth(b, x), 128),
        ]
    )


def _v4_8(b: Builder, x: Tensor) -> Tensor:
    return b.concat(
        [
            _conv(b, x, 256),
            _fork(b, _conv(b, x, 384), 256),
            _fork(b, _chain(b, x, (384, 1), (448, (3, 1)), (512, (1, 3))), 256),
            _conv(b, _smooth(b, x), 256),
        ]
    )


def _inception_v4(b: Builder, x: Tensor, classes: int) -> Tensor:
    x = _v4_stem(b, x)
    for _ in range(4):
        x = _v4_35(b, x)
    wide = _valid(b, _chain(b, x, (192, 1), (224, 3)), 256, 3, 2)
    x = b.concat([_valid(b, x, 384, 3, 2), wide, _shrink(b, x)])
    for _ in range(7):
        x = _v4_17(b, x)
    narrow = _valid(b, _conv(b, x, 192), 192, 3, 2)
    wide = _valid(b, _chain(b, x, (256, 1), (256, _ROW), (320, _COLUMN)), 320, 3, 2)
    x = b.concat([narrow, wide, _shrink(b, x)])
    for _ in range(3):
        x = _v4_8(b, x)
    return b.classifier(x, classes)


_published = partial(image_network, size=299, source="timm results table, 299x299")

NETWORKS: dict[str, Entry] = {
    "inception_v3": _published(_inception_v3, params=23.83, macs=5.73),
    "inception_v4": _published(_inception_v4, params=42.68, macs=12.28),
}
