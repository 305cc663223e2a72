"""Statistics of batch normalisations, computed anew: all that a warm start needs at first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tvm_stretch.errors import InputError
from tvm_stretch.progress import Progress, count, reporting
from tvm_stretch.training.data import device_of

BATCH = 128


@torch.no_grad()
def recalibrate(net: nn.Module, images: Any, progress: Progress | None = None) -> None:
    """Give the batch normalisations the mean and variance of these images; no weight changes.

    Args:
        net: changed in place; it stays in training or evaluation mode.
        images: an array or a tensor of a few hundred or more, or batches: those of a loader, whose
            labels are not read.
        progress: as for ``ts.compile``.

    Raises:
        InputError: there are no images.
    """
    norms = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    usual = [(norm.momentum, norm.training) for norm in norms]
    device, was_training = device_of(net), net.training
    net.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean of all batches
        norm.train()
    batches = 0
    try:
        with reporting(progress):
            for batches, batch in enumerate(_batches(images), 1):
                count("batch", batches, _length(images))
                net(batch.to(device, torch.float32))
    finally:
        net.train(was_training)
        for norm, (momentum, training) in zip(norms, usual, strict=True):
            norm.momentum = momentum
            norm.train(training)
    if not batches:
        raise InputError("expected images to recalibrate with, got none; give a few hundred")


def _batches(images: Any) -> Iterator[Tensor]:
    if isinstance(images, np.ndarray | Tensor):
        yield from torch.as_tensor(images).split(BATCH)
        return
    for batch in images:
        yield torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch)


def _length(images: Any) -> int:
    if isinstance(images, np.ndarray | Tensor):
        return -(-len(images) // BATCH)
    return len(images) if hasattr(images, "__len__") else 0
