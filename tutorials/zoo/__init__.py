"""Networks of the papers as ONNX models with seeded random weights.

``build("resnet50")`` gives the graph that a framework's exporter would write for the trained
network (``BatchNormalization`` not yet folded), with other weights. It needs only ``onnx`` and
NumPy.

    >>> from tutorials import zoo
    >>> model = zoo.build("resnet18")        # input "x" [1, 3, 224, 224], output "logits" [1, 1000]
    >>> zoo.count(model)                     # (params, multiply-adds)
    (11689512, 1814073344)
"""

from __future__ import annotations

import onnx

from tvm_stretch.base.errors import InputError

from . import (
    dense_outputs,
    efficientnet,
    inception,
    lstm,
    mobilenet,
    nasnet,
    regnet,
    resnet,
    shufflenet,
    squeezenet,
    vgg,
    yolo,
)
from .builder import Builder
from .count import count
from .entry import Entry, NetworkInfo

__all__ = ["NetworkInfo", "build", "count", "info", "names"]

_NETWORKS: dict[str, Entry] = {
    **resnet.NETWORKS,
    **regnet.NETWORKS,
    **efficientnet.NETWORKS,
    **mobilenet.NETWORKS,
    **shufflenet.NETWORKS,
    **vgg.NETWORKS,
    **squeezenet.NETWORKS,
    **inception.NETWORKS,
    **nasnet.NETWORKS,
    **yolo.NETWORKS,
    **dense_outputs.NETWORKS,
    **lstm.NETWORKS,
}


def names() -> list[str]:
    """Names that :func:`build` takes."""
    return list(_NETWORKS)


def info(name: str) -> NetworkInfo:
    """Published figures of a network."""
    return _network(name).info


def build(
    name: str,
    *,
    size: int | None = None,
    batch: int = 1,
    classes: int | None = None,
    seed: int = 0,
) -> onnx.ModelProto:
    """Build a network.

    Args:
        name: One of :func:`names`.
        size: Input height and width (LSTM: time steps); the published size if left out.
        batch: Number of samples.
        classes: Number of classes; the published number if left out (1000 for ImageNet).
        seed: Seed of the weights: same arguments, same model.

    Returns:
        A model with input ``x`` and output ``logits``.
    """
    network = _network(name)
    for field, value in (("size", size), ("batch", batch), ("classes", classes)):
        if value is not None and value < 1:
            raise InputError(f"expected a positive number for {field}, got {value}; raise it")
    builder = Builder(seed)
    x = builder.input("x", (batch, *network.info.sample_shape(size)))
    logits = network.emit(builder, x, classes or network.info.classes)
    return builder.finish(name, logits)


def _network(name: str) -> Entry:
    if name not in _NETWORKS:
        raise InputError(
            f"expected a network of the zoo for name, got {name!r}; use one of {', '.join(names())}"
        )
    return _NETWORKS[name]
