"""Recomputes the statistics of batch normalisations, the first step of a warm start."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from tvm_stretch.base.errors import InputError, TrainingError
from tvm_stretch.base.progress import Progress, count, reporting
from tvm_stretch.lab.training.data import (
    device_of,
    evaluating,
    image_batches,
    module,
    number_of_batches,
    undone,
)


@dataclass
class _Moments:
    """Count, mean and sum of squared distances of each channel, over all batches so far."""

    count: int = 0
    mean: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, values: Tensor) -> None:
        """Add the values of a batch, whose second axis is the channels."""
        columns = values.transpose(0, 1).flatten(1)
        number = columns.shape[1]
        if number < 2:
            raise InputError(
                "expected batches of several images, got one; a batch normalisation of single "
                "pixels cannot say how they differ: leave it out, or give all images in one array"
            )
        mean, squares = columns.mean(1).double().cpu(), columns.var(1, unbiased=False).double()
        apart, total = mean - self.mean, self.count + number
        self.squares = self.squares + squares.cpu() * number
        self.squares = self.squares + apart**2 * (self.count * number / total)
        self.mean = self.mean + apart * (number / total)
        self.count = total


@torch.no_grad()
def recalibrate(net: nn.Module, images: object, progress: Progress | None = None) -> None:
    """Set the statistics of batch normalisations to those of these images; no weight changes.

    Args:
        net: changed in place, restored after an error; its training or evaluation mode stays.
        images: an array or a tensor of a few hundred or more, or a loader, whose labels are
            ignored.
        progress: as for ``ts.compile``.

    Raises:
        InputError: there are no images, or a normalisation sees a single value per channel.
        TrainingError: the statistics are not finite.

    Examples:
        >>> net = ts.training.to_torch("resnet18.onnx")
        >>> ts.training.recalibrate(net, torch.randn(4, 3, 224, 224))
    """
    layers = [layer for layer in module(net, "net").modules() if isinstance(layer, _BatchNorm)]
    norms = {layer: _Moments() for layer in layers if layer.running_mean is not None}
    batches = 0
    with undone(*norms):
        with evaluating(net), _watching(norms), reporting(progress):
            for batches, batch in enumerate(image_batches(images), 1):
                count("batch", batches, number_of_batches(images))
                net(batch.to(device_of(net), torch.float32))
        if not batches:
            raise InputError("expected images to recalibrate with, got none; give a few hundred")
        counted = {layer: moments for layer, moments in norms.items() if moments.count}
        if not all(
            torch.as_tensor(moments.squares).isfinite().all() for moments in counted.values()
        ):
            raise TrainingError(
                "expected finite values in front of every batch normalisation, got others; look "
                "for NaN among the images and the weights"
            )
    for layer, moments in counted.items():
        statistics = dict(layer.named_buffers())
        statistics["running_mean"].copy_(torch.as_tensor(moments.mean))
        statistics["running_var"].copy_(torch.as_tensor(moments.squares) / (moments.count - 1))


@contextlib.contextmanager
def _watching(norms: dict[_BatchNorm, _Moments]) -> Iterator[None]:
    """Context in which normalisations use each batch's own statistics and collect its moments."""

    def see(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        norms[layer].add(inputs[0])

    hooks = [layer.register_forward_pre_hook(see) for layer in norms]
    for layer in norms:
        layer.train()
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
