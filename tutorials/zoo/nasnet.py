"""NASNet-A Large (Zoph et al., CVPR 2018) and PNASNet-5 (Liu et al., ECCV 2018).

A cell sees the outputs of the two cells before it, brings both to its own size and width, and adds
pairs of separable convolutions and pools; its output is the concatenation of the sums. Details that
the papers leave open (stem, factorised reduction, padding) are those of TF-slim. Without auxiliary
classifier and dropped paths.
"""

from __future__ import annotations

from functools import partial

from .builder import Builder, Tensor
from .entry import Entry, image_network


def _fit(b: Builder, x: Tensor, filters: int, stride: int = 1) -> Tensor:
    """ReLU, 1x1 convolution, batch normalisation."""
    return b.conv_bn(b.act(x, "relu"), filters, 1, stride)


def _separable(b: Builder, x: Tensor, filters: int, kernel: int, stride: int = 1) -> Tensor:
    """ReLU and separable convolution, twice; only the first may have a stride."""
    for step in (stride, 1):
        x = b.act(x, "relu")
        x = b.conv(x, x.channels, kernel, step, pad="same", groups=x.channels, bias=False)
        x = b.conv_bn(x, filters)
    return x


def _factorized_reduction(b: Builder, x: Tensor, filters: int) -> Tensor:
    """Halve the size: even pixels make one half of the channels, odd pixels the other."""
    x = b.act(x, "relu")
    even = b.conv(b.avg_pool(x, 1, 2), filters // 2, bias=False)
    odd = b.conv(b.avg_pool(b.shift(x), 1, 2), filters - filters // 2, bias=False)
    return b.batch_norm(b.concat([even, odd]))


def _fit_previous(b: Builder, previous: Tensor, current: Tensor, filters: int) -> Tensor:
    """Bring the output of the last cell but one to the size and width of this cell."""
    if previous is current:  # the first cell has only one input
        return previous
    if previous.shape[2] != current.shape[2]:
        return _factorized_reduction(b, previous, filters)
    return _fit(b, previous, filters)


def _max(b: Builder, x: Tensor, stride: int) -> Tensor:
    return b.max_pool(x, 3, stride, pad="same")


def _avg(b: Builder, x: Tensor, stride: int = 1) -> Tensor:
    return b.avg_pool(x, 3, stride, pad="same")


# -- NASNet-A ----------------------------------------------------------------------------------


def _normal_cell(b: Builder, current: Tensor, previous: Tensor, filters: int) -> Tensor:
    p = _fit_previous(b, previous, current, filters)
    c = _fit(b, current, filters)
    return b.concat(
        [
            p,
            b.add(_separable(b, c, filters, 5), _separable(b, p, filters, 3)),
            b.add(_separable(b, p, filters, 5), _separable(b, p, filters, 3)),
            b.add(_avg(b, c), p),
            b.add(_avg(b, p), _avg(b, p)),
            b.add(_separable(b, c, filters, 3), c),
        ]
    )


def _reduction_cell(b: Builder, current: Tensor, previous: Tensor, filters: int) -> Tensor:
    p = _fit_previous(b, previous, current, filters)
    c = _fit(b, current, filters)
    first = b.add(_separable(b, c, filters, 5, 2), _separable(b, p, filters, 7, 2))
    second = b.add(_max(b, c, 2), _separable(b, p, filters, 7, 2))
    third = b.add(_avg(b, c, 2), _separable(b, p, filters, 5, 2))
    fourth = b.add(_avg(b, first), second)
    fifth = b.add(_separable(b, first, filters, 3), _max(b, c, 2))
    return b.concat([second, third, fourth, fifth])


def _nasnet(
    b: Builder, x: Tensor, classes: int, *, stem: int, filters: int, repeats: int
) -> Tensor:
    conv = b.conv_bn(x, stem, 3, 2, pad=0)
    previous = _reduction_cell(b, conv, conv, filters // 4)
    current = _reduction_cell(b, previous, conv, filters // 2)
    for stage in range(3):
        if stage:
            filters *= 2
            # The first cell after a reduction takes its second input from before the reduction.
            reduced = _reduction_cell(b, current, previous, filters)
            previous, current = reduced, _normal_cell(b, reduced, previous, filters)
        for _ in range(repeats - bool(stage)):
            previous, current = current, _normal_cell(b, current, previous, filters)
    return b.classifier(b.act(current, "relu"), classes)


# -- PNASNet-5 ---------------------------------------------------------------------------------


def _pnas_cell(
    b: Builder, current: Tensor, previous: Tensor, filters: int, stride: int = 1
) -> Tensor:
    p = _fit_previous(b, previous, current, filters)
    c = _fit(b, current, filters)
    pooled = _max(b, p, stride)
    if pooled.channels != filters:
        pooled = b.conv_bn(pooled, filters)
    middle = b.add(_separable(b, c, filters, 5, stride), _separable(b, c, filters, 3, stride))
    last = c if stride == 1 else _fit(b, c, filters, stride)
    return b.concat(
        [
            b.add(_separable(b, p, filters, 5, stride), pooled),
            b.add(_separable(b, c, filters, 7, stride), _max(b, c, stride)),
            middle,
            b.add(_separable(b, middle, filters, 3), _max(b, c, stride)),
            b.add(_separable(b, p, filters, 3, stride), last),
        ]
    )


def _pnasnet(
    b: Builder, x: Tensor, classes: int, *, stem: int, filters: int, repeats: int
) -> Tensor:
    conv = b.conv_bn(x, stem, 3, 2, pad=0)
    previous = _pnas_cell(b, conv, conv, filters // 4, 2)
    current = _pnas_cell(b, previous, conv, filters // 2, 2)
    for index in range(3 * repeats):
        stride = 2 if index in (repeats, 2 * repeats) else 1
        filters *= stride
        previous, current = current, _pnas_cell(b, current, previous, filters, stride)
    return b.classifier(b.act(current, "relu"), classes)


NETWORKS: dict[str, Entry] = {
    "nasnet_large": image_network(
        partial(_nasnet, stem=96, filters=168, repeats=6),
        params=88.9, macs=23.8, size=331, source="NASNet, table 2: NASNet-A (6 @ 4032)",
    ),
    "pnasnet_mobile": image_network(
        partial(_pnasnet, stem=32, filters=54, repeats=3),
        params=5.1, macs=0.588, size=224, source="PNASNet, table 4: PNASNet-5 (3, 54)",
    ),
    "pnasnet_large": image_network(
        partial(_pnasnet, stem=96, filters=216, repeats=4),
        params=86.1, macs=25.0, size=331, source="PNASNet, table 5: PNASNet-5 (4, 216)",
    ),
}  # fmt: skip
